"""A proxy that makes a server far away: each piece arrives some milliseconds later, in each direction.

``python -m benchmarks.far PORT SECONDS`` prints the port on which it listens. As on a long line, a piece does not wait
for the one before it to arrive, and none overtakes another.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import suppress
from queue import SimpleQueue

HOST = "127.0.0.1"
#: Bytes that are taken in one piece.
PIECE = 1 << 18


def main() -> None:
    """Serves until it is killed."""
    port, delay_s = int(sys.argv[1]), float(sys.argv[2])
    with socket.create_server((HOST, 0), backlog=256) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            near, _ = listening.accept()
            with suppress(OSError):
                there = socket.create_connection((HOST, port))
                _join(near, there, delay_s)
                _join(there, near, delay_s)


def _join(source: socket.socket, target: socket.socket, delay_s: float) -> None:
    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    under_way: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
    threading.Thread(target=_take, args=(source, under_way, delay_s), daemon=True).start()
    threading.Thread(target=_deliver, args=(target, under_way), daemon=True).start()


def _take(source: socket.socket, under_way: SimpleQueue[tuple[float, bytes]], delay_s: float) -> None:
    data = b"-"
    while data:
        try:
            data = source.recv(PIECE)
        except OSError:
            data = b""
        under_way.put((time.monotonic() + delay_s, data))


def _deliver(target: socket.socket, under_way: SimpleQueue[tuple[float, bytes]]) -> None:
    with suppress(OSError):
        while True:
            due, data = under_way.get()
            if (wait_s := due - time.monotonic()) > 0:
                time.sleep(wait_s)
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(data)


if __name__ == "__main__":
    main()
