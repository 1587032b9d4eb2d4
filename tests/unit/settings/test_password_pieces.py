"""No error about a server shows a piece of its password, whatever characters that has, and however it was written."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator
from urllib.parse import quote, unquote

import pytest
from celery import Celery

from bridge.link.connections import check_server, client
from bridge.routing.errors import TicketBridgeError
from bridge.settings.app import read_settings
from bridge.spark import RedisStreamDataSource
from bridge.spark.wire.address import check_url, connect, without_secrets

PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
#: Port 1 has no server. Text in place of it would be asked for as a host.
FORMS = [
    "redis://:{}@127.0.0.1:1/0",
    "redis://user:{}@127.0.0.1:1/0",
    "redis://:{}@127.0.0.1:1",
    "rediss://:{}@127.0.0.1:1/0?ssl_cert_reqs=none",
    "redis+socket://:{}@/nowhere/redis.sock",
    "unix://:{}@/nowhere/redis.sock",
    "sentinel://:{}@127.0.0.1:1/0",
    "{}@127.0.0.1:1/0",
    "{}://x@127.0.0.1:1/0",
]
ESCAPES = ("%23", "%3F", "%40", "%2F")


#: What stands before and behind a character: letters, digits, what looks like a host.
AROUND = [("hunter", "secret"), ("12", ""), ("u@secret", "x")]


def passwords(form: str) -> Iterator[str]:
    """Passwords for a URL of this form. Each has every printable character. What stands around it is another one for
    each form in turn.
    """
    drawn = random.Random(form)
    for place, one in enumerate(PRINTABLE, FORMS.index(form)):
        start, end = AROUND[place % len(AROUND)]
        yield start + one + end
    for _ in range(20):
        yield "".join(drawn.choices(PRINTABLE, k=drawn.randint(4, 24)))
    for _ in range(20):
        yield "".join(drawn.choices("#?@/:;[]%12ab", k=drawn.randint(4, 16)))
    for _ in range(2):
        yield "".join(drawn.sample(PRINTABLE, len(PRINTABLE)))


def read(url: str) -> str:
    """The address that the bridge makes of the broker's URL."""
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.broker_transport_options = {"master_name": "m"}
    return read_settings(app).redis_url


def password_of(url: str) -> object:
    """The password that a client of the bridge sends."""
    return client(read(url)).connection_pool.connection_kwargs["password"]


def only_read(url: str) -> str:
    read(url)
    return ""


def said_by_celery_s_settings(url: str) -> str:
    """What is said of ``url`` as the broker's; of one that is accepted, when nothing answers there."""
    found = read(url)
    check_server(client(found, timeout_s=0.5), found)
    return ""


def said_by_bridge_redis_url(url: str) -> str:
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.bridge_redis_url = url
    found = read_settings(app).redis_url
    check_server(client(found, timeout_s=0.5), found)
    return ""


def said_by_spark(url: str) -> str:
    shown = repr(RedisStreamDataSource({"url": url})) + without_secrets(url)
    try:
        connect(check_url(url, called="--url"))
    except TicketBridgeError as exc:
        return f"{shown} {exc}"
    return shown


def said(by: Callable[[str], str], url: str) -> str:
    try:
        return by(url)
    except TicketBridgeError as exc:
        return str(exc)


def pieces(password: str, usual: str) -> Iterator[str]:
    """The pieces of four characters that ``usual`` has not: what is said of any password."""
    for start in range(len(password) - 3):
        if (piece := password[start : start + 4]) not in usual:
            yield piece


@pytest.mark.parametrize("by", [said_by_celery_s_settings, said_by_bridge_redis_url, said_by_spark])
@pytest.mark.parametrize("form", FORMS)
def test_no_error_shows_a_piece_of_a_password(by: Callable[[str], str], form: str) -> None:
    shown = []
    usual = said(by, form.format("")) + said(by, form.format("pw")) + said(by, form.format("1#"))
    for password in passwords(form):
        text = said(by, form.format(password))
        assert "\n" not in text
        shown += [(password, piece, text) for piece in pieces(password, usual) if piece in text]
    assert shown == []


@pytest.mark.parametrize("form", FORMS[:7])
def test_a_password_is_used_as_it_is_written_or_refused_with_a_line_on_how_to_write_it(form: str) -> None:
    for password in passwords(form):
        refused = said(only_read, form.format(password))
        if refused:
            # Celery takes what follows a ; for another server.
            assert ";" in password or all(escape in refused for escape in ESCAPES), password
            assert set(password) & set("#?/[];@"), password
        else:
            assert password_of(form.format(password)) == unquote(password)


@pytest.mark.parametrize("form", FORMS[:7])
def test_a_password_that_is_escaped_may_have_every_character(form: str) -> None:
    for password in passwords(form):
        assert password_of(form.format(quote(password, safe=""))) == password


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter@secret#x@localhost:22010/0",
        "redis://:hunter@secret?x@localhost:22010/0",
        "redis://:hunter@secret/x@localhost:22010/0",
        "redis://:12#x@localhost/0",
        "redis://:pw@localhost/0#x",
        "redis://:pw@localhost/0?client_name=x@y",
    ],
)
def test_a_url_that_a_client_would_read_otherwise_is_refused_and_not_quoted(url: str) -> None:
    for by in (said_by_celery_s_settings, said_by_bridge_redis_url):
        assert said(by, url) == (
            "the broker's URL has a # in it, or an @ behind its host: write # in a password as %23, ? as %3F, @ as "
            "%40, / as %2F, : as %3A, [ as %5B and ] as %5D"
        )


def test_an_at_sign_in_the_path_of_a_socket_is_no_password() -> None:
    assert read("redis+socket:///run/a@b.sock?virtual_host=2") == "unix:///run/a@b.sock?db=2"


def test_every_printable_character_is_drawn() -> None:
    for form in FORMS:
        assert set("".join(passwords(form))) >= set(string.printable) - set(string.whitespace)
