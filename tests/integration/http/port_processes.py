"""The processes of a master's port, seen from outside."""

from __future__ import annotations

import os
from typing import NamedTuple

import psutil

from bridge.testing.nodes.node import Node


class PortProcesses(NamedTuple):
    """Each of them."""

    keeper: psutil.Process
    serving: psutil.Process
    spare: psutil.Process


def port_processes(master: Node) -> PortProcesses | None:
    """The processes, when just these are there, and none is a zombie. They are a process group of their own."""
    try:
        own = os.getpgid(master.pid or 0)
        group = [process for process in master.survivors() if os.getpgid(process.pid) != own]
        if len(group) != 3 or any(process.status() == psutil.STATUS_ZOMBIE for process in group):
            return None
        # Only the one that serves has threads.
        [serving] = [process for process in group if process.num_threads() > 1]
        [keeper] = [process for process in group if {*group} & {*process.children()}]
        [spare] = {*group} - {keeper, serving}
    except (psutil.Error, ProcessLookupError, ValueError):
        return None
    return PortProcesses(keeper, serving, spare)
