"""Stores the results of the messages of a round together, where the result backend is Celery's own for Redis.

Celery asks for the key of a message, and then sets and publishes it: two round trips for each message. Here one round
trip asks for all keys of a round, and one writes them. Key, value, time to live and channel are the same, and so is the
rule that a stored success is not replaced. `tests/unit/worker/test_results.py` compares both.

A result is stored before the outcome of its message is written, as by Celery's tracer: a process that dies between the
two runs the message again, and no caller waits for ever. If the results cannot be stored together, Celery's tracer ends
each of these messages (`Execution.write`), with its own retries and errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from celery import states
from celery.backends import base as celery_backends
from celery.backends import redis as celery_redis
from celery.backends.base import DisabledBackend
from celery.backends.redis import RedisBackend

from bridge.app.results import has_lane_names

#: A larger result is stored alone. Bytes.
MOST_BYTES = 64 * 1024
#: Results that are stored with one round trip.
TOGETHER = 64

#: What Celery's tracer and backend call to store a result.
_STEPS = (
    "mark_as_done", "store_result", "_store_result", "encode_result", "prepare_value", "encode", "_encode", "get",
    "mget", "_get_task_meta_for", "decode_result", "get_key_for_task", "_get_key_for", "_set_with_state", "set", "_set",
    "ensure", "_ensure_retryable", "_get_result_meta", "current_task_children",
)  # fmt: skip
#: The code of Celery's own backends.
_FILES = (celery_backends.__file__, celery_redis.__file__)


class Unstored:
    """A result that is not stored yet. ``trace``: lets Celery's tracer end the message, and store it."""

    __slots__ = ("backend", "key", "trace", "value")

    def __init__(self, backend: Any, key: bytes, value: Any, trace: Callable[[], Any]) -> None:
        self.backend = backend
        self.key = key
        self.value = value
        self.trace = trace


def is_known(backend: Any) -> bool:
    """Whether a success in ``backend`` can be stored by `store`, or is not stored at all."""
    kind = type(backend)
    if kind is DisabledBackend:
        return _is_celerys(kind, "store_result") and "store_result" not in vars(backend)
    return (
        # Not a class that somebody made of it.
        (kind is RedisBackend or has_lane_names(backend, RedisBackend))
        and not vars(backend).keys() & set(_STEPS)
        and all(_is_celerys(RedisBackend, step) for step in _STEPS)
        and not getattr(backend, "always_retry", True)
    )


def _is_celerys(kind: type, name: str) -> bool:
    method = getattr(kind, name, None)
    # A version that has no such step does not call it.
    return method is None or (type(method) is FunctionType and method.__code__.co_filename in _FILES)


def unstored(backend: Any, request: Any, result: Any, trace: Callable[[], Any]) -> Unstored | None:
    """The result of the message that runs, as its backend would store it. None: Celery must store it.

    Must be called while the task is Celery's current one: the key depends on its lane.
    """
    try:
        meta = backend._get_result_meta(
            result=backend.encode_result(result, states.SUCCESS), state=states.SUCCESS, traceback=None, request=request
        )
        meta["task_id"] = request.id
        value = backend.encode(meta)
    except Exception:
        # It cannot be encoded. The tracer reports that as Celery does.
        return None
    return Unstored(backend, backend.get_key_for_task(request.id), value, trace) if len(value) <= MOST_BYTES else None


def store(results: Sequence[Unstored]) -> bool:
    """Stores ``results``. Returns False if that failed, for some or all of them."""
    by_backend: dict[int, list[Unstored]] = {}
    for one in results:
        # A task may have a backend of its own.
        by_backend.setdefault(id(one.backend), []).append(one)
    try:
        for some in by_backend.values():
            for at in range(0, len(some), TOGETHER):
                _store(some[0].backend, some[at : at + TOGETHER])
    except Exception:
        return False
    return True


def _store(backend: Any, results: Sequence[Unstored]) -> None:
    known = backend.mget([one.key for one in results])
    with backend.client.pipeline() as pipe:
        for one, stored in zip(results, known, strict=True):
            if stored and backend.decode_result(stored)["status"] == states.SUCCESS:
                continue
            if backend.expires:
                pipe.setex(one.key, backend.expires, one.value)
            else:
                pipe.set(one.key, one.value)
            pipe.publish(one.key, one.value)
        pipe.execute()
