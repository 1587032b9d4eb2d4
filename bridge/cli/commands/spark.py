"""``bridge spark``: starts a job of ``spark/``.

The command replaces its own process with the job (exec). So signals, exit code, terminal and process group belong to
the job, and no process stands between.

Options that the user leaves out come from the app. Stream and group are passed as options; options of the user come
later and win. The server's address is passed in the environment: it may hold a password, and other users can list the
arguments of a process.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

import bridge
from bridge.cli.group import Group
from bridge.cli.target import Target
from bridge.routing.errors import ConfigurationError

if TYPE_CHECKING:
    from bridge.settings.app import Settings

#: The environment variable with the server's address, for a job without ``--url``.
URL_VARIABLE = "TICKET_BRIDGE_URL"
#: What names a subscription.
OPTIONS = ("-s", "--subscription")
#: What names the task of the rows that are pushed.
TASKS = ("--task", "--task-column")
#: The folder of the jobs, in this package. A user's own folder ``spark`` is not used.
JOBS = (Path(bridge.__file__).parent / "spark").resolve()


@dataclass(frozen=True)
class Job:
    """One job, and the settings of the app that it takes."""

    name: str
    summary: str
    #: Options for the lane, beside ``--url``.
    lane: tuple[str, ...] = ()
    #: Whether it needs no server: then its lane is named by ``-s`` only.
    offline: bool = False
    #: Whether it takes ``--max-payload``, the limit of the lane's master.
    payloads: bool = False


ALL = (
    Job("push", "Pushes a log, a table or a growing folder into the stream.", ("--stream",), payloads=True),
    Job("archive", "Writes history, dead letters and messages to Parquet.", ("--stream", "--group")),
    Job("report", "Makes tables and a page with charts from an archive.", ("--stream", "--group"), offline=True),
    Job("replay", "Pushes a part of an archive into a stream again.", ("--stream",), payloads=True),
)


@click.group(name="spark", cls=Group)
def spark() -> None:
    """Starts a Spark job.

    Each job has its own options: see bridge spark push --help. Server, stream and group are those of the app, unless
    options say otherwise. archive takes -s NAME, where the app has several subscriptions; report takes it to check
    that the archive is that subscription's.
    """


def program(job: Job, arguments: Sequence[str]) -> list[str]:
    """The command line that runs this job with this Python."""
    return [sys.executable, str(JOBS / f"{job.name}.py"), *arguments]


def needs_app(job: Job, subscription: str | None, arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether the job needs a setting of the app: the user left out the server or an option of the lane."""
    if "--help" in arguments:
        return False
    if job.offline:
        return subscription is not None
    known = bool(environ.get(URL_VARIABLE)) or _has_option("--url", arguments)
    return not (known and all(_has_option(option, arguments) for option in job.lane))


def of_the_lane(
    job: Job, settings: Settings, arguments: Sequence[str], environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The job's arguments and environment, completed from the app's settings."""
    values = {"--stream": settings.lane.stream, "--group": settings.lane.group}
    added = [
        argument for option in job.lane if not _has_option(option, arguments) for argument in (option, values[option])
    ]
    if job.payloads and not _has_option("--max-payload", arguments):
        added += ["--max-payload", str(settings.lane.max_payload)]
    env = dict(environ)
    if not job.offline and not _has_option("--url", arguments):
        # A compose file passes a variable on that is not set.
        env[URL_VARIABLE] = env.get(URL_VARIABLE) or settings.redis_url
    return [*added, *arguments], env


def start(target: Target, job: Job, arguments: Sequence[str]) -> None:
    """Replaces this process with the job. Raises `ConfigurationError` without Spark or without an app."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigurationError("bridge spark needs PySpark: pip install 'ticket-bridge[spark]'")
    env = dict(os.environ)
    if "--group" in job.lane:
        target.subscription, arguments = take_subscription(arguments)
    if needs_app(job, target.subscription, arguments, env):
        settings = _settings(target, job)
        is_here = job.name == "push" and not any(map(_is_elsewhere, arguments))
        if is_here and settings.default_task is None and not any(_has_option(option, arguments) for option in TASKS):
            raise ConfigurationError("no row names a task: add --task or --task-column, or set bridge_default_task")
        arguments, env = of_the_lane(job, settings, arguments, env)
        if is_here and settings.partitions > 1:
            _store_layout(settings, env[URL_VARIABLE])
    command = program(job, arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    # No shell: the arguments reach the program unchanged.
    os.execve(command[0], command, env)  # noqa: S606


def take_subscription(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """(the value of ``-s`` or ``--subscription``, the other arguments). For a job that reads one lane.

    The job does not know this option. Raises `ConfigurationError`, one line.
    """
    found: str | None = None
    rest: list[str] = []
    left = list(arguments)
    while left:
        argument = left.pop(0)
        name, equals, value = argument.partition("=")
        if argument == "--":
            rest += [argument, *left]
            break
        if argument in OPTIONS or (name == OPTIONS[1] and equals):
            if not equals and not left:
                raise ConfigurationError(f"{argument} needs the name of a subscription")
            found = value if equals else left.pop(0)
        else:
            rest.append(argument)
    if found is not None and _has_option("--group", rest):
        raise ConfigurationError(f"{OPTIONS[0]} and --group both name the lane: leave one out")
    return found, rest


def _is_elsewhere(argument: str) -> bool:
    """Whether an argument names another server or stream than the app's."""
    return argument.startswith(("--url", "--stream"))


def _store_layout(settings: Settings, url: str) -> None:
    """Stores how the app's stream is split, if nobody has so far: the job goes by what is stored at its ``url``."""
    from bridge.link.connections import client
    from bridge.routing.address import check_login
    from bridge.routing.layouts import claim_layout

    try:
        check_login(url)
        redis = client(url)
        # It is not opened. Making it checks the options of the URL.
        redis.connection_pool.make_connection()
    except (ConfigurationError, ValueError, TypeError):
        # The job says what is wrong with its address.
        return
    with redis:
        claim_layout(redis, settings.lane.stream, settings.partitions, settings.older_streams)


def _settings(target: Target, job: Job) -> Settings:
    try:
        app_settings: Settings = target.app.bridge.settings
        if "--group" not in job.lane:
            # It is about the stream, and so about no subscription.
            return app_settings
        return app_settings.model_copy(update={"lane": target.unsplit_lane})
    except ConfigurationError as error:
        options = " ".join(option for option in ("--url", *job.lane))
        raise ConfigurationError(f"{error} (with {options} no app is needed)") from None


def _has_option(option: str, arguments: Sequence[str]) -> bool:
    return any(argument == option or argument.startswith(f"{option}=") for argument in arguments)


def _command(job: Job) -> click.Command:
    @click.command(
        name=job.name,
        short_help=job.summary,
        # All arguments after the job's name are the job's, --help included.
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
        add_help_option=False,
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_obj
    def started(target: Target, arguments: tuple[str, ...]) -> None:
        start(target, job, arguments)

    return started


for _job in ALL:
    spark.add_command(_command(_job))
