"""The server's address from Celery's settings, and which parts of it may be shown."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from inspect import signature
from typing import Any

import pytest
from celery import Celery
from kombu import Connection as Link
from redis.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection

from bridge.link.connections import client
from bridge.routing.async_connection import async_client
from bridge.routing.errors import ConfigurationError
from bridge.settings.address import without_password
from bridge.settings.app import read_settings

CA = "/etc/ca.pem"


def address(broker: Any, **settings: Any) -> str:
    made = Celery("shop", broker=broker, set_as_current=False)
    made.conf.update(settings)
    return read_settings(made).redis_url


def refusal(broker: Any, **settings: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        address(broker, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:6379/0",
        "redis://u:p%40@h/3",
        "redis+socket:///run/r.sock?virtual_host=2",
        "redis://[::1]:7/0",
    ],
)
def test_a_plain_url_is_unchanged_except_for_sockets(url: str) -> None:
    assert address(url) == url.replace("redis+socket", "unix").replace("virtual_host", "db")


@pytest.mark.parametrize("settings", [{}, {"broker_url": ""}, {"bridge_redis_url": "redis://h/0"}], ids=str)
def test_an_app_that_names_no_broker_is_refused(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery would take a server of AMQP, so no server that the bridge chose would be right."""
    monkeypatch.delenv("CELERY_BROKER_URL", raising=False)
    assert refusal(None, **settings) == "the app names no broker: set broker_url, as in redis://localhost:6379/0"
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://h/0")
    assert address(None, **settings) == "redis://h/0"


def test_tls_in_the_url_is_checked_as_the_url_says() -> None:
    made = client(address(f"rediss://:pw@h:6380/1?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs={CA}"))
    options = made.connection_pool.connection_kwargs
    assert issubclass(made.connection_pool.connection_class, SSLConnection)
    assert (options["ssl_cert_reqs"], options["ssl_ca_certs"], options["password"]) == ("required", CA, "pw")
    assert (options["host"], options["port"], options["db"]) == ("h", 6380, 1)


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_tls_in_broker_use_ssl_is_checked_as_it_says(scheme: str) -> None:
    use = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": CA, "ssl_check_hostname": False}
    made = client(address(f"{scheme}://:p%2Fw@h:6380/1", broker_use_ssl=use))
    options = made.connection_pool.connection_kwargs
    assert issubclass(made.connection_pool.connection_class, SSLConnection)
    assert (options["ssl_cert_reqs"], options["ssl_ca_certs"], options["ssl_check_hostname"]) == ("required", CA, False)
    assert options["password"] == "p/w"


@pytest.mark.parametrize("value", ["none", "optional", "required", ssl.CERT_NONE, ssl.CERT_OPTIONAL, "CERT_REQUIRED"])
def test_every_way_to_say_what_to_check_is_understood(value: Any) -> None:
    found = address("redis://h", broker_use_ssl={"ssl_cert_reqs": value})
    assert found == f"rediss://h?ssl_cert_reqs={str(getattr(value, 'name', value)).lower().removeprefix('cert_')}"


@pytest.mark.parametrize("make", [client, async_client])
@pytest.mark.parametrize("scheme", ["redis", "rediss", "sentinel"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl_min_version", ssl.TLSVersion.TLSv1_2),
        ("ssl_validate_ocsp", False),
        ("ssl_validate_ocsp", True),
        ("ssl_validate_ocsp_stapled", False),
        ("ssl_check_hostname", False),
        ("ssl_include_verify_flags", [ssl.VerifyFlags.VERIFY_X509_STRICT]),
        ("ssl_exclude_verify_flags", [ssl.VerifyFlags.VERIFY_X509_STRICT, ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF]),
        ("ssl_ciphers", "ECDHE+AESGCM"),
    ],
)
def test_options_of_tls_come_as_the_objects_that_they_are(
    name: str, value: Any, scheme: str, make: Callable[[str], Any]
) -> None:
    if name not in signature(SSLConnection.__init__).parameters:
        pytest.skip(f"this redis-py has no {name}")
    use = {"ssl_cert_reqs": ssl.CERT_REQUIRED, name: value}
    found = address(f"{scheme}://h:1/0", broker_use_ssl=use, broker_transport_options={"master_name": "m"})
    assert make(found).connection_pool.connection_kwargs[name] == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl_min_version", "TLSv1.2"),
        ("ssl_min_version", 3),
        ("ssl_include_verify_flags", ssl.CERT_REQUIRED),
        ("ssl_include_verify_flags", ["strict"]),
        ("ssl_ocsp_context", object()),
        ("ssl_ca_data", b"DER"),
    ],
)
@pytest.mark.parametrize("scheme", ["redis", "sentinel"])
def test_an_option_of_tls_that_cannot_be_used_is_named(scheme: str, name: str, value: Any) -> None:
    use = {"ssl_cert_reqs": ssl.CERT_REQUIRED, name: value}
    said = refusal(f"{scheme}://h", broker_use_ssl=use, broker_transport_options={"master_name": "m"})
    assert said.startswith(f"broker_use_ssl: {name} ")


