"""The command ``bridge``: also ``python -m bridge``, and ``celery -A tasks bridge …`` as a plugin of Celery's.

Every celery command loads this file, so it imports little. A command's module is loaded when the command is called.

Exit codes: 0 done, 1 failed or found something, 2 wrong usage. An error is one line on standard error.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from bridge.cli.group import Group

if TYPE_CHECKING:
    from celery import Celery

    from bridge.app.lanes import AppLane
    from bridge.inspect.advice import Advice
    from bridge.settings.app import Settings
    from bridge.settings.lane import LaneSettings

#: Command -> its module and name.
COMMANDS = {
    "run": "bridge.cli.commands.run:run",
    "up": "bridge.cli.commands.stack:up",
    "demo": "bridge.cli.commands.stack:demo",
    "push": "bridge.cli.commands.push:push",
    "status": "bridge.cli.commands.status:status",
    "ticket": "bridge.cli.commands.ticket:ticket",
    "consumer": "bridge.cli.commands.consumer:consumer",
    "pending": "bridge.cli.commands.pending:pending",
    "dead": "bridge.cli.commands.dead:dead",
    "delayed": "bridge.cli.commands.delayed:delayed",
    "subscription": "bridge.cli.commands.subscription:subscription",
    "stream": "bridge.cli.commands.stream:stream",
    "schedule": "bridge.cli.commands.schedule:schedule",
    "audit": "bridge.cli.commands.audit:audit",
    "acl": "bridge.cli.commands.acl:acl",
    "spark": "bridge.cli.commands.spark:spark",
}

#: The commands that are about the app, and not about one of its subscriptions. Those of Spark take it themselves.
WITHOUT_SUBSCRIPTION = ("run", "up", "demo", "push", "subscription", "stream", "schedule", "spark")
#: The commands that take an older version of the stream.
OF_A_VERSION = ("ticket", "consumer", "pending", "dead", "delayed", "audit", "status")

#: The app of a command without -A.
DEFAULT_APP = "tasks"

#: Help that click raises as an error. Before click 8.2 it is none.
_HELP: type[click.ClickException] | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())

#: A command of ours in a sentence that names neither an app nor a subscription.
_COMMAND = re.compile(r"`bridge (?P<words>(?!-A |--app )(?![^`]* (?:-s|--stream) )[^`]+)`")


class Commands(Group):
    """Loads a command when it is called, and prints an error of it as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(import_module(module), name)
        if cmd_name not in WITHOUT_SUBSCRIPTION:
            SUBSCRIPTION.add_to(command)
        if cmd_name in OF_A_VERSION:
            VERSION.add_to(command)
        return command

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        # It reads the options that stand before the command.
        try:
            return super().make_context(*args, **extra)
        except click.ClickException as exc:
            raise _on_one_line(exc) from None
        except OSError as exc:
            # Of help, or of the version.
            from bridge.link.failures import translated

            shown = translated(exc)
            if shown is None:
                raise
            _drop_unwritten()
            raise click.ClickException(str(shown)) from None

    def invoke(self, ctx: click.Context) -> Any:
        if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
            # Python has the second one in the locale C. A name may have characters that the terminal's encoding lacks.
            # They are printed as escapes (``\xdc``).
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as exc:
            if exc.option_name in ("-A", "--app"):
                usage = f"put it before the command: {ctx.command_path} {exc.option_name} APP …"
                raise click.UsageError(f"{exc.option_name} is an option of {ctx.command_path}; {usage}", ctx) from None
            raise _on_one_line(exc) from None
        except click.ClickException as exc:
            raise _on_one_line(exc) from None
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as exc:
            from bridge.cli.terminal import echo_error
            from bridge.link.failures import translated

            shown = translated(exc)
            if shown is None:
                raise
            _drop_unwritten()
            target = ctx.find_object(Target)
            echo_error(str(shown) if target is None else target.completed(str(shown)))
            ctx.exit(shown.exit_code)


def _on_one_line(exc: click.ClickException) -> click.ClickException:
    """``exc`` with a message of one line: click puts names into it as they are. Help, which is one for click, stays."""
    if isinstance(exc, _HELP):
        return exc
    from bridge.routing.text import printable

    text = exc.format_message()
    if isinstance(exc, click.MissingParameter):
        # click itself lists the choices on lines. No text of a user is in it.
        text = " ".join(text.split())
    shown = click.ClickException(printable(text))
    if isinstance(exc, click.UsageError):
        shown = click.UsageError(printable(text), exc.ctx)
    return shown


def _drop_unwritten() -> None:
    """Drops output that cannot be written. Python would try again when it ends, and print a second error."""
    try:
        sys.stdout.flush()
    except OSError:
        with Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())


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
        from bridge.inspect.advice import Advice

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
        from bridge.inspect.advice import Advice, with_options

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


def _app_of_celery(ctx: click.Context) -> tuple[str | None, Celery | None]:
    """The app that ``celery -A APP bridge …`` names, and has loaded. None: Celery was called without -A, or not at
    all.
    """
    named = None if ctx.parent is None else ctx.parent.params.get("app")
    if ctx.parent is None or not named:
        # Without -A Celery makes an app without configuration.
        return None, None
    # A program that calls Celery's command line may hand over the app itself.
    return named if isinstance(named, str) else None, getattr(ctx.parent.obj, "app", None)


def _print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from bridge.protocol.agreement import package_version

        click.echo(f"ticket-bridge {package_version()}")
        ctx.exit()


@click.command(name="bridge", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-A", "--app", "name", default=None, metavar="APP", help="The Celery app, as for celery -A.  [default: tasks]"
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@click.pass_context
def cli(ctx: click.Context, name: str | None) -> None:
    """Ticket Bridge: strict per-ticket order for Celery, on the Redis you already run."""
    of_celery, app = (name, None) if name else _app_of_celery(ctx)
    ctx.obj = Target(of_celery or DEFAULT_APP, app)


def main() -> None:
    """The console script."""
    cli(prog_name="bridge")
    sys.exit(0)
