"""What a command is about: the app, a subscription of it, and a version of its stream; and the options that name these.

It is loaded with every command, so it imports little.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import click

from bridge.inspect.advice import DEFAULT_APP, Advice, with_options

if TYPE_CHECKING:
    from celery import Celery

    from bridge.app.lanes import AppLane
    from bridge.settings.app import Settings
    from bridge.settings.lane import LaneSettings

#: The commands that are about the app, and not about one of its subscriptions. Those of Spark take it themselves.
WITHOUT_SUBSCRIPTION = ("run", "up", "demo", "push", "subscription", "stream", "schedule", "spark")
#: The commands that take an older version of the stream.
OF_A_VERSION = ("ticket", "consumer", "pending", "dead", "delayed", "audit", "status")

#: A command of ours in a sentence that names neither an app nor a subscription.
_COMMAND = re.compile(r"`bridge (?P<words>(?!-A |--app )(?![^`]* (?:-s|--stream) )[^`]+)`")


class Chosen(NamedTuple):
    """An option of several commands that names what a command is about."""

    names: list[str]
    callback: Callable[[click.Context, click.Parameter, str | None], None]
    help: str

    def add_to(self, command: click.Command) -> None:
        """Adds the option to ``command``, or to the commands of a group, that lack it."""
        if isinstance(command, click.Group):
            for inner in command.commands.values():
                self.add_to(inner)
        elif not any(self.names[0] in parameter.opts for parameter in command.params):
            command.params.append(
                click.Option(self.names, expose_value=False, metavar="NAME", callback=self.callback, help=self.help)
            )


def _chosen(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.find_object(Target).subscription = value  # type: ignore[union-attr]


def _chosen_version(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.find_object(Target).version = value  # type: ignore[union-attr]


SUBSCRIPTION = Chosen(["-s", "--subscription"], _chosen, "The subscription to use. Needed when the app has several.")
VERSION = Chosen(
    ["--stream"], _chosen_version, "An older version of the stream (bridge_follows).  [default: the newest]"
)
#: For commands that are about all versions.
ANY_VERSION = VERSION._replace(help="Only this version of the stream, or old partition.  [default: all]")


class Target:
    """The Celery app of a command, loaded at first use."""

    def __init__(self, name: str, app: Celery | None = None) -> None:
        self.name = name
        self._app = app
        #: The subscription that the command is about, as ``-s`` names it; None: the only one.
        self.subscription: str | None = None
        #: The version of the stream that it is about, as ``--stream`` names it; None: the newest.
        self.version: str | None = None
        self._learned = False

    @property
    def app(self) -> Celery:
        """The app. Raises `ConfigurationError` when it cannot be loaded or has no bridge."""
        from bridge.app.finding import load_app
        from bridge.app.installed import bridge_of

        if self._app is None:
            self._app = load_app(self.name)
        bridge_of(self._app)
        return self._app

    @cached_property
    def app_lanes(self) -> tuple[AppLane, ...]:
        """The lanes that the command is about, one for each partition of the stream as it is. Raises
        `ConfigurationError`, and redis errors.
        """
        from bridge.app.lanes import lanes_of_version, newest_lanes_of

        self.learn()
        if self.version is not None:
            return lanes_of_version(self.app, self.subscription, self.version)
        return newest_lanes_of(self.app, self.subscription)

    @cached_property
    def lanes_of_all_versions(self) -> tuple[AppLane, ...]:
        """As `app_lanes`, on all versions of the stream unless --stream names one. Those of one ticket are oldest
        first.
        """
        from bridge.app.lanes import lanes_of_subscription

        self.learn()
        return self.app_lanes if self.version is not None else lanes_of_subscription(self.app, self.subscription)

    def learn(self) -> None:
        """Learns what decides which lanes the app has: its tasks, and how the stream is split."""
        from bridge.app.finding import learn_layout, load_tasks

        if not self._learned:
            # Tasks may name subscriptions.
            load_tasks(self.app)
            learn_layout(self.app)
            self._learned = True

    @property
    def versions(self) -> list[str]:
        """The versions of the app's stream, oldest first."""
        bridge = self.app.bridge
        return [*(version.stream for version in bridge.follows), bridge.settings.lane.stream]

    @property
    def status_lanes(self) -> tuple[AppLane, ...]:
        """The lanes that a status is about: of all versions and partitions, unless --stream names one of these."""
        from bridge.app.lanes import lanes_of
        from bridge.routing.errors import ConfigurationError

        self.learn()
        lanes = lanes_of(self.app) if self.subscription is None else self._lanes_of(self.subscription)
        if self.version is None:
            return lanes
        of_stream = tuple(lane for lane in lanes if lane.settings.stream == self.version)
        if of_stream:
            return of_stream
        streams = self.app.bridge.layout.streams(self.version)
        if self.version in self.versions and len(streams) > 1:
            return tuple(lane for lane in lanes if lane.settings.stream in streams)
        known = ", ".join(dict.fromkeys(lane.settings.stream for lane in lanes[:10]))
        raise ConfigurationError(f"--stream: this app does not know {self.version!r}; its streams: {known}")

    def _lanes_of(self, name: str) -> tuple[AppLane, ...]:
        from bridge.app.lanes import newest_lanes_of, subscriptions_of

        # Raises when there is no such subscription.
        newest_lanes_of(self.app, name)
        return subscriptions_of(self.app)[name]

    def commands(self, lane: LaneSettings) -> Advice:
        """Writes commands about ``lane``."""
        of_version = {
            stream: version for version in self.versions for stream in self.app.bridge.layout.streams(version)
        }
        version = of_version.get(lane.stream, lane.stream)
        return Advice(
            None if self.name == DEFAULT_APP else self.name,
            lane.group if len(self.subscriptions) > 1 else None,
            None if version == self.versions[-1] else version,
        )

    def completed(self, text: str) -> str:
        """``text``, in which each command of ours that names no app can be run as it is: about this app, and about the
        subscription and version that this command is about.
        """

        def command(found: re.Match[str]) -> str:
            words = found["words"]
            name = words.partition(" ")[0]
            options = ["-s", self.subscription] if self.subscription and name not in WITHOUT_SUBSCRIPTION else []
            options += ["--stream", self.version] if self.version and name in OF_A_VERSION else []
            start = Advice(None if self.name == DEFAULT_APP else self.name).of_app().strip("`")
            return f"`{with_options(f'{start} {words}', options)}`"

        return _COMMAND.sub(command, text)

    @property
    def app_lane(self) -> AppLane:
        """The first of `app_lanes`."""
        return self.app_lanes[0]

    def lane_of_ticket(self, ticket_id: str) -> AppLane:
        """The lane of the partition of a ticket. Raises `PayloadError` for what cannot be a ticket."""
        from bridge.inspect.choice import lane_of_ticket

        return lane_of_ticket(self.app_lanes, ticket_id)

    def lane_of_message(self, message_id: str) -> AppLane:
        """The lane of the partition that a message id names. Raises `InputError`."""
        from bridge.inspect.choice import lane_of_message

        return lane_of_message(self.app_lanes, message_id)

    @property
    def unsplit_lane(self) -> LaneSettings:
        """The settings of the lane on the stream itself, as if it were not split. Needs no server. Raises
        `ConfigurationError`.
        """
        from bridge.app.finding import load_tasks
        from bridge.app.lanes import unsplit_lane_of

        load_tasks(self.app)
        return unsplit_lane_of(self.app, self.subscription).settings

    @property
    def unsplit_lanes(self) -> list[LaneSettings]:
        """As `unsplit_lane`; of all subscriptions when the command names none. Raises `ConfigurationError`."""
        from bridge.app.finding import load_tasks
        from bridge.app.lanes import unsplit_lanes_of

        if self.subscription is not None:
            return [self.unsplit_lane]
        load_tasks(self.app)
        return [lane.settings for lane in unsplit_lanes_of(self.app)]

    @cached_property
    def subscriptions(self) -> dict[str, list[LaneSettings]]:
        """Name -> its lanes, of all subscriptions of the app. Raises `ConfigurationError`."""
        from bridge.app.lanes import subscriptions_of

        self.learn()
        return {name: [lane.settings for lane in lanes] for name, lanes in subscriptions_of(self.app).items()}

    @property
    def settings(self) -> Settings:
        """The app's validated settings, with those of the command's lane. Raises `ConfigurationError`."""
        settings: Settings = self.app.bridge.settings
        return settings.model_copy(update={"lane": self.lane})

    @property
    def lane(self) -> LaneSettings:
        """The validated settings of the command's lane. Raises `ConfigurationError`."""
        return self.app_lane.settings
