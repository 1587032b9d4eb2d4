"""Addresses of servers, as one text for all clients: redis-py's own URLs, and one form for sentinels.

``sentinel://[user:password@]h1:26379,h2:26379/0?master_name=…`` names the sentinels of a primary; ``sentinel`` (JSON:
options of the connections to the sentinels themselves), ``min_other_sentinels`` and ``ssl_…`` may follow.

An address may hold a password. Call `without_password` before you show one.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlencode, urlsplit

from bridge.routing.errors import ConfigurationError

SENTINEL_PORT = 26379
#: What Celery calls them, and the ssl module -> what redis-py calls them.
CERT_REQS = {
    "none": "none",
    "optional": "optional",
    "required": "required",
    "cert_none": "none",
    "cert_optional": "optional",
    "cert_required": "required",
    str(int(ssl.CERT_NONE)): "none",
    str(int(ssl.CERT_OPTIONAL)): "optional",
    str(int(ssl.CERT_REQUIRED)): "required",
}
#: How to let the certificate be checked, for error messages.
CHECKED = "ssl_cert_reqs=required&ssl_ca_certs=FILE"
#: An address of IP 6 without a port.
_IP6 = re.compile(r"\[[0-9A-Fa-f:.]+(%25\w+)?\]")
#: What users call the address that Celery's settings hold.
BROKER = "the broker's URL"
#: How to write a password, for error messages.
ESCAPED = "write # in a password as %23, ? as %3F, @ as %40, / as %2F, : as %3A, [ as %5B and ] as %5D"


def without_password(url: str) -> str:
    """``url`` in a form that may be shown: without password and options, or parts of them.

    Only the last one of several addresses is shown: the ``;`` between them may as well be in a password.
    """
    scheme, found, rest = url.partition("://")
    if not found:
        scheme, rest = "", url
    # A password with unquoted characters may hold any text. The last @ ends it.
    login, at, place = rest.rpartition("@")
    place = place.partition("?")[0]
    host, colon, port = place.partition("/")[0].rpartition(":")
    is_host = port.isdigit() or place.startswith("/") or "," in place or _IP6.fullmatch(place.partition("/")[0])
    if colon and not is_host:
        # ``redis://:secret``: no @, but no port either.
        place = f"{host}:***"
    user = login.partition(":")[0]
    masked = f"{user}:***@" if ":" in login else f"{login}@" if at else ""
    return f"{scheme}{found}{masked}{place}"


def check_login(url: str, called: str = BROKER) -> None:
    """Raises `ConfigurationError`, which shows nothing of ``url``, where a client may read a piece of the password as
    the host. ``called``: what the user calls the URL.

    A client ends the login and the host at the first ``/``, ``?`` or ``#``. Errors about a host that cannot be reached
    show it.
    """
    rest = url.partition("://")[2]
    place, _, query = rest.partition("?")
    host, _, path = place.partition("/")
    # The path of a socket without a login may have an @.
    pieces = query + path if host else query
    if "#" in rest or "@" in pieces:
        raise ConfigurationError(f"{called} has a # in it, or an @ behind its host: {ESCAPED}")


def normalised(url: str, secure: Mapping[str, str] | None = None) -> str:
    """``url`` in the form of redis-py. Celery writes Unix sockets as ``redis+socket://``, redis-py as ``unix://``.

    Every client is made of such a text, so what `check_login` refuses never reaches one.
    """
    check_login(url)
    place, mark, options = url.partition("?")
    # kombu takes the number of a socket's database with and without a / before it.
    options = re.sub("virtual_host=(/|%2[Ff])?", "db=", options)
    url = f"{re.sub('^redis[+]socket://', 'unix://', place)}{mark}{options}"
    if secure and url.startswith("redis://"):
        url = f"rediss{url.removeprefix('redis')}"
    if not url.startswith("rediss://"):
        return url
    parts = parsed(url)
    query = {**{name: values[0] for name, values in parse_qs(parts.query).items()}, **(secure or {})}
    if "ssl_cert_reqs" not in query:
        raise ConfigurationError(
            "the broker's URL is rediss:// without ssl_cert_reqs, and Celery would not check the server's certificate: "
            f"add ?{CHECKED}"
        )
    query["ssl_cert_reqs"] = cert_reqs(query["ssl_cert_reqs"])
    return parts._replace(query=urlencode(query)).geturl()


def parsed(url: str, called: str = BROKER) -> SplitResult:
    """``url`` in its parts. Raises `ConfigurationError` for one that cannot be read, without showing it.

    ``called``: what the user calls it.
    """
    check_login(url, called)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        # The port may be a piece of the password. So it is not shown, nor is the error that quotes it.
        raise ConfigurationError(f"{called} has no number as its port: {ESCAPED}") from None
    return parts


def database_of(parts: SplitResult) -> str:
    """The number of the database as text; ``0`` where the URL names none."""
    found = parse_qs(parts.query).get("db")
    return found[0] if found else parts.path.strip("/") or "0"


def cert_reqs(value: Any) -> str:
    """redis-py's name for the certificate check that Celery or the ssl module calls ``value``."""
    word = str(int(value)) if isinstance(value, int) else str(value).lower()
    found = CERT_REQS.get(word)
    if found is None:
        raise ConfigurationError(f"ssl_cert_reqs must be required, optional or none, not {value!r}")
    return found


