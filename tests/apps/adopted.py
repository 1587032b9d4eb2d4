"""Tasks declared in every way that Celery has, some before the app has the bridge and some after.

``ADOPTED_FINALISED``: the app is finalised before it gets the bridge. ``ADOPTED_PAST``: it has one that is no task.
Each task appends the value that the `__call__` of its base class set, so that a skipped call is noticed.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import Any

from celery import Celery, Task, shared_task

import bridge

CONTEXT: ContextVar[str] = ContextVar("CONTEXT", default="no context")

URL = os.environ.get("CELERY_BROKER_URL")


class ContextTask(Task):
    """As Flask's pages show it: the base class of all tasks of the app opens a context around the body."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = CONTEXT.set("context")
        try:
            return self.run(*args, **kwargs)
        finally:
            CONTEXT.reset(before)


class Above(Task):
    """A base class that calls the body through its own base classes."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = CONTEXT.set("above")
        try:
            return super().__call__(*args, **kwargs)
        finally:
            CONTEXT.reset(before)


app = Celery("adopted", broker=URL, backend=URL, task_cls=ContextTask)
app.conf.update(bridge_lease=2.0, bridge_leader_lease=2.0, bridge_backoff={"base": 0.05}, bridge_max_attempts=3)


def append(task: Any, ticket_id: str, payload: Any) -> None:
    """The body of all tasks. It fails at first if the payload says so."""
    if task.ticket.attempt <= payload.get("fails", 0):
        raise ValueError("as told")
    task.ticket.effects.rpush(f"log:{ticket_id}", CONTEXT.get())


class Body:
    """The body of the class-based ones."""

    ignore_result = True

    def run(self, ticket_id: str, payload: Any) -> None:
        append(self, ticket_id, payload)


class InstanceBefore(Body, Task):
    name = "instance-before"


class InstanceAfter(Body, Task):
    name = "instance-after"


class ClassAfter(Body, Task):
    name = "class-after"


class CallsItself(Body, Above):
    name = "with-call"


class InRegistry(Body, Task):
    name = "in-registry"


app.register_task(InstanceBefore())


@app.task(bind=True, ignore_result=True, name="declared-before")
def declared_before(self: Any, ticket_id: str, payload: Any) -> None:
    append(self, ticket_id, payload)


@app.task(bind=True, ignore_result=True, name="used-before", base=Above)
def used_before(self: Any, ticket_id: str, payload: Any) -> None:
    append(self, ticket_id, payload)


@shared_task(bind=True, ignore_result=True, name="shared-before")
def shared_before(self: Any, ticket_id: str, payload: Any) -> None:
    append(self, ticket_id, payload)


assert used_before.max_retries == 3  # which makes Celery create the task

if os.environ.get("ADOPTED_FINALISED"):
    app.finalize()

bridge.install(app)

app.register_task(InstanceAfter())
app.register_task(ClassAfter)
app.register_task(CallsItself())


@app.task(bind=True, ignore_result=True, name="declared-after")
def declared_after(self: Any, ticket_id: str, payload: Any) -> None:
    append(self, ticket_id, payload)


@app.task(bind=True, ignore_result=True, name="with-base", base=Above)
def with_base(self: Any, ticket_id: str, payload: Any) -> None:
    append(self, ticket_id, payload)


OwnTask: Any = app.Task


class OfTheApp(OwnTask):
    """Made from the app's own class, which has the bridge."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = CONTEXT.set("of the app")
        try:
            return self.run(*args, **kwargs)
        finally:
            CONTEXT.reset(before)


@app.task(bind=True, ignore_result=True, name="with-base-of-the-app", base=OfTheApp)
def with_base_of_the_app(self: Any, ticket_id: str, payload: Any) -> None:
    append(self, ticket_id, payload)


@shared_task(bind=True, ignore_result=True, name="shared-after")
def shared_after(self: Any, ticket_id: str, payload: Any) -> None:
    append(self, ticket_id, payload)


in_registry = InRegistry()
app.tasks.register(in_registry)
in_registry.bind(app)

if os.environ.get("ADOPTED_PAST"):
    # Added past the registry, so it is only found at the start.
    dict.__setitem__(app.tasks, "past", object())

#: Task -> what its base class's `__call__` sets.
EXPECTED = {
    "instance-before": "no context",
    "instance-after": "no context",
    "class-after": "no context",
    "in-registry": "no context",
    "with-call": "above",
    "declared-before": "context",
    "used-before": "above",
    "shared-before": "context",
    "declared-after": "context",
    "with-base": "above",
    "with-base-of-the-app": "of the app",
    "shared-after": "context",
}
