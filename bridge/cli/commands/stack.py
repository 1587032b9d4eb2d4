"""``bridge up`` and ``bridge demo``: run the whole stack on this machine, without and with data."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge.cli.parameters import Number
from bridge.cli.target import Target
from bridge.cli.terminal import echo_json
from bridge.routing.errors import ConfigurationError, ServerStartFailed
from bridge.routing.terminal import console

if TYPE_CHECKING:
    from redis import Redis

    from bridge.settings.lane import LaneSettings
    from bridge.stack.stack import Plan, Stack

#: The variables with which ``celeryconfig.py`` declares the further subscriptions of `bridge demo`.
TRAIL_VARIABLE, NOTICES_VARIABLE = "BRIDGE_AUDIT_TRAIL", "BRIDGE_NOTICES"
#: The variable from which an app takes the lease of ``--lease``, as ``celeryconfig.py`` does.
LEASE_VARIABLE = "BRIDGE_LEASE"

PORT = click.IntRange(0, 65535)

#: Options of both commands.
SHARED: tuple[Callable[[Any], Any], ...] = (
    click.option("--workers", default=3, show_default=True, type=click.IntRange(1, 100), help="Celery workers."),
    click.option(
        "--concurrency",
        type=click.IntRange(1, 256),
        help="Pool processes of each worker.  [default: cores / workers, at least 1]",
    ),
    click.option("--masters", default=2, show_default=True, type=click.IntRange(1, 20), help="Masters; one leads."),
    click.option("--port", default=0, type=PORT, help="The server's port.  [default: a free one]"),
    click.option("--flower-port", default=0, type=PORT, help="Flower's port.  [default: a free one]"),
    click.option("--no-flower", is_flag=True, help="Start no Flower."),
    click.option(
        "--lease",
        type=Number(0.5, 3600),
        help=f"A worker's lease in seconds, of an app that takes it from {LEASE_VARIABLE}.  [default: bridge_lease]",
    ),
    click.option(
        "--dir",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        help="The folder for logs and data.  [default: a new folder under ./run]",
    ),
)


def shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of both commands, in the order above."""
    for option in reversed(SHARED):
        command = option(command)
    return command


@click.command()
@shared_options
@click.pass_obj
def up(target: Target, /, **options: Any) -> None:
    """Runs the whole stack on this machine, without data, until Ctrl-C.

    The data stays in the folder of the run. --dir with the same folder uses it again.
    """
    from bridge.stack.stack import Stack
    from bridge.stack.stopping import Stopped, StopRequest

    say = console().print
    plan = plan_of(target, "up", options)

    def lanes(redis: Redis | None = None) -> list[LaneSettings]:
        return [one for each in lanes_of_stack(target, redis).values() for one in each]

    with (
        StopRequest() as stop,
        contextlib.suppress(Stopped),
        Stack(plan, lanes(), stop, say, lanes_on=lanes) as stack,
    ):
        stack.start()
        until_stopped(stack, say)
    say("stopped")


@click.command()
@click.option("--events", metavar="FILE", help="An incident log.  [default: a generated one, 20,000 events]")
@click.option("--keep", is_flag=True, help="Keep the stack running after the verdict, until Ctrl-C.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the verdict as JSON on standard output, and the rest on standard error.",
)
@shared_options
@click.pass_context
def demo(ctx: click.Context, /, events: str | None, keep: bool, as_json: bool, **options: Any) -> None:
    """Runs the whole stack with data, kills a worker, and checks the result.

    Two subscriptions get every event: one keeps the state of each incident, the other one an audit trail. Exits 0 when
    both lost, reordered and overlapped nothing, and every incident has the state that Spark computed from the log, and
    a trail of all its events. Else exits 1. BRIDGE_AUDIT_TRAIL=0 runs it without the trail.

    A third one gets the urgent events, which a program in Node handles over HTTP. Without Node or the extra http it
    runs without that one, and says so; with BRIDGE_NOTICES=0 too.
    """
    from bridge.stack.demo.demo import Demo
    from bridge.stack.demo.notices import why_not
    from bridge.stack.stopping import Stopped, StopRequest

    target: Target = ctx.obj
    shown = console(err=as_json)
    # The app is loaded after it. A value that the user has set holds; an empty one is none.
    for variable in (TRAIL_VARIABLE, NOTICES_VARIABLE):
        os.environ[variable] = os.environ.get(variable) or "1"
    no_node = why_not() if os.environ[NOTICES_VARIABLE] != "0" else None
    if no_node is not None:
        os.environ[NOTICES_VARIABLE] = "0"
    plan = plan_of(target, "demo", options)
    with StopRequest() as stop:
        try:
            stream = target.app.bridge.settings.lane.stream
            with Demo(plan, stream, lanes_of_stack(target), events, stop, shown) as run:
                if no_node is not None:
                    shown.print(f"Node      no HTTP consumer: {no_node}")
                verdict = run.run()
                if as_json:
                    echo_json(verdict.as_dict())
                if keep:
                    with contextlib.suppress(Stopped):
                        until_stopped(run.stack, shown.print)
        except Stopped:
            shown.print("stopped before the end: no verdict")
            ctx.exit(130)
    ctx.exit(0 if verdict.ok else 1)


