"""Where a lane's server is: Celery's ways of saying it, turned into one text that the bridge's own clients take.

| Celery's configuration | the address |
|---|---|
| ``redis://``, ``rediss://…?ssl_…``, ``redis+socket://`` | the same |
| ``redis://`` and ``broker_use_ssl = {…}`` | ``rediss://…?ssl_…`` |
| ``sentinel://h1;sentinel://h2/0`` and ``broker_transport_options`` | ``sentinel://h1,h2/0?master_name=…&sentinel=…`` |

An address may hold a password: call `without_password` before it is shown.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, quote, urlencode

from bridge.routing.address import (
    SENTINEL_PORT,
    cert_reqs,
    database_of,
    normalised,
    parsed,
    sentinels_of,
    without_password,
)
from bridge.routing.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["address_of", "database_of", "normalised", "parsed", "sentinels_of", "without_password"]

#: Scheme -> its port where a URL names none; of the others it is that of Redis.
PORTS = {"sentinel": SENTINEL_PORT}


def address_of(app: Celery) -> str:
    """The address of ``app``'s broker. Raises `ConfigurationError`, one line, for what cannot work."""
    urls = _urls(broker_url(app))
    options = _transport_options(app)
    parts = [parsed(url) for url in urls]
    for part in parts:
        _refuse_other_database(part)
    secure = _broker_ssl(app)
    if parts[0].scheme == "sentinel":
        return _sentinel(parts, options, secure)
    if len(urls) > 1:
        raise ConfigurationError(
            "the broker's URL names several servers: a lane lives in one; for a failover use sentinel:// URLs"
        )
    return normalised(urls[0], secure)


def broker_url(app: Celery) -> Any:
    """What Celery publishes to, as it is set: a text or a list. Raises `ConfigurationError` where workers consume from
    another database, and where the app names none.
    """
    conf = app.conf
    write: Any = conf.broker_write_url or conf.broker_url
    read: Any = conf.broker_read_url or conf.broker_url
    if not write or not read:
        # Celery would take AMQP on this machine, and the bridge must not choose a server that Celery does not use.
        raise ConfigurationError("the app names no broker: set broker_url, as in redis://localhost:6379/0")
    if write != read and [*map(place_of, _urls(write))] != [*map(place_of, _urls(read))]:
        raise ConfigurationError(
            "Celery would publish to one database and consume from another: a lane lives in one; set broker_url alone, "
            "or let broker_read_url and broker_write_url name the same servers and database"
        )
    return write


def check_broker_options(app: Celery) -> None:
    """Raises `ConfigurationError` for an option in the URL that redis-py knows, and Celery's transport does not: Celery
    raises a TypeError when it connects.
    """
    for part in map(parsed, _urls(broker_url(app))):
        known = {"virtual_host"} if part.scheme == "redis+socket" else set()
        other = [name for name in parse_qs(part.query) if name not in known and not name.startswith("ssl_")]
        if other:
            raise ConfigurationError(
                f"the broker's URL has an option that Celery does not take: {other[0]}; put options of connections "
                "into broker_transport_options"
            )


def _urls(given: Any) -> list[str]:
    return given.split(";") if isinstance(given, str) else [part for one in given for part in str(one).split(";")]


def place_of(url: str) -> tuple[str, int, str]:
    """The host, or the path of a socket; the port; the database. Users, passwords and options may differ."""
    parts = parsed(url)
    if parts.scheme in ("redis+socket", "unix"):
        query = parse_qs(parts.query)
        return parts.path, 0, [*query.get("virtual_host", ()), *query.get("db", ()), "0"][0].strip("/")
    return parts.hostname or "", parts.port or PORTS.get(parts.scheme, 6379), database_of(parts)


def _transport_options(app: Celery) -> Mapping[str, Any]:
    options = app.conf.broker_transport_options or {}
    if not isinstance(options, Mapping):
        raise ConfigurationError("broker_transport_options must be a dict")
    if options.get("global_keyprefix"):
        raise ConfigurationError(
            "broker_transport_options: global_keyprefix cannot be used with the bridge: a dispatch pushes to a "
            "worker's queue under its own name; use another database, or another bridge_stream"
        )
    steps = options.get("priority_steps")
    if isinstance(steps, Collection) and steps and 0 not in steps:
        raise ConfigurationError(
            "broker_transport_options: priority_steps must contain 0: without it no worker reads the queue that a "
            "dispatch pushes to, which has no priority"
        )
    return options


def _refuse_other_database(part: SplitResult) -> None:
    """Refuses a database that Celery and redis-py read differently: a lane would be in two databases."""
    if "db" in parse_qs(part.query):
        raise ConfigurationError(
            "the broker's URL has db=, which Celery does not read: write redis://HOST:PORT/DB, or for a socket "
            "redis+socket:///PATH?virtual_host=DB"
        )
    database = part.path.strip("/")
    if part.scheme in ("redis", "rediss", "sentinel") and database and not database.isdigit():
        raise ConfigurationError("the database in the broker's URL must be a number, as in redis://HOST:PORT/0")


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
    texts = {name: _ssl_text(name, value) for name, value in given.items() if value is not None}
    texts["ssl_cert_reqs"] = cert_reqs(given["ssl_cert_reqs"])
    return texts


def _ssl_text(name: str, value: Any) -> str:
    """An option of ``broker_use_ssl`` as a text, which `bridge.routing.address.tls_objects` reads."""
    try:
        if name == "ssl_min_version":
            return str(int(ssl.TLSVersion(value)))
        if name in ("ssl_include_verify_flags", "ssl_exclude_verify_flags"):
            return ",".join(str(ssl.VerifyFlags(flag).name) for flag in value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"broker_use_ssl: {name} has a value that cannot work") from None
    if not isinstance(value, str | int | os.PathLike):
        raise ConfigurationError(
            f"broker_use_ssl: {name} is no text, number or path: the bridge's own connections cannot use it"
        )
    return str(value)


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
