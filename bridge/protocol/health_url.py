"""The ``healthURL`` of an HTTP consumer: which addresses a master may ask. Nobody can make it ask others.

The name is resolved once for each ping. Each of its addresses must be in one of the networks of
``bridge_http_health_networks``, and the ping goes to the address that was checked: a name that is resolved to another
one a moment later changes nothing.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from bridge.routing.errors import InputError
from bridge.routing.text import printable

#: Longest URL, in characters.
MOST = 2000
SETTING = "bridge_http_health_networks"
_PORTS = {"http": 80, "https": 443}
#: What may be in a URL as it is sent: printable ASCII without spaces.
_PLAIN = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class HealthTarget:
    """Where a ping goes. ``address``: checked. ``host`` and ``path``: as the URL has them."""

    scheme: str
    host: str
    port: int
    path: str
    address: str


def checked_health_url(url: str, networks: Sequence[str]) -> HealthTarget:
    """Where a ping of ``url`` goes. Resolves its name, so it may block. Raises `InputError`."""
    scheme, host, port, path = _parts(url)
    if not networks:
        raise InputError(f"healthURL: this app allows none: an operator names the networks in {SETTING}")
    allowed = [ipaddress.ip_network(network, strict=False) for network in networks]
    found = _addresses(host, port)
    for address in found:
        one = ipaddress.ip_address(address.partition("%")[0])
        one = getattr(one, "ipv4_mapped", None) or one
        if not any(one in network for network in allowed):
            raise InputError(f"healthURL: its address {one} is in no network of {SETTING}")
    return HealthTarget(scheme, host, port, path, found[0])


def _parts(url: str) -> tuple[str, str, int, str]:
    shown = printable(url)[:80]
    if len(url) > MOST or not _PLAIN.fullmatch(url):
        raise InputError(f"healthURL must have at most {MOST} characters, of printable ASCII: {shown}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InputError(f"healthURL must be http://HOST[:PORT]/PATH or https://…, not {shown}") from None
    if parts.scheme not in _PORTS or not host or port == 0:
        raise InputError(f"healthURL must be http://HOST[:PORT]/PATH or https://…, not {shown}")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise InputError("healthURL must have no user, no password and no fragment")
    path = parts.path or "/"
    return parts.scheme, host, port or _PORTS[parts.scheme], f"{path}?{parts.query}" if parts.query else path


def _addresses(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InputError(f"healthURL: there is no address for its host {printable(host)[:80]}") from None
    return [str(place[0]) for *_, place in found]
