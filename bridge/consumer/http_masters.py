"""What a caller of the masters' HTTP port names: the masters' URLs and its token, checked. Standard library only.

A wrong one is found before the first call, in one line that never shows a token. Else each call would fail, and look as
though the masters were away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

#: The ports of a URL that names none.
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Master:
    """Where a master listens, or a proxy before it. ``path``: what goes before the path of each call; "": nothing."""

    scheme: str
    host: str
    port: int
    path: str


def masters_of(urls: Sequence[str]) -> list[Master]:
    """The masters with these URLs. Raises ValueError and TypeError."""
    found = [_master(url) for url in urls]
    if not found:
        raise ValueError("name the URL of at least one master: http://HOST:PORT")
    return found


def _master(url: str) -> Master:
    if not isinstance(url, str):
        raise TypeError(f"the URL of a master must be text, not {type(url).__name__}")
    # First what may be a secret, wherever it is: the other errors show the URL.
    if "@" in url:
        raise ValueError("a master's URL must not have a user or a password: give token= for the header")
    if "?" in url or "#" in url:
        raise ValueError("a master's URL must not have a query or a fragment, which are what follows ? or #")
    wrong = ValueError(f"the URL of a master is http://HOST:PORT, with a port from 1 to 65535, not {url!r:.200}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        # As a connection will do it.
        host.encode("idna")
    except ValueError:
        raise wrong from None
    # urlsplit takes some of these out.
    if not host or parts.scheme not in PORTS or any(char <= " " or char == "\x7f" for char in url) or port == 0:
        raise wrong
    if not parts.path.isascii():
        raise ValueError(f"the path of a master's URL must be ASCII: quote what is not, as %C3%BC, not {url!r:.200}")
    return Master(parts.scheme, host, PORTS[parts.scheme] if port is None else port, parts.path.rstrip("/"))


def authorization_of(token: str) -> str:
    """The header with ``token``. A newline at its end, as in a file, is no part of it. Raises ValueError and TypeError,
    which never show the token.
    """
    if not isinstance(token, str):
        raise TypeError(f"the token must be text, not {type(token).__name__}")
    token = token.rstrip("\r\n")
    if not token:
        raise ValueError("the token is empty: leave it out where the port needs none")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("the token must be printable ASCII without spaces")
    return f"Bearer {token}"
