"""An app is pointed at another server for a block, and restored after it."""

from __future__ import annotations

import asyncio
import os
import ssl
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

import bridge
from bridge.testing import recorded
from bridge.testing.pointing import VARIABLES, pointed_at

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
        assert (app.conf.broker_url, app.conf.result_backend) == (PLAIN, PLAIN)
    assert app.bridge.settings.redis_url == OWN
    assert (app.conf.broker_url, app.conf.result_backend) == (OWN, None)


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


@pytest.mark.parametrize("name", VARIABLES)
def test_what_celery_reads_before_the_settings_is_put_aside(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, OWN)
    app = app_with("update", broker_url=OWN)
    with pointed_at(app, PLAIN):
        conf = app.conf
        urls = (conf.broker_url, conf.broker_read_url, conf.broker_write_url, conf.result_backend)
        assert urls == (PLAIN,) * 4
        assert app.bridge.settings.redis_url == PLAIN
    assert os.environ[name] == OWN


def test_apush_goes_to_the_other_server_also_in_a_loop_that_pushed_before() -> None:
    app = app_with("update", broker_url=OWN)
    bridge_: Any = app.bridge

    async def addresses() -> list[int]:
        vars(bridge_)["client"] = None  # stands for one that found the server fit
        found = [(await bridge_.async_client()).connection_pool.connection_kwargs["port"]]
        with pointed_at(app, PLAIN):
            vars(bridge_)["client"] = None
            found.append((await bridge_.async_client()).connection_pool.connection_kwargs["port"])
        vars(bridge_)["client"] = None
        found.append((await bridge_.async_client()).connection_pool.connection_kwargs["port"])
        return found

    assert asyncio.run(addresses()) == [7000, 1, 7000]


def test_a_list_of_handled_messages_goes_on_after_the_block() -> None:
    app = app_with("update", broker_url="memory://", task_always_eager=True)
    with recorded(app) as handled:
        with pointed_at(app, PLAIN):
            pass
        assert app.bridge.eager.listeners == [handled.append]