@pytest.mark.parametrize("name", ["ssl_min_version", "ssl_include_verify_flags"])
def test_a_bad_value_of_such_an_option_in_a_url_is_named(name: str) -> None:
    said = refusal(f"rediss://h/0?ssl_cert_reqs=required&{name}=mine")
    assert said == f"the broker's URL has an option that cannot work: {name}"


def test_tls_that_checks_nothing_without_saying_so_is_refused() -> None:
    assert "add ?ssl_cert_reqs=required" in refusal("rediss://:secret@h/0")
    assert "ssl_cert_reqs" in refusal("redis://h/0", broker_use_ssl={"ssl_ca_certs": CA})
    assert "plain text" in refusal("redis://h/0", broker_use_ssl=True)
    assert "required, optional or none" in refusal("rediss://h/0?ssl_cert_reqs=maybe")


def test_sentinels_are_asked_for_the_primary_as_kombu_asks_them() -> None:
    options = {"master_name": "my master", "sentinel_kwargs": {"password": "s&=?"}, "min_other_sentinels": 1}
    found = address("sentinel://u:p%40w@h1:1/2;sentinel://u:p%40w@h2/2", broker_transport_options=options)
    made = client(found, timeout_s=3.0)
    pool: Any = made.connection_pool
    assert issubclass(pool.connection_class, SentinelManagedConnection)
    assert pool.service_name == "my master"
    primary = pool.connection_kwargs
    assert (primary["username"], primary["password"], primary["db"], primary["socket_timeout"]) == ("u", "p@w", 2, 3.0)
    manager = pool.sentinel_manager
    assert manager.min_other_sentinels == 1
    asked = [one.connection_pool.connection_kwargs for one in manager.sentinels]
    assert [(one["host"], one["port"]) for one in asked] == [("h1", 1), ("h2", 26379)]
    assert {one["password"] for one in asked} == {"s&=?"}
    assert "p@w" not in without_password(found)
    assert "s&" not in without_password(found)
    assert without_password(found) == "sentinel://u:***@h1:1,h2:26379/2"


def test_sentinels_and_tls() -> None:
    use = {"ssl_cert_reqs": "required", "ssl_ca_certs": CA}
    options = {"master_name": "m", "sentinel_kwargs": {"ssl": True, "ssl_ca_certs": CA}}
    made = client(address("sentinel://h", broker_transport_options=options, broker_use_ssl=use))
    pool: Any = made.connection_pool
    assert issubclass(pool.connection_class, SentinelManagedSSLConnection)
    assert pool.connection_kwargs["ssl_ca_certs"] == CA
    [asked] = pool.sentinel_manager.sentinels
    assert issubclass(asked.connection_pool.connection_class, SSLConnection)


def test_sentinels_that_cannot_work_are_refused() -> None:
    options = {"master_name": "m"}
    assert "master_name" in refusal("sentinel://h")
    assert "same user" in refusal("sentinel://h1/0;sentinel://h2/1", broker_transport_options=options)
    assert "same user" in refusal("sentinel://:a@h1;sentinel://:b@h2", broker_transport_options=options)
    assert "joined by ;" in refusal("sentinel://h1;redis://h2", broker_transport_options=options)
    assert "leave it unset" in refusal(
        "sentinel://h1", broker_transport_options=options, bridge_redis_url="redis://127.0.0.1"
    )


@pytest.mark.parametrize("steps", [[1, 5, 9], (3,), range(1, 4)])
def test_priorities_without_that_of_a_dispatch_are_refused(steps: Any) -> None:
    assert "priority_steps must contain 0" in refusal("redis://h", broker_transport_options={"priority_steps": steps})


def test_other_priorities_are_accepted() -> None:
    for steps in ([0, 5], range(10), [], None):
        assert address("redis://h", broker_transport_options={"priority_steps": steps}) == "redis://h"


