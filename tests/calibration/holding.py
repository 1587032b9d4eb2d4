"""A connection in which one request is delayed, and arrives when its sender has given it up."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from bridge.stack.ports import HOST
from bridge.testing.waiting import wait_until


class HoldingProxy:
    """Passes everything between its clients and the server, but for one request that is held on demand.

    It also passes on what a client sent before it was killed, as a network does.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listening = socket.create_server((HOST, 0))
        self.port: int = self._listening.getsockname()[1]
        self._pattern: re.Pattern[bytes] | None = None
        self._held: bytes | None = None
        self._released = threading.Event()
        self._server_side: socket.socket | None = None
        self._client_side: socket.socket | None = None
        #: What the server answered to the request that was held.
        self.answer = b""
        self._open: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, name="test-holding", daemon=True)

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._released.set()
        _end(self._listening)
        self._accepting.join(10)
        for one in self._open:
            _end(one)

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def hold(self, pattern: bytes) -> None:
        """The next request in which the regular expression is found does not arrive."""
        self._pattern = re.compile(pattern, re.DOTALL)

    def wait_held(self) -> None:
        """Waits until that request is here."""
        wait_until(lambda: self._held is not None, description=f"a request with {self._pattern}", timeout_s=15)

    def cut(self) -> None:
        """Its sender learns that the connection is broken; what it sent is still on its way."""
        assert self._client_side is not None
        self._client_side.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """It arrives now; returns when the server has answered it."""
        self._released.set()
        wait_until(lambda: self.answer, description="the server to answer what was held", timeout_s=15)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection((HOST, self._target_port))
            except OSError:
                return
            self._open += [client, server]
            threading.Thread(target=self._up, args=(client, server), daemon=True).start()
            threading.Thread(target=self._down, args=(server, client), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(1 << 20):
                if self._pattern is not None and self._pattern.search(data):
                    self._pattern = None
                    self._server_side, self._client_side = server, client
                    self._held = data
                    self._released.wait(60)
                server.sendall(data)
        except OSError:
            pass
        finally:
            if self._server_side is not server:
                _end(server)

    def _down(self, server: socket.socket, client: socket.socket) -> None:
        gone = False
        try:
            while data := server.recv(1 << 20):
                if server is self._server_side and self._released.is_set():
                    self.answer += data
                if gone:
                    continue
                try:
                    client.sendall(data)
                except OSError:
                    gone = True  # it was killed; the server still answers
        except OSError:
            pass
        finally:
            _end(client)


def _end(one: socket.socket) -> None:
    """Ends a socket that a thread may be waiting on.

    To close it would not wake that thread. It would wait on, and after a SIGSTOP and SIGCONT of the process on whatever
    socket has that number by then: on the next proxy's, whose client it took to a server that was gone.
    """
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
