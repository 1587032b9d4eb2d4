"""Runs tests of the scripts for each mutation of a script, and those that failed once more without a mutation. Prints a
line of JSON for each run.

In one session of pytest for all, since starting one takes longer than the tests: ``python -m
tests.calibration.script_runs``. A mutated script is put into the place of the one that the product loaded; no file is
changed.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from bridge.routing.scripts import Script, with_shared
from bridge.testing.nodes.process import ROOT
from tests.calibration.in_process import put
from tests.calibration.mutation import Mutation, mutated
from tests.calibration.script_mutations import SCRIPT_MUTATIONS

#: Stands for the run without a mutation.
AS_IT_IS = ""


def node_of(mutation: Mutation) -> str:
    """The test that must fail, as pytest names it."""
    return f"{mutation.scenario}::{mutation.caught_by[0]}"


def _scripts() -> dict[str, list[Script]]:
    """All that the product has loaded, by their names."""
    # The collection of tests freezes the objects that exist then, which hides them.
    gc.unfreeze()
    found: dict[str, list[Script]] = {}
    for one in gc.get_objects():
        if type(one) is Script:
            found.setdefault(one.name, []).append(one)
    gc.freeze()
    return found


@contextlib.contextmanager
def _in_place(mutation: Mutation, scripts: Mapping[str, Sequence[Script]]) -> Iterator[None]:
    for file, text in mutated(mutation).items():
        if file.endswith(".py"):
            # What the leader makes of the scripts' answers.
            with pytest.MonkeyPatch.context() as monkeypatch:
                put(monkeypatch, mutation)
                yield
            return
        [script] = scripts[file.rpartition("/")[2].removesuffix(".lua")]
        before = dict(vars(script))
        script.text = with_shared(text)
        script.sha = hashlib.sha1(script.text.encode(), usedforsecurity=False).hexdigest()
        try:
            yield
        finally:
            vars(script).update(before)


class _Runs:
    """A pytest plugin that runs the tests of each mutation, instead of all tests once."""

    def __init__(self) -> None:
        #: What came of each, in the form that is printed.
        self.lines: list[dict[str, Any]] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        scripts = _scripts()
        noticed: set[str] = set()
        for mutation in SCRIPT_MUTATIONS:
            node = node_of(mutation)
            items = [item for item in session.items if item.nodeid == node or item.nodeid.startswith(f"{node}[")]
            with _in_place(mutation, scripts):
                noticed.update(self._run(f"{mutation.breaks} {mutation.name}", items))
        # The others are green among the tests of the scripts.
        self._run(AS_IT_IS, [item for item in session.items if item.nodeid in noticed])
        return True

    def _run(self, name: str, items: Sequence[pytest.Item]) -> list[str]:
        """Until the first one fails. Returns what failed."""
        failed: list[str] = []
        passed, shown = 0, ""
        for item in items:
            # After each test only the fixtures of the session stay.
            reports = runtestprotocol(item, log=False, nextitem=item.session)  # type: ignore[arg-type]
            passed += all(report.passed for report in reports)
            failed += [report.nodeid for report in reports if report.failed]
            if failed:
                shown = "\n".join(report.longreprtext for report in reports if report.failed)
                break
        # As pytest's own: 1 where a test failed, 5 where there was none.
        code = 1 if failed else 0 if items else 5
        self.lines.append({"name": name, "code": code, "failed": failed, "passed": passed, "shown": shown[-3000:]})
        return failed


def main() -> None:
    """Everything that was found."""
    runs = _Runs()
    shown = io.StringIO()
    # On one server: on the other they run among the tests of the scripts.
    # Nor with a look for what was not closed: it takes as long as the test, and they have it there, too.
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:unraisableexception", "--tb=short", "-k", "not redis"]
    nodes = list(dict.fromkeys(map(node_of, SCRIPT_MUTATIONS)))
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        pytest.main([*options, *nodes], plugins=[runs])
    if not runs.lines:
        sys.exit(shown.getvalue()[-3000:])
    for line in runs.lines:
        print(json.dumps(line))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
