"""Which tasks messages may name."""

from __future__ import annotations

from typing import Any

from celery import Celery

from bridge.app.installation import install
from bridge.app.ticket_tasks import is_ticket_task, ticket_tasks
from bridge.protocol.names import BUNDLE_TASK


class Foreign:
    """A task in the registry that is not of the bridge."""

    name = "shop.foreign"


def test_messages_may_name_the_tasks_of_the_app_and_no_others() -> None:
    app: Any = install(Celery("shop", broker="redis://localhost:1/0", set_as_current=False))

    @app.task(name="shop.pay", shared=False)
    def pay(ticket_id: str, payload: Any) -> None: ...

    @app.task(name="bridge.mine", shared=False)
    def reserved(ticket_id: str, payload: Any) -> None: ...

    app.finalize()
    app.tasks["shop.foreign"] = Foreign()

    assert BUNDLE_TASK in app.tasks
    assert "celery.backend_cleanup" in app.tasks
    # Other packages of the process may have shared tasks of theirs.
    assert ours(app) == {"shop.pay"}
    assert not is_ticket_task(app, "no.such")

    @app.task(name="shop.late", shared=False, lazy=False)
    def late(ticket_id: str, payload: Any) -> None: ...

    assert ours(app) == {"shop.pay", "shop.late"}


def ours(app: Any) -> set[str]:
    return {name for name in ticket_tasks(app) if name.startswith(("shop.", "bridge.", "celery."))}
