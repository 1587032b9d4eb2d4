"""`install`: adds the bridge to an existing Celery app."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from celery import signals
from celery.utils.imports import symbol_by_name

from bridge.app.adoption import adopt_from_now_on
from bridge.app.belonging import require_task
from bridge.app.installed import Bridge
from bridge.app.results import keep_results_apart
from bridge.producer.options import Past, eta_of_text
from bridge.producer.push import push
from bridge.protocol.names import BUNDLE_TASK, PUSH_TASK
from bridge.routing.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

    from bridge.app.typed import TicketApp

#: The bootsteps that make a Celery worker a consumer of the lane. They are named and not imported: Celery imports them
#: when it creates a worker. So a process that only pushes does not load them.
STEPS = {
    "worker": ("bridge.worker.main.server_check:ServerStep", "bridge.worker.main.steps:JoinStep"),
    "consumer": ("bridge.worker.main.steps:MemberStep",),
}
#: Checks the settings before Celery does, in a worker of the command line. Also imported only when it is needed.
CHECK_SETTINGS = "bridge.worker.main.steps:check_settings"


def install(app: Celery) -> TicketApp:
    """Adds the bridge to ``app``. An existing app needs nothing else. Its tasks may have been declared before.

    Returns ``app``. For type checkers ``app = bridge.install(Celery(…))`` has tasks that can ``push``.
    """
    if not hasattr(app, "bridge"):
        _install(app)
    return cast("TicketApp", app)


def _install(app: Celery) -> None:
    app.bridge = Bridge(app)
    adopt_from_now_on(app)
    keep_results_apart(app)

    # shared=False: other apps of this process may have no bridge, and must not get this task.
    @app.task(name=BUNDLE_TASK, ignore_result=True, shared=False, bridge_bundle=False)
    def bundle() -> None:
        """The task name of bundles, which carry runs of several tickets to one pool process. It is never called."""
        raise ConfigurationError("a bundle reached a worker without bridge.install(app)")

    # An ordinary task, which any worker may run. If it is delivered twice (a worker died), it pushes once: its own id
    # is the idempotency key.
    @app.task(name=PUSH_TASK, bind=True, shared=False, acks_late=True, bridge_bundle=False)
    def push_message(
        self: Any,
        task: str,
        ticket_id: str,
        payload: Any = None,
        *,
        delay: float | None = None,
        eta: datetime | str | None = None,
        hold: bool = False,
    ) -> str:
        """Pushes a message for ``task``; returns its id. ``eta`` may be text in the form of ISO 8601.

        ``delay`` counts from this push. When ``eta`` is past by now, the message is due at once.
        """
        require_task(app, task)
        options = {"delay": delay, "eta": eta_of_text(eta) if isinstance(eta, str) else eta, "hold": hold}
        key = self.request.id
        return push(app, task, ticket_id, payload, idempotency_key=key, options=options, past=Past.ALLOWED)

    for blueprint, names in STEPS.items():
        app.steps[blueprint].update(names)

    def before_setup(instance: Any, **_: Any) -> None:
        # This runs before Celery reads the broker's URL. If Celery cannot parse the URL, its error shows a part of it,
        # which may be of the password.
        if instance.app is app:
            symbol_by_name(CHECK_SETTINGS)(app)

    signals.celeryd_init.connect(before_setup, weak=False)
