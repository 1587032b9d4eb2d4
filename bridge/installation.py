"""`install`: makes an existing Celery app one whose messages are handled in order, ticket by ticket."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery.utils.imports import symbol_by_name
from redis import Redis

from bridge.connect import client
from bridge.names import BUNDLE_TASK
from bridge.settings import Settings, read_settings
from bridge.worker.member import hook
from bridge.worker.task import TicketTask
from routing.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

STRATEGY = "bridge.worker.strategy:strategy"


class Bridge:
    """What `install` puts on an app, as ``app.bridge``."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    @cached_property
    def settings(self) -> Settings:
        """The validated settings; read late, so that the app may be configured after `install`."""
        return read_settings(self._app)

    @cached_property
    def client(self) -> Redis:
        """The client that producers of this process share."""
        return client(self.settings.redis_url)


def install(app: Celery) -> Celery:
    """Adds the bridge to ``app``. Call it before the tasks are declared; an existing app needs no more than this.

    Raises `ConfigurationError` when tasks were declared already.
    """
    if hasattr(app, "bridge"):
        return app
    if app._pending:
        raise ConfigurationError("call bridge.install(app) before the first @app.task: tasks were declared already")
    app.bridge = Bridge(app)
    base = symbol_by_name(app.task_cls)
    app.task_cls = type("TicketTask", (TicketTask, base), {"abstract": True, "Strategy": STRATEGY})
    # The class may have been made from the one before.
    app.__dict__.pop("Task", None)
    make = app._task_from_fun

    def with_ticket(fun: Any, name: Any = None, base: Any = None, bind: bool = False, **options: Any) -> Any:
        if base is not None and not issubclass(base, TicketTask):
            base = type(base.__name__, (TicketTask, base), {"abstract": True, "Strategy": STRATEGY})
        return make(fun, name=name, base=base, bind=bind, **options)

    app._task_from_fun = with_ticket

    # shared=False: other apps of the process, which may know nothing of the bridge, shall not get it.
    @app.task(name=BUNDLE_TASK, ignore_result=True, lazy=False, shared=False, bridge_bundle=False)
    def bundle() -> None:
        """Carries runs of several tickets to one pool process; never called as a task."""
        raise ConfigurationError("a bundle reached a worker without bridge.install(app)")

    hook(app)
    return app


def bridge_of(app: Celery) -> Bridge:
    """The bridge of ``app``. Raises `ConfigurationError` when it has none."""
    found = getattr(app, "bridge", None)
    if not isinstance(found, Bridge):
        raise ConfigurationError(
            f"the Celery app {app.main or app!r} has no bridge: call bridge.install(app) before its tasks are declared"
        )
    return found