def _flag(text: str) -> bool:
    return text.lower() not in ("false", "0", "no")


def _verify_flags(text: str) -> list[ssl.VerifyFlags]:
    return [ssl.VerifyFlags[name.strip()] for name in text.strip("[]").split(",") if name]


#: Options of TLS that redis-py takes as objects -> what makes them of their texts.
_TLS_OBJECTS: dict[str, Callable[[str], Any]] = {
    "ssl_check_hostname": _flag,
    "ssl_validate_ocsp": _flag,
    "ssl_validate_ocsp_stapled": _flag,
    "ssl_min_version": lambda text: ssl.TLSVersion(int(text)),
    "ssl_include_verify_flags": _verify_flags,
    "ssl_exclude_verify_flags": _verify_flags,
}


def tls_objects(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``options`` that are texts, and that redis-py takes as objects. It makes few of them itself.

    Raises ValueError, worded as redis-py's own.
    """
    found = {}
    for name, made_of in _TLS_OBJECTS.items():
        text = options.get(name)
        if isinstance(text, str):
            try:
                found[name] = made_of(text)
            except (ValueError, KeyError):
                raise ValueError(f"Invalid value for '{name}'") from None
    return found


def sentinels_of(address: str) -> tuple[list[tuple[str, int]], dict[str, Any], dict[str, Any]]:
    """(sentinels, options of `redis.sentinel.Sentinel`, of the connections to the primary) of a ``sentinel://`` text.

    Raises `ConfigurationError`, which shows nothing of the address, for one that is not of that form.
    """
    check_login(address)
    rest = address.removeprefix("sentinel://")
    place, _, query = rest.partition("?")
    login, _, place = place.rpartition("@")
    hosts, _, database = place.partition("/")
    given = {name: values[0] for name, values in parse_qs(query).items()}
    user, _, password = login.partition(":")
    try:
        sentinels = []
        for host in hosts.split(","):
            name, colon, port = host.rpartition(":")
            sentinels.append((name, int(port)) if colon else (host, SENTINEL_PORT))
        primary: dict[str, Any] = {"db": int(database or 0)}
        manager = {
            "service_name": given.pop("master_name"),
            "min_other_sentinels": int(given.pop("min_other_sentinels", 0)),
            "sentinel_kwargs": json.loads(given.pop("sentinel", "{}")),
        }
    except (KeyError, ValueError):
        raise ConfigurationError(
            "a sentinel:// address must be sentinel://[user:password@]HOST:PORT,HOST:PORT/DB?master_name=NAME"
        ) from None
    if user:
        primary["username"] = unquote(user)
    if password:
        primary["password"] = unquote(password)
    if given:
        primary.update({"ssl": True, **given, **tls_objects(given)})
    return sentinels, manager, primary
