"""Keeps the results of messages apart from those of other lanes in the same result backend.

A message's id is its Celery task id, and two streams may have the same ids. So the result of a message is stored under
its id with a prefix that names the lane. The app knows its lane, so `AsyncResult` finds the result by the message id
alone. Ids of ordinary calls are not changed, and neither is the ``task_id`` within a stored result.

An app with several subscriptions has one result for each message and subscription. `AsyncResult` means the first
subscription that has a task with a result (`subscription_of_results`). `result_of` finds the result of another one.

The default lane (default names of stream and group) has no prefix. So any Celery app with the same result backend finds
its results, also an app without the bridge.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from celery import current_app, current_task
from celery.backends.base import BaseKeyValueStoreBackend, DisabledBackend
from celery.result import AsyncResult

from bridge.app.lanes import lane_of, names_of_subscriptions, subscriptions_of
from bridge.routing.partitions import whole_stream
from bridge.settings.lane import LaneSettings

if TYPE_CHECKING:
    from celery import Celery

#: The id of a message (`bridge.routing.partitions`).
_MESSAGE_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}(@(g[0-9]{1,10})?p[0-9]{1,4})?")
#: Names that every backend accepts: in a file name, a memcached key, a column of 155 characters. A name cannot contain
#: `_BETWEEN`, so stream and group are separate.
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)*")
_BETWEEN = "::"
_LONGEST = 100
#: The message whose result the bridge stores now, and its lane, where no task of it runs.
_stored: ContextVar[tuple[str, LaneSettings] | None] = ContextVar("bridge_stored_result", default=None)
_DEFAULT_LANE = (LaneSettings.model_fields["stream"].default, LaneSettings.model_fields["group"].default)


def subscription_of_results(app: Celery) -> str:
    """The name of the subscription whose result ``AsyncResult(message_id)`` means: the first that has a task with one.

    Where no task has a result, the first subscription. Raises `ConfigurationError` when the tasks fail to load.
    """
    if len(names_of_subscriptions(app)) > 1:
        # Their tasks say which of them has results, and a process that only asks need not have imported them.
        from bridge.app.finding import know_tasks

        know_tasks(app)
    lanes = [lane for lane, *_ in subscriptions_of(app).values()]
    for lane in lanes:
        if lane.is_subscription and any(not app.tasks[task].ignore_result for task in lane.tasks if task in app.tasks):
            return lane.name
    return lanes[0].name


@contextmanager
def result_in(lane: LaneSettings, message_id: str) -> Iterator[None]:
    """In the block, the result of ``message_id`` is the one in ``lane``: the task that could say so does not run."""
    token = _stored.set((message_id, lane))
    try:
        yield
    finally:
        _stored.reset(token)


def keep_results_apart(app: Celery) -> None:
    """Makes each result backend that ``app`` creates from now on store results of messages under the lane's name."""
    make = app._get_backend

    def with_lane() -> Any:
        return _with_lane_names(make())

    app._get_backend = with_lane
    # Forget the backend that was created before. A caller that already waits for a result keeps using it.
    app._backend_cache = None
    app._local = threading.local()


class _LaneNames:
    """Mixed into the class of a backend."""

    app: Any

    def _lane_id(self, task_id: Any) -> Any:
        """The id under which the backend stores ``task_id``."""
        if isinstance(task_id, str) and _MESSAGE_ID.fullmatch(task_id):
            return f"{self._prefix_for(task_id)}{task_id}"
        return task_id

    def _prefix_for(self, message_id: str) -> str:
        running = current_task
        ticket = running.request.__dict__.get("bridge_ticket") if running else None
        if ticket is not None and ticket.message_id == message_id and ticket.lane is not None:
            # The pool process stores the result of the message that it runs. It may be one of an older version of the
            # stream, whose producers look for it under their own stream.
            return _prefix_of(whole_stream(ticket.lane.stream, message_id), ticket.lane.group)
        stored = _stored.get()
        if stored is not None and stored[0] == message_id:
            return _prefix_of(whole_stream(stored[1].stream, message_id), stored[1].group)
        return self._lane_prefix

    @cached_property
    def _group_of_results(self) -> str:
        """The subscription whose results are found by the message id alone."""
        return subscription_of_results(self.app)

    @property
    def _lane_prefix(self) -> str:
        lane = self.app.bridge.settings.lane
        return _prefix_of(lane.stream, self._group_of_results)

    def __reduce__(self, *args: Any, **kwargs: Any) -> Any:
        # The class was created at run time, so pickle cannot find it by its name.
        reduced: Any = super().__reduce__(*args, **kwargs)
        rebuild, (cls, *more), *state = reduced
        return (_unpickled, (rebuild, cls.__bases__[1], *more), *state)


