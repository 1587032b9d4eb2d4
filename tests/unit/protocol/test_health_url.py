"""Which health URLs a master may ask."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from bridge.protocol.health_url import checked_health_url
from bridge.routing.errors import InputError

LOOPBACK = ("127.0.0.0/8", "::1/128")


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "address"),
    [
        ("http://127.0.0.1:8000/health?a=b", "127.0.0.1", 8000, "/health?a=b", "127.0.0.1"),
        ("http://127.0.0.1", "127.0.0.1", 80, "/", "127.0.0.1"),
        ("https://[::1]/x", "::1", 443, "/x", "::1"),
        ("http://[::ffff:127.0.0.1]:1/", "::ffff:127.0.0.1", 1, "/", "::ffff:127.0.0.1"),
    ],
)
def test_an_address_in_the_list_may_be_asked(url: str, host: str, port: int, path: str, address: str) -> None:
    found = checked_health_url(url, LOOPBACK)
    assert (found.host, found.port, found.path, found.address) == (host, port, path, address)


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:10.0.0.1]/",
        "http://0.0.0.0/",
        "http://[::]/",
        # Other ways to write 10.0.0.1 and 169.254.169.254.
        "http://167772161/",
        "http://0xa9fea9fe/",
    ],
)
def test_an_address_that_is_not_in_the_list_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="is in no network of bridge_http_health_networks"):
        checked_health_url(url, LOOPBACK)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://",
        "http:///path",
        "//127.0.0.1/",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_FLUSHALL",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:0/",
        "http://user:secret@127.0.0.1/",
        "http://127.0.0.1/#part",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/\r\nX: y",
        "http://127.0.0.1/ü",
        "http://127.0.0.1/" + "a" * 2000,
        "http://[::1/",
    ],
)
def test_what_is_no_url_of_this_kind_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="healthURL") as caught:
        checked_health_url(url, LOOPBACK)
    assert "secret" not in str(caught.value)


def test_without_networks_none_is_allowed() -> None:
    with pytest.raises(InputError, match="allows none"):
        checked_health_url("http://127.0.0.1/", ())


def test_each_address_of_a_name_must_be_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(_host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("127.0.0.1", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with pytest.raises(InputError, match=r"its address 10\.0\.0\.1 is in no network"):
        checked_health_url("http://two.example/", LOOPBACK)
