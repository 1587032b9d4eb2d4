"""What ``bridge run --http …`` was told: where to listen, the tokens, the certificate. Checked before the start."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bridge.routing.errors import ConfigurationError, PortInUse

#: The host of an address that names only a port.
LOOPBACK = "127.0.0.1"
#: Most connections that wait to be accepted.
BACKLOG = 2048
#: Seconds for which an address that another process has is tried again, and between two tries.
IN_USE_S, AGAIN_S = 5.0, 0.05
#: What the extra ``http`` installs.
EXTRA = ("fastapi", "uvicorn")


def require_extra() -> None:
    """Raises `ConfigurationError` when FastAPI or uvicorn is not installed."""
    for name in EXTRA:
        if find_spec(name) is None:
            raise ConfigurationError(f"--http needs {name}: pip install 'ticket-bridge[http]'")


@dataclass(frozen=True)
class Address:
    """Where the server listens. ``host``: a numeric address."""

    host: str
    port: int
    family: socket.AddressFamily

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def bind(self) -> socket.socket:
        """A socket with this address. Raises `PortInUse` and `ConfigurationError`.

        If another process has the address, it tries again for `IN_USE_S`: after a kill -9 of a master, its port's own
        processes need a moment to end, and a supervisor starts the next master at once.
        """
        until = time.monotonic() + IN_USE_S
        while True:
            try:
                return self._bound()
            except OSError as exc:
                if exc.errno == errno.EADDRINUSE and time.monotonic() < until:
                    time.sleep(AGAIN_S)
                    continue
                said = exc.strerror or str(exc)
                if isinstance(exc, PermissionError):
                    raise ConfigurationError(
                        f"--http: may not listen on {self}: {said}; choose a port from 1024 on"
                    ) from None
                raise PortInUse(f"--http: cannot listen on {self}: {said}; choose another address") from None

    def _bound(self) -> socket.socket:
        # With its protocol named, asyncio sets TCP_NODELAY. Else the second part of an answer waits some 40 ms.
        bound = socket.socket(self.family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.family == socket.AF_INET6:
                # Else :: would also take the port of IPv4, on some machines.
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind((self.host, self.port))
            # Only now it is certain that no other process has it. Clients wait until the server accepts them.
            bound.listen(BACKLOG)
        except OSError:
            bound.close()
            raise
        bound.setblocking(False)
        return bound


def read_address(text: str) -> Address:
    """The address that ``--http`` names: HOST:PORT, [IPv6]:PORT, or a port of the loopback address.

    Raises `ConfigurationError`.
    """
    host, _, port = text.rpartition(":")
    form = "--http must be HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080"
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigurationError(f"{form}, with an IPv6 address in brackets, not {text!r:.100}")
    if not (port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise ConfigurationError(f"{form}, not {text!r:.100}")
    try:
        # The first one is that which clients that resolve the name try first.
        family, _, _, _, place = socket.getaddrinfo(host or LOOPBACK, int(port), type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as exc:
        said = getattr(exc, "strerror", None) or exc
        raise ConfigurationError(f"--http: there is no address for the host {host!r:.100}: {said}") from None
    return Address(str(place[0]), int(place[1]), socket.AddressFamily(family))


@dataclass(frozen=True)
class Certificate:
    """The files of ``--http-cert`` and ``--http-key``."""

    cert: Path
    key: Path | None = None

    def load(self) -> ssl.SSLContext:
        """What the server speaks TLS with. Raises `ConfigurationError` when it could not use them."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert, self.key, password=lambda: "")
        except ssl.SSLError as exc:
            raise ConfigurationError(
                f"--http-cert, --http-key: {self.cert} and {self.key or self.cert} are not a certificate and its key "
                f"in PEM, without a password: {exc.reason or exc}"
            ) from None
        except OSError as exc:
            raise ConfigurationError(f"--http-cert, --http-key: {exc.filename or self.cert}: {exc.strerror}") from None
        return context


@dataclass(frozen=True)
class HttpOptions:
    """The options of the server."""

    address: Address
    #: The file of tokens; None: the environment variable, or none.
    tokens: Path | None = None
    certificate: Certificate | None = None

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"
