"""The lanes of an app, and which tasks belong to each: one lane for each subscription on each partition of each version
of the stream.

An app names its subscriptions in ``bridge_subscriptions``, or at its tasks (``bridge_subscription="billing"``). With
the setting, a task can name one of those only: another name is probably misspelt. An app without either has one lane,
named by ``bridge_group``. An app that names them at its tasks alone has that lane as well, for its other tasks.

Which task handles a message in a lane (`Handlers.of`):

1. The task that the message names, when it belongs to the lane.
2. Else the lane's default task, when it has one.
3. Else, when the task belongs to another lane of the app: none. The message is left out: acknowledged and counted.
4. Else, in a lane of a subscription, when the message names no task: none either.
5. Else the task that the message names: it may be one that only consumers know.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bridge.app.installed import bridge_of
from bridge.app.ticket_tasks import ticket_tasks
from bridge.routing.errors import ConfigurationError
from bridge.settings.subscriptions import check_name, check_task, with_group
from bridge.settings.versions import SETTING as FOLLOWS
from bridge.settings.versions import with_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

    from bridge.routing.partitions import Layout
    from bridge.settings.lane import LaneSettings
    from bridge.settings.versions import OlderVersion


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
    #: The number of the partition; None: the stream is not split.
    partition: int | None = None
    #: How many partitions the stream has.
    partitions: int = 1
    #: What follows a stream id of this lane in a message id (`bridge.routing.partitions`).
    id_suffix: str = ""
    #: The lanes of the same subscription and partition on older versions of the stream, oldest first. A message of this
    #: lane waits for the messages of its ticket there.
    older: tuple[LaneSettings, ...] = ()
    #: Those on newer versions, oldest first.
    newer: tuple[LaneSettings, ...] = ()

    @property
    def name(self) -> str:
        """The name of the subscription, which is that of the consumer group."""
        return self.settings.group

    @property
    def chain(self) -> str:
        """The name of the lane's chain: the lanes of one subscription and partition over all versions. One master leads
        all of them.
        """
        return self.name if self.partition is None else f"{self.name}:p{self.partition}"

    @property
    def shares_workers(self) -> bool:
        """Whether workers of this lane may serve other lanes."""
        return self.is_subscription or self.partition is not None or bool(self.older or self.newer)

    @property
    def part(self) -> tuple[int, int] | None:
        """(the number of the partition, of how many); None: the stream is not split."""
        return None if self.partition is None else (self.partition, self.partitions)

    @property
    def title(self) -> str:
        """How messages for people name the lane."""
        return f"{self.name} on {self.settings.stream}"


def lanes_of(app: Celery) -> tuple[AppLane, ...]:
    """All lanes of an app: subscriptions in the order in which the app names them; of each the partitions; of each the
    versions, oldest first. The app's tasks must be loaded.

    Raises `ConfigurationError` when a task belongs to a subscription that there is not.
    """
    return tuple(lane for lanes in subscriptions_of(app).values() for lane in lanes)


def subscriptions_of(app: Celery) -> Mapping[str, tuple[AppLane, ...]]:
    """Name -> its lanes, in the order of `lanes_of`. The app's tasks must be loaded.

    Raises `ConfigurationError` when a task, or ``bridge_follows``, names a subscription that there is not.
    """
    bridge = bridge_of(app)
    layout, follows = bridge.layout, bridge.follows
    lanes = _unsplit(app)
    _check_subscriptions(follows, lanes)
    return {
        name: tuple(part for number in range(layout.partitions) for part in _versions(lane, follows, layout, number))
        for name, lane in lanes.items()
    }


def names_of_subscriptions(app: Celery) -> tuple[str, ...]:
    """The names of the subscriptions, in the order in which the app names them."""
    return tuple(_unsplit(app))


def _versions(newest: AppLane, follows: tuple[OlderVersion, ...], layout: Layout, number: int) -> tuple[AppLane, ...]:
    """The lanes of one subscription and partition on all versions of the stream, oldest first: a chain."""
    if not follows and not layout.is_split:
        return (newest,)
    versions = (*(with_version(newest.settings, version) for version in follows), newest.settings)
    chain = tuple(settings.on_stream(layout.stream(settings.stream, number)) for settings in versions)
    partition, suffix = (number, layout.suffix(number)) if layout.is_split else (None, "")
    return tuple(
        replace(
            newest,
            settings=settings,
            partition=partition,
            partitions=layout.partitions,
            id_suffix=suffix,
            older=chain[:place],
            newer=chain[place + 1 :],
        )
        for place, settings in enumerate(chain)
    )


def _check_subscriptions(follows: tuple[OlderVersion, ...], lanes: Mapping[str, AppLane]) -> None:
    several = any(lane.is_subscription for lane in lanes.values())
    for version in follows:
        where = f"{FOLLOWS}: stream {version.stream!r}"
        if version.task is not None and several:
            raise ConfigurationError(
                f"{where}: this app has subscriptions: give tasks, a dict from subscription to task, not task"
            )
        for name in version.tasks:
            if name not in lanes:
                raise ConfigurationError(
                    f"{where}: there is no subscription {name!r}; this app has: {', '.join(lanes)}"
                )


def _unsplit(app: Celery) -> Mapping[str, AppLane]:
    """Name -> the lane that the subscription would have on a stream of one partition and one version."""
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
    for task, name in named.items():
        check_task(task, name, found)
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
        own[name].update(version.tasks[name] for version in settings.follows if name in version.tasks)
    if not settings.subscriptions:
        own[settings.lane.group] |= tasks - named.keys()
    everywhere = set().union(*own.values())
    return {
        name: AppLane(lane, frozenset(own[name]), frozenset(everywhere - own[name]), is_subscription=True)
        for name, lane in found.items()
    }


def lane_of(app: Celery, name: str | None = None) -> AppLane:
    """The first lane of `newest_lanes_of`."""
    return newest_lanes_of(app, name)[0]


def newest_lanes_of(app: Celery, name: str | None = None) -> tuple[AppLane, ...]:
    """The lanes of the subscription ``name`` on the newest version of the stream, one for each partition; None: of the
    only subscription. Raises `ConfigurationError`, one line.
    """
    return tuple({lane.partition: lane for lane in _lanes_of(subscriptions_of(app), name)}.values())


def lanes_of_version(app: Celery, name: str | None, stream: str) -> tuple[AppLane, ...]:
    """The same on the version ``stream``: the app's stream, or one that it follows. Raises `ConfigurationError`."""
    bridge = bridge_of(app)
    versions = [*(version.stream for version in bridge.follows), bridge.settings.lane.stream]
    if stream not in versions:
        raise ConfigurationError(f"--stream: this app does not know {stream!r}; its versions: {', '.join(versions)}")
    place = versions.index(stream)
    return tuple(lane for lane in _lanes_of(subscriptions_of(app), name) if len(lane.older) == place)


