"""Where a lane's server is: Celery's ways of saying it, turned into one text that the bridge's own clients take.

| Celery's configuration | the address |
|---|---|
| ``redis://``, ``rediss://…?ssl_…``, ``redis+socket://`` | the same |
| ``redis://`` and ``broker_use_ssl = {…}`` | ``rediss://…?ssl_…`` |
| ``sentinel://h1;sentinel://h2/0`` and ``broker_transport_options`` | ``sentinel://h1,h2/0?master_name=…&sentinel=…`` |

An address is a secret where it holds a password: whoever shows one calls `without_password` first.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlencode, urlsplit

from routing.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

DEFAULT = "redis://localhost:6379/0"
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


def without_password(url: str) -> str:
    """``url`` as it may be shown: no password, no options, and nothing that could be a piece of either."""
    return ";".join(_shown(part) for part in str(url).split(";"))


def _shown(url: str) -> str:
    scheme, found, rest = url.partition("://")
    if not found:
        scheme, rest = "", url
    # A password with unquoted characters may hold anything but what ends it: the last @.
    login, at, place = rest.rpartition("@")
    place = place.partition("?")[0]
    host, colon, port = place.partition("/")[0].rpartition(":")
    if colon and not port.isdigit() and not place.startswith("/") and "," not in place:
        # ``redis://:secret``: no @, but no port either.
        place = f"{host}:***"
    user = login.partition(":")[0]
    masked = f"{user}:***@" if ":" in login else f"{login}@" if at else ""
    return f"{scheme}{found}{masked}{place}"


def address_of(app: Celery) -> str:
    """The address of ``app``'s broker. Raises `ConfigurationError`, one line, for what cannot work."""
    raw: Any = app.conf.broker_url or DEFAULT
    urls = raw.split(";") if isinstance(raw, str) else [part for one in raw for part in str(one).split(";")]
    options = app.conf.broker_transport_options or {}
    if options.get("global_keyprefix"):
        raise ConfigurationError(
            "broker_transport_options: global_keyprefix cannot be used with the bridge: a dispatch pushes to a "
            "worker's queue under its own name; use another database, or another bridge_stream"
        )
    parts = [parsed(url) for url in urls]
    secure = _broker_ssl(app)
    if parts[0].scheme == "sentinel":
        return _sentinel(parts, options, secure)
    if len(urls) > 1:
        raise ConfigurationError(
            "the broker's URL names several servers: a lane lives in one; for a failover use sentinel:// URLs"
        )
    return normalised(urls[0], secure)


def normalised(url: str, secure: Mapping[str, str] | None = None) -> str:
    """``url`` as redis-py wants it. Celery writes Unix sockets as ``redis+socket://``, redis-py as ``unix://``."""
    url = re.sub(r"^redis\+socket://", "unix://", url).replace("virtual_host=", "db=")
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
    query["ssl_cert_reqs"] = _cert_reqs(query["ssl_cert_reqs"])
    return parts._replace(query=urlencode(query)).geturl()


def parsed(url: str) -> SplitResult:
    """``url`` in its parts. Raises `ConfigurationError` for one that cannot be read, without showing it."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        # What stands there may be a piece of the password, so it is not shown, nor is the error that quotes it.
        raise ConfigurationError(
            "the broker's URL has no number as its port; write / @ : and # in a password as %2F %40 %3A and %23"
        ) from None
    return parts


def database_of(parts: SplitResult) -> str:
    """The number of the database as text; ``0`` where the URL names none."""
    found = parse_qs(parts.query).get("db")
    return found[0] if found else parts.path.strip("/") or "0"


def _broker_ssl(app: Celery) -> dict[str, str]:
    given = app.conf.broker_use_ssl
    if not given:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            "broker_use_ssl must be a dict for Redis (ssl_cert_reqs, ssl_ca_certs, …): with True Celery connects in "
            "plain text"
        )
    if "ssl_cert_reqs" not in given:
        raise ConfigurationError("broker_use_ssl has no ssl_cert_reqs; use ssl.CERT_REQUIRED and ssl_ca_certs")
    words = {name: str(value) for name, value in given.items() if value is not None}
    words["ssl_cert_reqs"] = _cert_reqs(given["ssl_cert_reqs"])
    return words


def _cert_reqs(value: Any) -> str:
    word = str(int(value)) if isinstance(value, int) else str(value).lower()
    found = CERT_REQS.get(word)
    if found is None:
        raise ConfigurationError(f"ssl_cert_reqs must be required, optional or none, not {value!r}")
    return found


def _sentinel(parts: list[SplitResult], options: Mapping[str, Any], secure: Mapping[str, str]) -> str:
    name = options.get("master_name")
    if not name:
        raise ConfigurationError(
            'sentinel:// needs the name of the primary: broker_transport_options = {"master_name": "mymaster"}'
        )
    if any(part.scheme != "sentinel" or not part.hostname for part in parts):
        raise ConfigurationError("a broker_url with sentinels must be sentinel://HOST:PORT/DB, several joined by ;")
    first = parts[0]
    login = (first.username, first.password, database_of(first))
    if any((part.username, part.password, database_of(part)) != login for part in parts):
        # kombu takes login and database from the sentinel that it asks, so they would change with a failover.
        raise ConfigurationError(
            "all sentinel:// URLs of broker_url must have the same user, password and database, also a default one"
        )
    try:
        kwargs = json.dumps(options.get("sentinel_kwargs") or {})
    except TypeError as exc:
        raise ConfigurationError(f"sentinel_kwargs must hold texts and numbers: {exc}") from None
    hosts = ",".join(f"{part.hostname}:{part.port or SENTINEL_PORT}" for part in parts)
    query = {
        "master_name": str(name),
        "min_other_sentinels": str(options.get("min_other_sentinels", 0)),
        "sentinel": kwargs,
        **secure,
    }
    user = "" if first.username is None else first.username
    auth = "" if first.password is None else f"{user}:{first.password}@"
    return f"sentinel://{auth}{hosts}/{database_of(first)}?{urlencode(query, quote_via=quote)}"


def sentinels_of(address: str) -> tuple[list[tuple[str, int]], dict[str, Any], dict[str, Any]]:
    """(sentinels, options of `redis.sentinel.Sentinel`, of the connections to the primary) of a ``sentinel://`` address
    that `address_of` made.
    """
    rest = address.removeprefix("sentinel://")
    place, _, query = rest.partition("?")
    login, _, place = place.rpartition("@")
    hosts, _, database = place.partition("/")
    given = {name: values[0] for name, values in parse_qs(query).items()}
    sentinels = []
    for host in hosts.split(","):
        name, _, port = host.rpartition(":")
        sentinels.append((name, int(port)))
    user, _, password = login.partition(":")
    primary: dict[str, Any] = {"db": int(database)}
    if user:
        primary["username"] = unquote(user)
    if password:
        primary["password"] = unquote(password)
    manager = {
        "service_name": given.pop("master_name"),
        "min_other_sentinels": int(given.pop("min_other_sentinels")),
        "sentinel_kwargs": json.loads(given.pop("sentinel")),
    }
    if "ssl_check_hostname" in given:
        primary["ssl_check_hostname"] = given.pop("ssl_check_hostname").lower() not in ("false", "0", "no")
    if given:
        primary.update(ssl=True, **given)
    return sentinels, manager, primary