def test_the_lane_is_where_celery_publishes_and_consumes() -> None:
    there = "redis://h:7/1"
    assert address(None, broker_read_url=there, broker_write_url=there) == there
    assert address("redis://h:6/0", broker_read_url=there, broker_write_url=there) == there
    assert address(there, broker_write_url="redis://writer:x@h:7/1") == "redis://writer:x@h:7/1"
    assert address(there, broker_read_url="redis://reader:x@h:7/1") == there
    assert address("redis://h", broker_read_url="redis://h:6379/0") == "redis://h"
    sockets = {"broker_read_url": "redis+socket:///s?virtual_host=/3", "bridge_redis_url": "unix:///s?db=3"}
    assert address("redis+socket:///s?virtual_host=3", **sockets) == "unix:///s?db=3"


def test_an_address_of_the_lanes_own_is_the_brokers() -> None:
    for broker, own in (("redis://h", "redis://h/1"), ("redis+socket:///s?virtual_host=3", "unix:///t?db=3")):
        assert "must be the broker's server and database" in refusal(broker, bridge_redis_url=own)


@pytest.mark.parametrize(
    "other", ["redis://h:7/2", "redis://h:8/1", "redis://g:7/1", "redis+socket:///h", ["redis://h"]]
)
@pytest.mark.parametrize("name", ["broker_read_url", "broker_write_url"])
def test_a_lane_that_would_be_in_two_places_is_refused(name: str, other: Any) -> None:
    assert "publish to one database and consume from another" in refusal("redis://h:7/1", **{name: other})


def test_settings_that_would_move_the_lane_to_another_server_are_refused() -> None:
    assert "global_keyprefix" in refusal("redis://h", broker_transport_options={"global_keyprefix": "x:"})
    assert "several servers" in refusal("redis://h1;redis://h2")
    assert "several servers" in refusal(["redis://h1", "redis://h2"])
    assert "not amqp://" in refusal("amqp://h1")


def test_a_socket_is_reached_by_its_path() -> None:
    pool = client(address("redis+socket:///run/r.sock")).connection_pool
    assert issubclass(pool.connection_class, UnixDomainSocketConnection)
    assert pool.connection_kwargs["path"] == "/run/r.sock"


