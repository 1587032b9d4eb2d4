"""A server that cannot be reached by TLS: the error names the file, the option or the protocol that is wrong."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import redis
import trustme

from bridge.link.connections import check_server, client, why_unreachable
from bridge.routing.errors import ServerTooOld, ServerUnavailable

HOST = "127.0.0.1"


def said_of(url: str) -> str:
    with pytest.raises(ServerUnavailable) as caught:
        check_server(client(url, timeout_s=0.5), url)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(f"cannot reach Redis at rediss://{HOST}:")
    return said


@pytest.fixture
def answering() -> Iterator[Callable[[bytes | ssl.SSLContext], int]]:
    """``answering(reply)`` starts a server that answers with these bytes, or in TLS. Returns its port."""
    listeners: list[socket.socket] = []

    def listen(reply: bytes | ssl.SSLContext) -> int:
        listener = socket.create_server((HOST, 0))
        listeners.append(listener)

        def serve() -> None:
            connections = []
            while True:
                try:
                    connection, _ = listener.accept()
                    connections.append(connection)
                    if isinstance(reply, bytes):
                        connection.sendall(reply)
                    else:
                        connections.append(reply.wrap_socket(connection, server_side=True))
                except ssl.SSLError:
                    continue
                except OSError:
                    break
            for connection in connections:
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        return int(listener.getsockname()[1])

    yield listen
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
def test_a_missing_file_is_named_with_its_option(option: str, tmp_path: Path, answering: Callable[..., int]) -> None:
    missing = tmp_path / "missing.pem"
    url = f"rediss://{HOST}:{answering(b'')}/0?ssl_cert_reqs=required&{option}={missing}"
    said = said_of(url)
    assert f"cannot read {missing}, which {option} in the broker's URL names: No such file" in said
    assert "is it running" not in said


def test_a_file_without_a_certificate_has_an_error_of_its_own(tmp_path: Path, answering: Callable[..., int]) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("no certificate\n")
    said = said_of(f"rediss://{HOST}:{answering(b'')}/0?ssl_cert_reqs=required&ssl_ca_certs={empty}")
    assert said.endswith("; check the ssl_ options in the broker's URL")


@pytest.mark.parametrize("reply", [b"", b"-ERR Protocol error\r\n"], ids=["waits", "answers"])
def test_tls_to_a_plain_server_is_called_so(reply: bytes, answering: Callable[..., int]) -> None:
    said = said_of(f"rediss://{HOST}:{answering(reply)}/0?ssl_cert_reqs=none")
    assert "it does not answer in TLS; is it a server without TLS" in said
    assert "is it running" not in said


def test_an_untrusted_certificate_gives_an_error_that_names_the_option(answering: Callable[..., int]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(HOST).configure_cert(context)
    said = said_of(f"rediss://{HOST}:{answering(context)}/0?ssl_cert_reqs=required")
    assert "certificate verify failed" in said
    assert said.endswith("; check ssl_ca_certs in the broker's URL")


def test_a_server_that_is_down_is_still_asked_for() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    assert said_of(f"rediss://{HOST}:{port}/0?ssl_cert_reqs=none").endswith("; is it running?")


def test_a_server_that_wants_a_certificate_is_asked_about_it(answering: Callable[..., int]) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    authority.issue_cert(HOST).configure_cert(context)
    authority.configure_trust(context)
    with authority.cert_pem.tempfile() as ca:
        said = said_of(f"rediss://{HOST}:{answering(context)}/0?ssl_cert_reqs=required&ssl_ca_certs={ca}")
    assert "ssl_certfile" in said


PROTECTED = "takes other machines with a password only?"
#: A Unix socket has neither TLS nor protected mode, and a server that is not running does not open it.
FULL = "at its limit of clients (maxclients)?"


@pytest.mark.parametrize(("url", "end"), [("redis://h/0", PROTECTED), ("unix:///h", FULL)])
@pytest.mark.parametrize(
    "how",
    [
        "Connection closed by server",
        f"Error {errno.ECONNRESET} while reading from h:6379. Connection reset by peer",
        f"Error {errno.EPIPE} while writing to socket. Broken pipe",
    ],
)
def test_a_plain_server_that_hangs_up_may_speak_tls_be_protected_or_be_full(how: str, url: str, end: str) -> None:
    said = why_unreachable(redis.exceptions.ConnectionError(f"{how}."), url)
    assert said.startswith(f"{how}; is it ")
    assert said.endswith(end)


@pytest.mark.parametrize("url", ["redis://h/0", "rediss://h/0?ssl_cert_reqs=none", "unix:///h"])
def test_a_server_with_too_many_clients_is_running(url: str) -> None:
    said = why_unreachable(redis.exceptions.ConnectionError("max number of clients reached"), url)
    assert said == "max number of clients reached; raise its maxclients, or let programs end that hold connections"


@pytest.mark.parametrize(
    ("hidden", "found"),
    [({}, ()), ({"redis_version": "unknown"}, ()), ({"redis_version": ""}, ()), ({"redis_version": "7.4"}, (7, 4))],
)
def test_a_server_that_does_not_say_its_version_is_taken(hidden: dict[str, str], found: tuple[int, ...]) -> None:
    answers: Any = MagicMock()
    answers.info.return_value = hidden
    assert check_server(answers, "redis://h") == found
    answers.info.return_value = {"redis_version": "6.0.20"}
    with pytest.raises(ServerTooOld, match=r"is 6\.0\.20"):
        check_server(answers, "redis://h")
