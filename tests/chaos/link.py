"""A connection between one process and the server that can be cut: ``python -m tests.chaos.link LISTEN_PORT
SERVER_PORT``.

Frozen (SIGSTOP), it is a network that carries nothing: connections stay open, new ones are accepted and never answered,
and what was on its way arrives when it goes on, long after its sender has given it up.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading

from bridge.stack.ports import HOST

READY = "the line is open"


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Passes on what comes from one side, until one of them ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def serve(process: socket.socket, server_port: int) -> None:
    """One connection, both ways. Threads that block cost a third of what a loop costs for each chunk."""
    with process, contextlib.suppress(OSError), socket.create_connection((HOST, server_port)) as server:
        for end in (process, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=pump, args=(server, process), daemon=True)
        back.start()
        pump(process, server)
        back.join()


def carry(listen_port: int, server_port: int) -> None:
    """Passes everything on, for ever."""
    with socket.create_server((HOST, listen_port)) as listening:
        print(READY, flush=True)
        while True:
            accepted, _ = listening.accept()
            threading.Thread(target=serve, args=(accepted, server_port), daemon=True).start()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        carry(int(sys.argv[1]), int(sys.argv[2]))
