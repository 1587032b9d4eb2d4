"""Runs tests of the scripts, once unchanged and once for each mutation of a script. Prints a line of JSON for each run.

In one process for all, since starting one takes longer than the tests: ``python -m tests.calibration.script_runs``. A
mutated script is put into the place of the one that the product loaded; no file is changed.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import json
import sys
from collections.abc import Iterator

import pytest

from bridge.routing.scripts import Script, with_shared
from bridge.testing.nodes.process import ROOT
from tests.calibration.mutation import Mutation, mutated
from tests.calibration.script_mutations import SCRIPT_MUTATIONS

#: Stands for the run without a mutation.
AS_IT_IS = ""


def node_of(mutation: Mutation) -> str:
    """The test that must fail, as pytest names it."""
    return f"{mutation.scenario}::{mutation.caught_by[0]}"


class _Reports:
    """A pytest plugin that keeps what failed and what passed."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid)


@contextlib.contextmanager
def _in_place(mutation: Mutation) -> Iterator[None]:
    for file, text in mutated(mutation).items():
        name = file.rpartition("/")[2].removesuffix(".lua")
        # The tests' collection freezes the objects that exist then, which hides them.
        gc.unfreeze()
        [script] = [one for one in gc.get_objects() if type(one) is Script and one.name == name]
        before = dict(vars(script))
        script.text = with_shared(text)
        script.sha = hashlib.sha1(script.text.encode(), usedforsecurity=False).hexdigest()
        try:
            yield
        finally:
            vars(script).update(before)


def _run(name: str, nodes: list[str]) -> None:
    reports = _Reports()
    shown = io.StringIO()
    # On one server: on the other they run among the tests of the scripts.
    # Nor with a look for what was not closed: it takes as long as the test, and they have it there, too.
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:unraisableexception", "--tb=short", "-k", "not redis"]
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        code = pytest.main([*options, *nodes], plugins=[reports])
    line = {
        "name": name,
        "code": int(code),
        "failed": reports.failed,
        "passed": len(reports.passed),
        "shown": shown.getvalue()[-3000:],
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    """Everything that was found."""
    _run(AS_IT_IS, list(dict.fromkeys(map(node_of, SCRIPT_MUTATIONS))))
    for mutation in SCRIPT_MUTATIONS:
        with _in_place(mutation):
            _run(f"{mutation.breaks} {mutation.name}", [node_of(mutation)])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