class _KeyValueLaneNames(_LaneNames):
    """For backends that have a key for each task."""

    def get_key_for_task(self, task_id: Any, key: Any = "") -> Any:
        return super().get_key_for_task(self._lane_id(task_id), key)  # type: ignore[misc]

    def _strip_prefix(self, key: Any) -> str:
        stripped: str = super()._strip_prefix(key)  # type: ignore[misc]
        # The prefix of another task's result is not asked for: to know it may need the tasks.
        if not _MESSAGE_ID.fullmatch(stripped.rpartition(":")[2]):
            return stripped
        id_ = stripped.removeprefix(self._lane_prefix)
        return id_ if _MESSAGE_ID.fullmatch(id_) else stripped


class _OtherLaneNames(_LaneNames):
    """For the other backends (databases): overrides the three hooks that every backend has."""

    def _store_result(self, task_id: Any, *args: Any, **kwargs: Any) -> Any:
        return super()._store_result(self._lane_id(task_id), *args, **kwargs)  # type: ignore[misc]

    def _get_task_meta_for(self, task_id: Any) -> Any:
        meta = super()._get_task_meta_for(self._lane_id(task_id))  # type: ignore[misc]
        if isinstance(meta, dict) and "task_id" in meta:
            meta = {**meta, "task_id": task_id}
        return meta

    def _forget(self, task_id: Any) -> Any:
        return super()._forget(self._lane_id(task_id))  # type: ignore[misc]


def _with_lane_names(backend: Any) -> Any:
    """``backend``, changed so that it stores results of messages under the lane's name."""
    if isinstance(backend, DisabledBackend | _LaneNames):
        return backend
    cls: Any = type(backend)
    backend.__class__ = _class_with_lane_names(cls)
    consumer: Any = getattr(backend, "result_consumer", None)
    if hasattr(consumer, "_get_key_for_task"):
        # The result consumer of Redis holds the method of the class before.
        consumer._get_key_for_task = backend.get_key_for_task
    return backend


def has_lane_names(backend: Any, cls: type) -> bool:
    """Whether ``backend`` is one of the class ``cls`` itself, changed by `keep_results_apart` and nothing else."""
    return type(backend).__bases__ == (_KeyValueLaneNames, cls)


@cache
def _class_with_lane_names(cls: type) -> type:
    part = _KeyValueLaneNames if issubclass(cls, BaseKeyValueStoreBackend) else _OtherLaneNames
    return type(cls.__name__, (part, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})


@cache
def _prefix_of(stream: str, group: str) -> str:
    if (stream, group) == _DEFAULT_LANE:
        return ""
    name = f"{stream}{_BETWEEN}{group}"
    if len(name) > _LONGEST or not (_PLAIN.fullmatch(stream) and _PLAIN.fullmatch(group)):
        name = hashlib.blake2s(f"{len(stream)} {stream} {group}".encode(), digest_size=16).hexdigest()
    return f"{name}:"


def _unpickled(rebuild: Any, cls: type, *args: Any) -> Any:
    """Unpickles a backend, for the current app (see `celery.backends.base.unpickle_backend`)."""
    backend = rebuild(cls, *args)
    return _with_lane_names(backend) if hasattr(current_app, "bridge") else backend


def result_of(app: Celery, message_id: str, subscription: str) -> AsyncResult:
    """The result of a message in ``subscription``. Raises `ConfigurationError` when the app does not have it."""
    lane = lane_of(app, subscription)
    backend = app._get_backend()
    backend._group_of_results = lane.name
    return AsyncResult(message_id, backend=backend, app=app)
