"""``bridge_on_dead_notify``: what cannot work is refused in one line that shows no secret."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

import bridge
from bridge.app.installed import bridge_of
from bridge.routing.errors import ConfigurationError
from bridge.settings.dead_notify import secret_bytes

SECRET = "0123456789abcdef-secret"


def notify(value: Any) -> Any:
    app = Celery("shop", broker="redis://localhost:1/0", set_as_current=False)
    bridge.install(app)
    app.conf.bridge_on_dead_notify = value
    return bridge_of(app).settings.on_dead_notify


def test_without_a_url_nobody_is_told() -> None:
    assert not notify({})
    assert not notify({"rate": 5})
    found = notify({"url": "https://hooks.example/x?y=1", "secret": SECRET, "rate": 5})
    assert found
    assert (found.rate, found.payload, found.timeout) == (5.0, False, 10.0)
    assert SECRET not in repr(found)


def test_a_secret_is_a_text_or_base64() -> None:
    assert secret_bytes(SECRET) == SECRET.encode()
    assert secret_bytes("whsec_MDEyMzQ1Njc4OWFiY2RlZg==") == b"0123456789abcdef"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"url": "https://h/"}, "bridge_on_dead_notify: must have a secret"),
        ({"url": "https://h/", "secret": "short-secret"}, "bridge_on_dead_notify.secret: must have at least 16 bytes"),
        ({"url": "https://h/", "secret": "whsec_c2VjcmV0"}, "must have at least 16 bytes"),
        ({"url": "https://h/", "secret": "whsec_no base64 secret"}, "the rest is no base64"),
        ({"url": "ftp://h/", "secret": SECRET}, "bridge_on_dead_notify.url: must be http://HOST"),
        ({"url": "https:///x", "secret": SECRET}, "must be http://HOST"),
        ({"url": "https://h:0/", "secret": SECRET}, "must be http://HOST"),
        ({"url": "https://h:x/", "secret": SECRET}, "must be http://HOST"),
        ({"url": "https://h/a b", "secret": SECRET}, "must be http://HOST"),
        ({"url": "https://h/a\r\nX: y", "secret": SECRET}, "must be http://HOST"),
        ({"url": "https://me:secret@h/", "secret": SECRET}, "must have no user and no password"),
        ({"url": "https://h/", "secret": SECRET, "rate": 0}, "bridge_on_dead_notify.rate: input should be greater"),
        ({"url": "https://h/", "secret": SECRET, "rates": 1}, "did you mean bridge_on_dead_notify.rate?"),
        ({"url": 5, "secret": SECRET}, "bridge_on_dead_notify.url: input should be a valid string"),
        ("https://secret", "bridge_on_dead_notify: input should be a valid dictionary"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line_without_a_secret(value: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        notify(value)
    said = str(caught.value)
    assert says in said
    assert "\n" not in said
    assert "secret@" not in said
    assert SECRET not in said
    assert "short-secret" not in said
