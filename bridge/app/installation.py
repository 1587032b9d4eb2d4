"""`install`: makes an existing Celery app one whose messages are handled in order, ticket by ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from celery import signals
from celery.utils.imports import symbol_by_name

from bridge.app.adoption import adopt_from_now_on
from bridge.app.installed import Bridge
from bridge.app.results import keep_results_apart
from bridge.producer.push import push
from bridge.protocol.names import BUNDLE_TASK, PUSH_TASK
from bridge.routing.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

    from bridge.app.typed import TicketApp

#: The steps of Celery's worker that make it a member of the lane. They are named, not imported: Celery loads them when
#: a worker is made, and a process that only produces never loads the worker's part.
STEPS = {
    "worker": ("bridge.worker.main.server_check:ServerStep", "bridge.worker.main.steps:JoinStep"),
    "consumer": ("bridge.worker.main.steps:MemberStep",),
}
#: What looks at the settings before Celery does, in a worker of the command line; loaded when it is needed, too.
CHECK_SETTINGS = "bridge.worker.main.steps:check_settings"


def install(app: Celery) -> TicketApp:
    """Adds the bridge to ``app``; an existing app needs no more than this. Tasks may have been declared before.

    Returns ``app``. For type checkers ``app = bridge.install(Celery(…))`` has tasks that can ``push``.
    """
    if not hasattr(app, "bridge"):
        _install(app)
    return cast("TicketApp", app)


def _install(app: Celery) -> None:
    app.bridge = Bridge(app)
    adopt_from_now_on(app)
    keep_results_apart(app)

    # shared=False: other apps of the process, which may know nothing of the bridge, shall not get it.
    @app.task(name=BUNDLE_TASK, ignore_result=True, shared=False, bridge_bundle=False)
    def bundle() -> None:
        """Carries runs of several tickets to one pool process; never called as a task."""
        raise ConfigurationError("a bundle reached a worker without bridge.install(app)")

    # An ordinary task, whichever worker takes it. Delivered twice (a worker died), it pushes once, by its own id.
    @app.task(name=PUSH_TASK, bind=True, shared=False, acks_late=True, bridge_bundle=False)
    def push_message(self: Any, task: str, ticket_id: str, payload: Any = None) -> str:
        """Pushes a message for ``task``; returns its id."""
        return push(app, task, ticket_id, payload, delay=None, idempotency_key=self.request.id)

    for blueprint, names in STEPS.items():
        app.steps[blueprint].update(names)

    def before_setup(instance: Any, **_: Any) -> None:
        # Before Celery itself reads the broker's URL: of one that it cannot read it would show a piece, and that may be
        # of the password.
        if instance.app is app:
            symbol_by_name(CHECK_SETTINGS)(app)

    signals.celeryd_init.connect(before_setup, weak=False)
