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
from bridge.routing.layouts import InLayout, in_layout
from bridge.settings.subscriptions import check_name, check_task, with_group
from bridge.settings.versions import SETTING as FOLLOWS
from bridge.settings.versions import with_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    #: The version of the stream, of which the lane's own stream may be a partition.
    version: str = ""
    #: The streams of all partitions of the app's stream, also of the older layout. A ticket is in one of each layout.
    partition_streams: frozenset[str] = frozenset()
    #: The lanes of the same subscription that come before this one, oldest first: on older versions of the stream, and
    #: on the older partitions of a stream that is being repartitioned. A message of this lane waits for the messages of
    #: its ticket there.
    older: tuple[LaneSettings, ...] = ()
    #: Those that come after it, oldest first.
    newer: tuple[LaneSettings, ...] = ()
    #: The name of the lane's chain: the lanes of one subscription that can have tickets in common, over all versions of
    #: the stream and all its layouts. One master leads all of them.
    chain: str = ""

    @property
    def name(self) -> str:
        """The name of the subscription, which is that of the consumer group."""
        return self.settings.group

    @property
    def shares_workers(self) -> bool:
        """Whether workers of this lane may serve other lanes."""
        return self.is_subscription or self.partition is not None or bool(self.older or self.newer)

    @property
    def part(self) -> tuple[int, int] | None:
        """(the number of the partition, of how many); None: the stream is not split."""
        return None if self.partition is None else (self.partition, self.partitions)

    @property
    def in_layout(self) -> InLayout:
        """The layout that the lane's stream belongs to."""
        return in_layout(self.settings.stream, self.version or None)

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
    return {name: tuple(_split(lane, follows, layout)) for name, lane in lanes.items()}


def names_of_subscriptions(app: Celery) -> tuple[str, ...]:
    """The names of the subscriptions, in the order in which the app names them."""
    return tuple(_unsplit(app))


def _split(newest: AppLane, follows: tuple[OlderVersion, ...], layout: Layout) -> Iterator[AppLane]:
    """The lanes of one subscription: of each partition the versions, oldest first. Older partitions come first."""
    versions = (*(with_version(newest.settings, version) for version in follows), newest.settings)
    newest = replace(newest, partition_streams=layout.all_streams(newest.settings.stream))
    if layout.older is not None:
        for number in range(layout.older.partitions):
            newer = _partitions(newest.settings, layout, layout.newer_of(number))
            chain = f"{newest.name}:p{number % layout.classes}"
            yield _lane(newest, newest.settings, layout.older, number, chain, newer=newer)
    for number in range(layout.partitions):
        chain = f"{newest.name}:p{number % layout.classes}" if layout.is_split else newest.name
        before: tuple[LaneSettings, ...] = ()
        if layout.older is not None:
            before = _partitions(newest.settings, layout.older, layout.older_of(number))
        streams = tuple(settings.on_stream(layout.stream(settings.stream, number)) for settings in versions)
        for place, settings in enumerate(versions):
            older, newer = (*before, *streams[:place]), streams[place + 1 :]
            yield _lane(newest, settings, layout, number, chain, older=older, newer=newer)


def _partitions(settings: LaneSettings, layout: Layout, numbers: Sequence[int]) -> tuple[LaneSettings, ...]:
    return tuple(settings.on_stream(layout.stream(settings.stream, number)) for number in numbers)


def _lane(
    newest: AppLane,
    version: LaneSettings,
    layout: Layout,
    number: int,
    chain: str,
    *,
    older: tuple[LaneSettings, ...] = (),
    newer: tuple[LaneSettings, ...] = (),
) -> AppLane:
    """The lane of one partition of ``version``."""
    return replace(
        newest,
        settings=version.on_stream(layout.stream(version.stream, number)),
        partition=number if layout.is_split else None,
        partitions=layout.partitions,
        id_suffix=layout.suffix(number),
        version=version.stream,
        older=older,
        newer=newer,
        chain=chain,
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
    """The lanes of the subscription ``name`` on the newest version of the stream, one for each partition, older
    partitions first; None: of the only subscription. Raises `ConfigurationError`, one line.
    """
    stream = bridge_of(app).settings.lane.stream
    return tuple(lane for lane in _lanes_of(subscriptions_of(app), name) if lane.version == stream)


def lanes_of_subscription(app: Celery, name: str | None = None) -> tuple[AppLane, ...]:
    """The lanes of the subscription ``name`` on all versions and partitions, in the order of `lanes_of`: those that may
    have messages of one ticket are oldest first. None: of the only subscription. Raises `ConfigurationError`, one line.
    """
    return _lanes_of(subscriptions_of(app), name)


def lanes_of_version(app: Celery, name: str | None, stream: str) -> tuple[AppLane, ...]:
    """The same on the version ``stream``, which the app's stream follows. While the app's stream is repartitioned, also
    on one older partition, by the name of its own stream. Raises `ConfigurationError`.
    """
    bridge = bridge_of(app)
    settings, older = bridge.settings, bridge.layout.older
    versions = [*(version.stream for version in bridge.follows), settings.lane.stream]
    old = () if older is None else older.streams(settings.lane.stream)
    lanes = _lanes_of(subscriptions_of(app), name)
    if stream in old:
        return tuple(lane for lane in lanes if lane.settings.stream == stream)
    if stream in versions:
        return tuple(lane for lane in lanes if lane.version == stream)
    known = ", ".join(dict.fromkeys((*versions, *old)))
    raise ConfigurationError(f"--stream: this app does not know {stream!r}; its versions: {known}")


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
    """The lanes of the subscription ``name``. Where this app has no such subscription: its lanes on the app's streams.

    Raises `ConfigurationError` when nothing can have this name.
    """
    lanes = subscriptions_of(app)
    if name in lanes:
        return tuple(lane.settings for lane in lanes[name])
    check_name(name, "the subscription")
    of_another = next(iter(lanes.values()))
    return tuple(with_group(lane.settings, name) for lane in of_another)


def layout_with(app: Celery, stream: str) -> InLayout:
    """The layout that ``stream`` belongs to, which is of a lane of ``app``."""
    bridge = bridge_of(app)
    versions = (bridge.settings.lane.stream, *(version.stream for version in bridge.follows))
    return in_layout(stream, next((one for one in versions if stream in bridge.layout.all_streams(one)), None))


def served_lanes(app: Celery) -> tuple[AppLane, ...]:
    """The lanes that a worker of ``app`` serves. Raises `ConfigurationError` for a subscription that there is not."""
    lanes, serve = subscriptions_of(app), bridge_of(app).settings.serve
    for name in serve or ():
        if name not in lanes:
            raise ConfigurationError(
                f"bridge_serve: there is no subscription {name!r}; this app has: {', '.join(lanes)}"
            )
    return tuple(lane for name in serve or lanes for lane in lanes[name])
