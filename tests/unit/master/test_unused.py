"""What an app does not use is not loaded."""

from __future__ import annotations

import subprocess
import sys

from bridge.testing.nodes.process import ROOT

CODE = """
import sys
import bridge.cli.commands.run, bridge.leader.leader, bridge.master.process
unused = ("fastapi", "starlette", "uvicorn", "bridge.http", "bridge.master.health_checks")
print([name for name in sys.modules if name.startswith(unused)])
"""


def test_without_http_a_master_loads_nothing_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