SECRET = "sesame"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:6379/0", "redis://h:6379/0"),
        (f"redis://:{SECRET}@h:6379/0", "redis://:***@h:6379/0"),
        (f"redis://u:{SECRET}@h", "redis://u:***@h"),
        (f"redis://:a@{SECRET}@h", "redis://:***@h"),
        (f"redis://:{SECRET}#/?:x@h/0", "redis://:***@h/0"),
        (f"redis://h:6379/0?password={SECRET}", "redis://h:6379/0"),
        (f"redis://{SECRET}", f"redis://{SECRET}"),  # a host, as far as anybody can tell
        (f"redis://:{SECRET}", "redis://:***"),
        (f"redis://u:{SECRET}/x", "redis://u:***"),
        ("redis://[::1]", "redis://[::1]"),
        ("redis://[::1]/0", "redis://[::1]/0"),
        ("redis://[2001:db8::1]:7/0", "redis://[2001:db8::1]:7/0"),
        ("redis://[fe80::1%25eth0]/0", "redis://[fe80::1%25eth0]/0"),
        (f"redis://:{SECRET}@[::1]/1", "redis://:***@[::1]/1"),
        ("redis://:[::1]", "redis://:[::***"),
        ("redis://u:[ab:12]/x", "redis://u:[ab:***"),
        (f"sentinel://:{SECRET}@h1:1;sentinel://:{SECRET}@h2/0", "sentinel://:***@h2/0"),
        (f"redis://:a;{SECRET}@h/0", "redis://:***@h/0"),
        (f"u:{SECRET}@h", "u:***@h"),
        ("unix:///run/r.sock", "unix:///run/r.sock"),
        (f"unix://u:{SECRET}@/run/r.sock?db=1", "unix://u:***@/run/r.sock"),
    ],
)
def test_a_shown_url_has_no_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+socket:///tmp/s.sock?db=8", "has db=, which Celery does not read"),
        ("redis://localhost:6379?db=7", "has db=, which Celery does not read"),
        ("redis://localhost:6379/3?db=7", "has db=, which Celery does not read"),
        ("redis://localhost:6379/xx", "must be a number"),
    ],
)
def test_a_database_that_celery_would_not_use_is_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        address(url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://localhost:6379/0?nope=1", "an option that cannot work: nope"),
        ("redis://localhost:6379/0?ssl_cert_reqs=none", "an option that cannot work: ssl_cert_reqs"),
        ("rediss://localhost:6379/0?ssl_cert_reqs=required&ssl_nope=1", "an option that cannot work: ssl_nope"),
        ("redis+socket:///tmp/s.sock?nope=1", "an option that cannot work: nope"),
        ("redis+socket:///tmp/s.sock?virtual_host=x", "an option that cannot work: db"),
        ("redis://localhost:6379/0?parser_class=x", "an option that cannot work"),
        ("redis://localhost:6379/0?retry=3", "an option that cannot work: retry needs an object"),
        ("rediss://localhost:6379/0?ssl_cert_reqs=required&retry=3", "cannot work: retry needs an object"),
        ("redis://localhost:6379/0?retry_on_error=x", "cannot work: retry_on_error needs an object"),
        ("redis://localhost:6379/0?event_dispatcher=x", "cannot work: event_dispatcher needs an object"),
        (
            "redis://localhost:6379/0?socket_keepalive_options=x",
            "socket_keepalive_options needs an object",
        ),
        ("redis://localhost:6379/0?socket_type=1", "cannot work: socket_type needs an object"),
        ("redis+socket:///tmp/s.sock?credential_provider=x", "credential_provider, which the bridge's own connections"),
        ("redis://h/0?credential_provider=module.Class", "credential_provider, which the bridge's own connections"),
        ("redis://localhost:6379/0?encoding=utf-9", "an option that cannot work: encoding"),
        ("redis://localhost:6379/0?socket_timeout=x", "an option that cannot work: socket_timeout"),
        ("redis://localhost:6379/0?socket_timeout=-1", "socket_timeout must be above 0"),
        ("redis://localhost:6379/0?socket_connect_timeout=0", "socket_connect_timeout must be above 0"),
    ],
)
def test_an_option_of_a_url_that_cannot_work_is_refused_by_its_name(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        address(url)


@pytest.mark.parametrize("url", ["redis://h/0?", "rediss://h/0?ssl_cert_reqs=none&", "redis+socket:///s?"])
@pytest.mark.parametrize("value", ["1", "true", "x"])
def test_celery_takes_every_option_that_is_accepted(url: str, value: str) -> None:
    kinds = (AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection)
    names = {name for kind in (*kinds, Link._init_params) for name in signature(kind).parameters} | {"virtual_host"}
    for name in sorted(names - {"self", "kwargs", "ssl_cert_reqs"}):
        with suppress(ConfigurationError):
            address(f"{url}{name}={value}")
            Link(f"{url}{name}={value}")


@pytest.mark.parametrize("number", ["3", "/3", "%2F3"])
def test_a_socket_may_have_another_database(number: str) -> None:
    assert address(f"redis+socket:///s?virtual_host={number}") == "unix:///s?db=3"


def test_a_piece_of_a_password_is_not_taken_for_the_name_of_an_option() -> None:
    with pytest.raises(ConfigurationError) as caught:
        address("redis://:1?hush=1@localhost:6379/0")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "broker",
    [
        "redis://a..b:1/0",
        "redis://\N{LATIN SMALL LETTER A WITH DIAERESIS}..b/0",
        f"redis://{'x' * 64}/0",
        "redis://a%00b/0",
        "redis+socket:///run/a%00b.sock",
        "sentinel://h:1/0;sentinel://a..b:1/0",
    ],
    ids=["empty label", "not ASCII", "long label", "NUL", "NUL in a path", "sentinel"],
)
def test_a_host_that_cannot_be_looked_up_is_refused_without_being_shown(broker: str) -> None:
    said = refusal(broker, broker_transport_options={"master_name": "m"})
    assert said == "the broker's URL has a host or a path that no server can have"


@pytest.mark.parametrize(
    "host", ["h", "a_b", "\N{LATIN SMALL LETTER A WITH DIAERESIS}.b", "::1", "fe80::1%25eth0", "x" * 63]
)
def test_every_other_host_is_accepted(host: str) -> None:
    shown = f"[{host}]" if ":" in host else host
    assert address(f"redis://{shown}:1/0") == f"redis://{shown}:1/0"


def test_transport_options_that_are_no_dict_are_refused() -> None:
    assert refusal("redis://h/0", broker_transport_options=["visibility_timeout"]).startswith("broker_transport_opt")
