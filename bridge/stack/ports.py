"""Ports of this machine for servers that the stack starts."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from pathlib import Path

from bridge.routing.errors import PortInUse

HOST = "127.0.0.1"
_LOWEST_FREE_PORT = 20_000


def free_port() -> int:
    """A port of this machine that no process listens on, outside the ephemeral range.

    The kernel may give a port of that range to a client as its source port. A client that retries a stopped server
    could get the server's own port, and connect to itself. Then the server could not restart.
    """
    highest = 32_767
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        highest = int(text.split()[0]) - 1
    if highest <= _LOWEST_FREE_PORT:  # a machine set up unusually; the small risk above is better than no port
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            return int(probe.getsockname()[1])
    for _ in range(200):
        # Not from `random` itself: two processes with the same seed would choose the same port.
        port = random.SystemRandom().randint(_LOWEST_FREE_PORT, highest)
        if not _is_used_or_kept(port):
            return port
    raise PortInUse(f"found no free port between {_LOWEST_FREE_PORT} and {highest} on {HOST}")


def keep_port(port: int) -> socket.socket | None:
    """Keeps the port for a server that is to listen there again and again: `free_port` gives it to nobody else while
    the socket is open. None: something listens there now, or the system is not Linux.

    The socket does not listen. So on Linux the server may (if it sets SO_REUSEADDR, as servers do), and while it does
    not, clients are refused. Elsewhere one address is for one socket.
    """
    if sys.platform != "linux":
        return None
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        kept.bind((HOST, port))
    except OSError:
        kept.close()
        return None
    return kept


def _is_used_or_kept(port: int) -> bool:
    """Whether any socket has the port, also one that does not listen, or did a moment ago."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def port_is_taken(port: int) -> bool:
    """Whether something on this machine already uses the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False
