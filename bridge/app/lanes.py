"""The lanes of an app: one for each of its subscriptions, and which tasks belong to each.

An app names its subscriptions in ``bridge_subscriptions``, or at its tasks (``bridge_subscription="billing"``), or in
both places. An app without either has one lane, named by ``bridge_group``. An app that names them at its tasks alone
has that lane as well, for its other tasks.

Which task handles a message in a lane (`Handlers.of`):

1. The task that the message names, when it belongs to the lane.
2. Else the lane's default task, when it has one.
3. Else, when the task belongs to another lane of the app: none. The message is left out: acknowledged and counted.
4. Else, in a lane of a subscription, when the message names no task: none either.
5. Else the task that the message names: it may be one that only consumers know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.app.installed import bridge_of
from bridge.app.ticket_tasks import ticket_tasks
from bridge.routing.errors import ConfigurationError
from bridge.settings.subscriptions import check_name, with_group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

    from bridge.settings.lane import LaneSettings


@dataclass(frozen=True)
class AppLane:
    """One lane of an app."""

    settings: LaneSettings
    #: The ticket tasks of this app that belong to the lane.
    tasks: frozenset[str]
    #: The ticket tasks of this app that belong to other lanes only.
    elsewhere: frozenset[str]
    #: Whether the lane is one of several logical consumers. Messages that it has no task for are not for it.
    is_subscription: bool

    @property
    def name(self) -> str:
        """The name of the subscription, which is that of the consumer group."""
        return self.settings.group


def lanes_of(app: Celery) -> Mapping[str, AppLane]:
    """Name -> lane, in the order in which the app names them. The app's tasks must be loaded.

    Raises `ConfigurationError` when a task belongs to a subscription that there is not.
    """
    settings = bridge_of(app).settings
    tasks = ticket_tasks(app)
    named = {
        task: check_name(name, f"task {task}: bridge_subscription")
        for task in sorted(tasks)
        if (name := app.tasks[task].bridge_subscription)
    }
    if not settings.subscriptions and not named:
        return {settings.lane.group: AppLane(settings.lane, tasks, frozenset(), is_subscription=False)}
    found = dict(settings.subscriptions)
    if not found:
        found[settings.lane.group] = settings.lane
    for name in named.values():
        if name not in found:
            found[name] = with_group(settings.lane, name)
    own: dict[str, set[str]] = {name: set() for name in found}
    for task, name in named.items():
        own[name].add(task)
    for name, lane in found.items():
        if lane.default_task is not None:
            own[name].add(lane.default_task)
    if not settings.subscriptions:
        own[settings.lane.group] |= tasks - named.keys()
    everywhere = set().union(*own.values())
    return {
        name: AppLane(lane, frozenset(own[name]), frozenset(everywhere - own[name]), is_subscription=True)
        for name, lane in found.items()
    }


def lane_of(app: Celery, name: str | None = None) -> AppLane:
    """The lane of the subscription ``name``; None: the only one. Raises `ConfigurationError`, one line."""
    lanes = lanes_of(app)
    known = ", ".join(lanes)
    if name is None:
        if len(lanes) > 1:
            raise ConfigurationError(f"this app has {len(lanes)} subscriptions: name one with -s: {known}")
        return next(iter(lanes.values()))
    found = lanes.get(name)
    if found is None:
        raise ConfigurationError(f"there is no subscription {name!r}; this app has: {known}")
    return found


def served_lanes(app: Celery) -> Mapping[str, AppLane]:
    """The lanes that a worker of ``app`` serves. Raises `ConfigurationError` for one that there is not."""
    lanes, serve = lanes_of(app), bridge_of(app).settings.serve
    if serve is None:
        return lanes
    for name in serve:
        if name not in lanes:
            raise ConfigurationError(
                f"bridge_serve: there is no subscription {name!r}; this app has: {', '.join(lanes)}"
            )
    return {name: lanes[name] for name in serve}
