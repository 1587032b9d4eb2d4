"""Traits of a task that the leader needs: its attempts, whether it travels in bundles, its time limits.

A master reads them from its own app. If only consumers have the task (during a deploy), it reads their registrations.
If neither has it, it uses the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from celery.app.task import Task
from celery.utils.time import rate

if TYPE_CHECKING:
    from celery import Celery

    from bridge.protocol.registration import Registrations
    from bridge.settings.lane import LaneSettings


class TaskTraits:
    """The traits that the planner needs: whether the task may travel in a bundle, and its (hard, soft) time limits."""

    __slots__ = ("bundled", "limits")

    def __init__(self, bundled: bool, limits: tuple[float | None, float | None]) -> None:
        self.bundled = bundled
        self.limits = limits


def traits_of(task: Any) -> dict[str, Any]:
    """The traits of ``task`` that differ from the defaults: see `bridge.protocol.registration.TRAITS`."""
    found: dict[str, Any] = {}
    if getattr(task, "bridge_max_attempts", None):
        found["max_attempts"] = int(task.bridge_max_attempts)
    if getattr(task, "bridge_on_dead", None):
        found["on_dead"] = task.bridge_on_dead
    if _never_bundled(task) or is_limited(task):
        found["bundle"] = False
    if task.time_limit or task.soft_time_limit:
        found["limits"] = [task.time_limit, task.soft_time_limit]
    if task.ignore_result:
        found["ignore_result"] = True
    return found


def is_limited(task: Any) -> bool:
    """Whether ``task`` has a rate limit now. An operator may set one (``app.control.rate_limit``), and "0" is none."""
    try:
        return bool(rate(task.rate_limit))
    except (ValueError, KeyError):
        # Celery raises this error where the worker starts.
        return True


def _never_bundled(task: Any) -> bool:
    # In a bundle a message may have run to its end, and be lost before its outcome was written. Then it would not count
    # as a lost attempt, and its rollback would not be called.
    has_rollback = getattr(task, "bridge_rollback", None) is not None
    # A bundle has a request of its own, so the methods of this one would not be called.
    has_own_request = getattr(task, "Request", Task.Request) != Task.Request
    return getattr(task, "bridge_bundle", None) is False or has_rollback or has_own_request


class Traits:
    """The traits of the tasks of one lane."""

    def __init__(self, app: Celery, lane: LaneSettings, registrations: Registrations) -> None:
        self._app = app
        self._lane = lane
        self._registrations = registrations
        self._found: dict[str, TaskTraits] = {}
        #: Functions to call when a registration changed.
        self.on_change: list[Callable[[], None]] = []

    def of(self, name: str) -> TaskTraits:
        """The traits of the task ``name`` that the planner needs."""
        found = self._found.get(name)
        if found is None:
            facts = self._facts_of(name)
            hard, soft = facts.get("limits") or (None, None)
            found = self._found[name] = TaskTraits(self._bundled(name, facts), (hard, soft))
        return found

    def _bundled(self, name: str, facts: Mapping[str, Any]) -> bool:
        """Whether the task may travel in bundles. Its workers know whether it has a rate limit: an operator tells them.

        One of them that says no is enough.
        """
        task = self._app.tasks.get(name)
        said = self._registrations.bundled(name)
        if said is None or (task is not None and _never_bundled(task)):
            return facts.get("bundle") is not False
        return said

    def max_attempts(self, name: str) -> int:
        """The attempts of its messages before they are given up."""
        return int(self._facts_of(name).get("max_attempts") or self._lane.max_attempts)

    def parks(self, name: str) -> bool:
        """Whether a dead message of it parks its ticket."""
        return (self._facts_of(name).get("on_dead") or self._lane.on_dead) == "park"

    def ignores_result(self, name: str) -> bool:
        """Whether the results of the task are ignored."""
        return bool(self._facts_of(name).get("ignore_result"))

    def forget(self) -> None:
        """A registration changed: read the traits again."""
        self._found.clear()
        for listener in self.on_change:
            listener()

    def _facts_of(self, name: str) -> Mapping[str, Any]:
        task = self._app.tasks.get(name)
        return self._registrations.traits(name) if task is None else traits_of(task)
