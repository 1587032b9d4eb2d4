"""An app is pointed at another server for a block, and restored after it."""

from __future__ import annotations

import ssl
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

import bridge
from bridge.testing.pointing import pointed_at

OWN = "redis://elsewhere:7000/3"
TLS = {"ssl_cert_reqs": ssl.CERT_NONE}
PLAIN = "redis://127.0.0.1:1/0"


def app_with(form: str, **settings: Any) -> Any:
    """An app with these settings, ``form``: written with a namespace, in capitals, or by `update`."""
    app = Celery("shop", set_as_current=False)
    if form == "update":
        app.conf.update(settings)
    else:
        prefix = "CELERY_" if form == "namespace" else ""
        module = SimpleNamespace(**{prefix + name.upper(): value for name, value in settings.items()})
        app.config_from_object(module, namespace=prefix.rstrip("_") or None)
    return bridge.install(app)


@pytest.mark.parametrize("form", ["update", "capitals", "namespace"])
def test_the_bridges_own_url_goes_with_the_brokers(form: str) -> None:
    app = app_with(form, broker_url=OWN, bridge_redis_url=OWN)
    with pointed_at(app, PLAIN):
        assert app.bridge.settings.redis_url == PLAIN
    assert app.bridge.settings.redis_url == OWN
    assert app.conf.broker_url == OWN


@pytest.mark.parametrize("url", [PLAIN, "rediss://127.0.0.1:1/0"])
def test_tls_of_the_old_server_is_not_spoken_to_one_without_it(url: str) -> None:
    app = app_with("update", broker_url=OWN, broker_use_ssl=TLS, redis_backend_use_ssl=TLS, result_backend=OWN)
    with pointed_at(app, url):
        speaks = url.startswith("rediss:")
        assert app.bridge.settings.redis_url.startswith("rediss:") is speaks
        assert bool(app.conf.broker_use_ssl) is speaks
        assert (app.backend.connparams.get("ssl_cert_reqs") is not None) is speaks
    assert (app.conf.broker_use_ssl, app.conf.redis_backend_use_ssl) == (TLS, TLS)
    assert app.bridge.settings.redis_url.startswith("rediss:")
