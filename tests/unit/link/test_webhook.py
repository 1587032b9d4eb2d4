"""The signature of a notice is the one of Standard Webhooks, and every bad answer is one short text."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from bridge.link.webhook import Webhook, WebhookFailed, signature
from bridge.settings.dead_notify import DeadNotify, secret_bytes


def test_the_signature_is_that_of_the_standard() -> None:
    # The example of the specification.
    key = secret_bytes("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    found = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found == "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def answering(answer: bytes) -> Callable[[], str]:
    """A server that answers once with these bytes. Calling the result gives what a request to it failed with."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"

    def failure() -> str:
        receiver = DeadNotify(url=url, secret="0123456789abcdef", timeout=2.0)
        with pytest.raises(WebhookFailed) as caught:
            Webhook(receiver).send("id", 1, b"{}")
        return str(caught.value)

    return failure


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", "the receiver answered 500"),
        (b"HTTP/1.1 301 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", "answered 301"),
        (b"HTTP/1.1 100000 What\r\n\r\n", "no answer: "),
        (b"what is this\r\n\r\n", "no answer: "),
        (b"", "no answer: "),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n", "no answer: "),
    ],
    ids=["error", "redirect", "status", "no http", "nothing", "headers"],
)
def test_a_bad_answer_is_a_failure(answer: bytes, says: str) -> None:
    assert says in answering(answer)()
