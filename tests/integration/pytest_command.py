"""pytest of another project, as a command that can be forked."""

from __future__ import annotations

import sys

#: What packages of this environment bring for pytest, and the other project would not have. It is slow to import.
NOT_THERE = ("-p", "no:schemathesis", "-p", "no:valkey", "-p", "no:anyio")


def pytest_command(*words: str, first: str = "pass") -> list[str]:
    """``pytest WORDS …``. ``first``: a statement that runs before pytest is imported."""
    code = f"import os, sys\n{first}\nimport pytest\nsys.exit(pytest.main([*{NOT_THERE}, *sys.argv[1:]]))"
    return [sys.executable, "-c", code, *words]