def unsplit_lane_of(app: Celery, name: str | None = None) -> AppLane:
    """The lane that the subscription ``name`` would have if the stream had one partition and one version. Raises
    `ConfigurationError`, one line.
    """
    [lane] = _lanes_of({found: (lane,) for found, lane in _unsplit(app).items()}, name)
    return lane


def unsplit_lanes_of(app: Celery) -> tuple[AppLane, ...]:
    """The lane of each subscription as `unsplit_lane_of` has it, in the order in which the app names them."""
    return tuple(_unsplit(app).values())


def _lanes_of(lanes: Mapping[str, tuple[AppLane, ...]], name: str | None) -> tuple[AppLane, ...]:
    known = ", ".join(lanes)
    if name is None:
        if len(lanes) > 1:
            raise ConfigurationError(f"this app has {len(lanes)} subscriptions: name one with -s: {known}")
        name = next(iter(lanes))
    found = lanes.get(name)
    if found is None:
        raise ConfigurationError(f"there is no subscription {name!r}; this app has: {known}")
    return found


def lanes_named(app: Celery, name: str) -> tuple[LaneSettings, ...]:
    """The lanes of the subscription ``name``. Of one that this app does not have: those on the same streams.

    Raises `ConfigurationError` when nothing can have this name.
    """
    lanes = subscriptions_of(app)
    if name in lanes:
        return tuple(lane.settings for lane in lanes[name])
    check_name(name, "the subscription")
    of_another = next(iter(lanes.values()))
    return tuple(with_group(lane.settings, name) for lane in of_another)


def served_lanes(app: Celery) -> tuple[AppLane, ...]:
    """The lanes that a worker of ``app`` serves. Raises `ConfigurationError` for a subscription that there is not."""
    lanes, serve = subscriptions_of(app), bridge_of(app).settings.serve
    for name in serve or ():
        if name not in lanes:
            raise ConfigurationError(
                f"bridge_serve: there is no subscription {name!r}; this app has: {', '.join(lanes)}"
            )
    return tuple(lane for name in serve or lanes for lane in lanes[name])