def plan_of(target: Target, kind: str, options: Mapping[str, Any]) -> Plan:
    """The plan that the options describe. Raises `ConfigurationError` when the app does not take their lease."""
    from bridge.stack.stack import Plan

    lease = options["lease"]
    env = {} if lease is None else {LEASE_VARIABLE: str(lease)}
    # The app is loaded with what masters and workers will find in their environment. They find the server's address,
    # too; here an app that names no other only needs one.
    broker = os.environ.get("CELERY_BROKER_URL") or "redis://127.0.0.1/0"
    with _environment({"CELERY_BROKER_URL": broker, **env}):
        settings = target.app.bridge.settings
    own = settings.lane.lease
    if lease not in (None, own):
        whatever = f"the app {target.name} has a lease of {own:g} s whatever {LEASE_VARIABLE} says"
        raise ConfigurationError(f"--lease: {whatever}; set its bridge_lease")
    directory = options["directory"]
    return Plan(
        app=target.name,
        directory=directory.resolve() if directory is not None else run_directory(kind),
        workers=options["workers"],
        # More processes than cores only make each other wait.
        concurrency=options["concurrency"] or max(1, (os.cpu_count() or 1) // options["workers"]),
        masters=options["masters"],
        port=options["port"],
        flower=not options["no_flower"],
        flower_port=options["flower_port"],
        serve=settings.serve or (),
        env=env,
    )


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of this process within the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def run_directory(kind: str) -> Path:
    """Makes a new folder for one run, under ``./run``."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        directory = Path("run") / f"{kind}-{stamp}{suffix}"
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as exc:
            raise ServerStartFailed(
                f"cannot make {directory}: {exc.strerror}; choose another folder with --dir"
            ) from None
        return directory.resolve()
    raise ServerStartFailed("cannot find a free name under ./run; choose a folder with --dir")


def lanes_of_stack(target: Target, redis: Redis | None = None) -> dict[str, list[LaneSettings]]:
    """Subscription -> its lanes, as the children will have them: by the layout on the server ``redis``; None: by the
    settings.
    """
    from bridge.app.finding import load_tasks
    from bridge.app.joining import read_layouts
    from bridge.app.lanes import subscriptions_of

    load_tasks(target.app)
    if redis is not None:
        read_layouts(target.app, redis)
    return {name: [lane.settings for lane in lanes] for name, lanes in subscriptions_of(target.app).items()}


def until_stopped(stack: Stack, say: Callable[[str], None]) -> None:
    """Prints the addresses, then watches the processes. Raises `Stopped`, or `StackFailed`."""
    from bridge.stack.demo.demo import TRAIL
    from bridge.stack.demo.notices import NOTICES

    url = stack.server.url
    app = "" if stack.plan.app == "tasks" else f" -A {stack.plan.app}"
    groups = {lane.group for lane in stack.lanes}
    further = ((TRAIL, TRAIL_VARIABLE), (NOTICES, NOTICES_VARIABLE))
    with_them = "".join(f"{variable}=1 " for name, variable in further if name in groups)
    say("")
    say(f"Redis     {url}")
    if stack.plan.flower:
        say(f"Flower    {stack.flower_url}")
    # The app of this repository reads a variable of its own. Celery's is for any other.
    variable = "BRIDGE_BROKER_URL" if stack.plan.app == "tasks" else "CELERY_BROKER_URL"
    say(f"push      {with_them}{variable}={url} bridge{app} push FILE")
    say(f"status    {with_them}{variable}={url} bridge{app} status --watch")
    say(f"logs      {stack.plan.directory}")
    say("Ctrl-C stops everything.")
    stack.wait_for(lambda: False, "Ctrl-C", poll_s=0.2)
