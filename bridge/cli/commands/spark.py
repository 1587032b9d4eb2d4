"""``bridge spark``: the jobs of ``spark/``, each started as the program that it is.

This process becomes the job (exec): its signals, its exit code, its terminal and its process group are the job's own,
and there is nobody in between who could lose one of them or outlive it. What the job is not told it gets from the app:
the stream and the group as options, which whatever the user writes later overrides, and the server's address in the
environment, since it may hold a password and anybody may list the arguments of a process.
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
from bridge.cli.main import Target
from bridge.routing.errors import ConfigurationError

if TYPE_CHECKING:
    from bridge.settings.app import Settings

#: Where a job looks for the server's address when it has no ``--url``.
URL_VARIABLE = "TICKET_BRIDGE_URL"
#: The jobs' files. Beside this package, wherever it is installed: a folder ``spark`` of the user's is not meant.
JOBS = (Path(bridge.__file__).parent / "spark").resolve()


@dataclass(frozen=True)
class Job:
    """One job, and which of the app's settings it takes."""

    name: str
    summary: str
    #: Options that name the lane, beside ``--url``; none: the job needs no server.
    lane: tuple[str, ...] = ()
    #: Whether it refuses what the lane's master would refuse for its size.
    payloads: bool = False


ALL = (
    Job("push", "A log, a table or a folder that grows into the stream.", ("--stream",), payloads=True),
    Job("archive", "History, dead letters and messages into Parquet.", ("--stream", "--group")),
    Job("report", "What an archive says: tables and a page with charts."),
    Job("replay", "A part of an archive back into a stream.", ("--stream",), payloads=True),
)


@click.group(name="spark")
def spark() -> None:
    """Starts a Spark job: into the stream, out of it, and what can be learned from it.

    Each takes its own options (bridge spark push --help). Server, stream and group are the app's where they are not
    given.
    """


def program(job: Job, words: Sequence[str]) -> list[str]:
    """The command that is this job, run by this Python."""
    return [sys.executable, str(JOBS / f"{job.name}.py"), *words]


def needs_app(job: Job, words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether something about the lane is left for the app to say."""
    if not job.lane or "--help" in words:
        return False
    known = URL_VARIABLE in environ or _given("--url", words)
    return not (known and all(_given(option, words) for option in job.lane))


def of_the_lane(
    job: Job, settings: Settings, words: Sequence[str], environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The job's words and environment, with what the app says where the user says nothing."""
    said = {"--stream": settings.lane.stream, "--group": settings.lane.group}
    told = [word for option in job.lane if not _given(option, words) for word in (option, said[option])]
    if job.payloads and not _given("--max-payload", words):
        told += ["--max-payload", str(settings.lane.max_payload)]
    env = dict(environ)
    if not _given("--url", words):
        env.setdefault(URL_VARIABLE, settings.redis_url)
    return [*told, *words], env


def start(target: Target, job: Job, words: Sequence[str]) -> None:
    """Becomes the job. Raises `ConfigurationError` for a missing Spark and for an app that cannot be loaded."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigurationError("bridge spark needs PySpark: pip install 'ticket-bridge[spark]'")
    env = dict(os.environ)
    if needs_app(job, words, env):
        words, env = of_the_lane(job, _settings(target, job), words, env)
    command = program(job, words)
    sys.stdout.flush()
    sys.stderr.flush()
    # No shell: the words are the program's, one by one.
    os.execve(command[0], command, env)  # noqa: S606


def _settings(target: Target, job: Job) -> Settings:
    try:
        return target.settings
    except ConfigurationError as error:
        options = " ".join(option for option in ("--url", *job.lane))
        raise ConfigurationError(f"{error} (with {options} no app is needed)") from None


def _given(option: str, words: Sequence[str]) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in words)


def _command(job: Job) -> click.Command:
    @click.command(
        name=job.name,
        short_help=job.summary,
        # Everything behind the job's name is the job's, --help too.
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
        add_help_option=False,
    )
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    @click.pass_obj
    def started(target: Target, words: tuple[str, ...]) -> None:
        start(target, job, words)

    return started


for _job in ALL:
    spark.add_command(_command(_job))
