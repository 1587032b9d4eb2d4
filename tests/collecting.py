"""The process that collects the tests for all processes of ``pytest -n`` (`tests.collected`)."""

from __future__ import annotations

import json
import socket
import sys

from _pytest.config import _prepareconfig


def collect() -> None:
    """The collecting process: collects, and forks for each process that xdist starts."""
    listening = socket.socket(fileno=int(sys.argv[1]))
    arguments = json.loads(sys.argv[2])
    sys.argv[1:] = []
    # Before anything of plugins is imported: pytest rewrites their modules when they are imported first.
    config = _prepareconfig(arguments, None)
    import xdist.remote

    from tests.forks import Forks

    xdist.remote.setup_config(config, None)
    # The forks fill it in. By its existence plugins know that this process does not report.
    config.workerinput = {}  # type: ignore[attr-defined]
    config.workeroutput = {}  # type: ignore[attr-defined]
    forks = Forks(config, listening)
    config.pluginmanager.register(forks)
    config.hook.pytest_cmdline_main(config=config)
    forks.end()
