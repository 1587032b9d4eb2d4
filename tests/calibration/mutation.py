"""One named defect, made in a copy of the product. The product itself has no switch for it.

A mutation replaces text that stands exactly once in its file. When the product has changed so that it does not, that is
an error, and never a mutation that silently does nothing.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from bridge.testing.nodes.process import ROOT

#: What a copy of the product consists of: enough to start masters and workers from it.
PARTS = ("bridge", "routing")
#: What comes along of the tests: the app that the workers run, and what it needs.
TESTS = ("chaos", "keycheck.py")


class NoLongerApplies(AssertionError):
    """The text that a mutation replaces is not in the product any more, or is there more than once."""


@dataclass(frozen=True)
class Edit:
    """One replacement. ``file`` as from the root of the checkout; ``old`` must stand in it exactly once."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """A defect and what must notice it.

    ``breaks``: the invariant ("I4") or promise of the design. ``scenario``: what is run with it. ``caught_by``: what
    must be among the findings, each "<detector>: <what it calls it>", or, of a scenario of script tests, the name of
    the test that must fail. ``long``: not on every change.
    """

    name: str
    breaks: str
    scenario: str
    caught_by: tuple[str, ...]
    edits: tuple[Edit, ...]
    long: bool = False


def mutated(mutation: Mutation) -> dict[str, str]:
    """The files that the mutation changes, with their new text. Raises `NoLongerApplies`."""
    texts: dict[str, str] = {}
    for edit in mutation.edits:
        path = ROOT / edit.file
        text = texts.get(edit.file) or (path.read_text() if path.is_file() else "")
        found = text.count(edit.old)
        if found != 1 or edit.old == edit.new:
            raise NoLongerApplies(
                f"the mutation no longer applies: {mutation.name}: {edit.file} has this text {found} times, not once:\n"
                f"{edit.old}"
            )
        texts[edit.file] = text.replace(edit.old, edit.new)
    return texts


def product(folder: Path, mutation: Mutation | None = None) -> Path:
    """A copy of the product in ``folder``, with the defect. Raises `NoLongerApplies`."""
    texts = mutated(mutation) if mutation else {}
    folder.mkdir(parents=True)
    for part in PARTS:
        _copy(ROOT / part, folder / part)
    for part in TESTS:
        _copy(ROOT / "tests" / part, folder / "tests" / part)
    for file, text in texts.items():
        # A file of its own: until now it is the checkout's.
        (folder / file).unlink()
        (folder / file).write_text(text)
    return folder


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        # With the compiled files: they know their source by its time and size, so those of a mutated file are void.
        # A link stays one: the copy has each module once.
        shutil.copytree(source, target, symlinks=True, copy_function=_link)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(source, target)


def _link(source: str | Path, target: str | Path) -> None:
    """The same file under a second name, which takes a third of what a copy takes; a copy on another file system."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
