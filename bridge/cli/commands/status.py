"""``bridge status``: prints the state of the lane, once or every second."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bridge.cli.commands.consumer import table
from bridge.cli.parameters import Number
from bridge.cli.target import Target
from bridge.cli.terminal import echo_json
from bridge.routing.numbers import count, duration
from bridge.routing.terminal import console
from bridge.routing.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.inspect.advice import Advice
    from bridge.inspect.status import LaneStatus
    from bridge.inspect.subscription_status import SubscriptionStatus
    from bridge.settings.app import Settings
    from bridge.settings.lane import LaneSettings


@click.command()
@click.option("--watch", "-w", is_flag=True, help="Print it again every second, until Ctrl-C.")
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=Number(0.1, 3600),
    help="With --watch: seconds between two prints.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON. With --watch: one object on each line.")
@click.pass_obj
def status(target: Target, watch: bool, interval: float, as_json: bool) -> None:
    """Prints the state of the lane: its leader, counts of messages, and each consumer.

    Of an app with several subscriptions: one row for each; -s NAME chooses one. Of a subscription with several lanes,
    because the stream is split or has older versions: one row for all, and one for each. --stream chooses one.
    Exits 0 when the server answered, whatever the state is.
    """
    lanes = target.status_lanes
    show = _of_lane(target, lanes[0]) if len(lanes) == 1 else _of_lanes(target, lanes)
    if watch:
        try:
            _watch(show, interval, as_json)
        except KeyboardInterrupt:
            # Ctrl-C is the normal end of --watch.
            return
        return
    found = show.read()
    if as_json:
        echo_json(show.document(found))
    else:
        console().print(show.view(found))


@dataclass(frozen=True)
class _Shown:
    """What is shown, and how."""

    read: Callable[[], Any]
    document: Callable[[Any], dict[str, Any]]
    view: Callable[[Any], RenderableType]
    line: Callable[[Any], str]


def _of_lane(target: Target, lane: AppLane) -> _Shown:
    from bridge.app.finding import reach_lane
    from bridge.inspect.status import read_status

    settings = target.app.bridge.settings.model_copy(update={"lane": lane.settings})
    redis, commands = reach_lane(target.app, lane.settings), target.commands(lane.settings)

    def read() -> LaneStatus:
        found = read_status(redis, settings, commands)
        return replace(found, problems=(*found.problems, *_of_app(redis, target, commands)))

    return _Shown(read, as_document, lambda found: view(found, commands), line)


def _of_lanes(target: Target, lanes: Sequence[AppLane]) -> _Shown:
    from bridge.app.finding import reach
    from bridge.cli import subscription_view
    from bridge.inspect.lane_problems import lane_problems
    from bridge.inspect.notices import notice_problems
    from bridge.inspect.subscriptions import read_subscriptions

    redis, settings, commands = reach(target.app), target.app.bridge.settings, target.commands(lanes[0].settings)
    meant: dict[str, list[LaneSettings]] = {}
    for lane in lanes:
        meant.setdefault(lane.name, []).append(lane.settings)
    each = {lane.title: [lane.settings] for lane in lanes} if len(meant) == 1 else {}

    def read() -> _Several:
        found = read_subscriptions(redis, meant)
        problems = lane_problems(redis, settings, lanes, found, target.commands)
        rows = read_subscriptions(redis, each) if each else []
        if settings.on_dead_notify:
            problems += notice_problems(redis, [lane.settings.keys for lane in lanes])
        return _Several(found, rows, [*problems, *_of_app(redis, target, commands)])

    def document(found: _Several) -> dict[str, Any]:
        return {
            "subscriptions": [one.document(commands) for one in found.subscriptions],
            "lanes": [one.document(commands) for one in found.lanes],
            "schedule": len(settings.schedule),
            "problems": found.problems,
        }

    def shown(found: _Several) -> RenderableType:
        table = subscription_view.view(found.subscriptions, found.problems, found.lanes, commands, target.version)
        if not settings.schedule:
            return table
        return Group(table, Text(f"schedule: {_schedule(len(settings.schedule), commands)}"))

    return _Shown(read, document, shown, lambda found: subscription_view.line(found.subscriptions))


@dataclass(frozen=True)
class _Several:
    """The state of several lanes. ``lanes``: of each alone, when they are of one subscription."""

    subscriptions: list[SubscriptionStatus]
    lanes: list[SubscriptionStatus]
    problems: list[str]


def _of_app(redis: Redis, target: Target, commands: Advice) -> list[str]:
    """Problems of no lane of the app."""
    from bridge.inspect.dropped import dropped_problems, read_dropped
    from bridge.inspect.streams import read_retired, read_unread, retired_problems
    from bridge.inspect.undeclared import undeclared_holders
    from bridge.routing.layouts import difference

    bridge = target.app.bridge
    settings: Settings = bridge.settings
    wanted, stream = settings.partitions, settings.lane.stream
    repartition = commands.of_app("stream", "repartition", str(wanted))
    differs = difference(bridge.layout, wanted, stream, repartition)
    retired = retired_problems(read_retired(redis, target.versions), commands)
    unread = [one.problem for one in read_unread(redis, target.app)]
    undeclared = undeclared_holders(redis, target.subscriptions, commands)
    dropped = dropped_problems(redis, read_dropped(redis, target.status_lanes))
    return [*([] if differs is None else [differs]), *unread, *undeclared, *retired, *dropped]


def as_document(lane: LaneStatus) -> dict[str, Any]:
    """The JSON of ``--json``."""
    return asdict(lane)


def _watch(show: _Shown, interval: float, as_json: bool) -> None:
    from bridge.link.failures import translated

    out = console()
    live = None if as_json or not out.is_terminal else Live(console=out, auto_refresh=False, screen=False)
    try:
        if live is not None:
            live.start()
        while True:
            began = time.monotonic()
            found, trouble = None, ""
            try:
                found = show.read()
            except Exception as exc:
                shown = translated(exc)
                if shown is None:
                    raise
                # The next round may succeed.
                trouble = printable(str(shown))
            if live is not None:
                live.update(Text(trouble, "red") if trouble else show.view(found), refresh=True)
            elif as_json:
                echo_json({"error": trouble} if trouble else show.document(found), pretty=False)
            else:
                click.echo(f"{datetime.now().astimezone():%H:%M:%S} {trouble}" if trouble else show.line(found))
            time.sleep(max(0.0, interval - (time.monotonic() - began)))
    finally:
        if live is not None:
            live.stop()


def line(lane: LaneStatus) -> str:
    """The state on one line, for a log."""
    alive = sum(1 for consumer in lane.consumers if consumer.alive)
    leader = f"term {lane.leader.term}" if lane.leader else "no leader"
    unread = unread_of(lane)
    now = datetime.now().astimezone()
    return (
        f"{now:%H:%M:%S} {leader}, consumers {alive}, unread {unread}, waiting {lane.waiting:,}, "
        f"in flight {lane.in_flight:,}, retrying {lane.awaiting_retry:,}, delayed {lane.delayed:,}, "
        f"parked {lane.parked:,}, dead {lane.dead:,}, done {lane.counters.get('done', 0):,}"
    )


def unread_of(lane: LaneStatus) -> str:
    """The number of unread messages. "at most" when the number is an upper bound."""
    return f"at most {lane.unread:,}" if lane.unread_why else f"{lane.unread:,}"


def view(lane: LaneStatus, commands: Advice) -> RenderableType:
    """The state as tables."""
    from bridge.inspect.status import TROUBLE

    facts = Table.grid(padding=(0, 2))
    facts.add_row("lane", f"{printable(lane.stream)} / {printable(lane.group)} ({lane.length:,} entries)")
    facts.add_row("server", f"{lane.server} at {printable(lane.url)}")
    if lane.leader is None:
        facts.add_row("leader", Text("none", "red"))
    else:
        held = f"{printable(lane.leader.holder)}, term {lane.leader.term}, lease {duration(lane.leader.lease_ms)} left"
        facts.add_row("leader", held)
    facts.add_row("unread", unread_of(lane))
    facts.add_row("waiting", f"{lane.waiting:,}")
    facts.add_row("in flight", f"{lane.in_flight:,}")
    facts.add_row("retrying", f"{lane.awaiting_retry:,}")
    facts.add_row("delayed", _delayed(lane, commands))
    facts.add_row("dead", f"{lane.dead:,}" + (f" ({commands.bridge('dead', 'list')})" if lane.dead else ""))
    if lane.schedule:
        facts.add_row("schedule", _schedule(lane.schedule, commands))
    if lane.notices is not None:
        sent = lane.notices
        tries = f", {count(sent.failed, 'request')} failed" if sent.failed else ""
        facts.add_row("notices", f"{count(sent.told, 'dead letter')} sent{tries}")
    facts.add_row("parked", _parked(lane, commands))
    facts.add_row("oldest", "nothing undone" if lane.oldest_undone_ms is None else duration(lane.oldest_undone_ms))
    usual = {name: number for name, number in lane.counters.items() if number and name not in TROUBLE}
    facts.add_row("so far", ", ".join(f"{name} {number:,}" for name, number in usual.items()) or "nothing")
    trouble = {name: lane.counters[name] for name in TROUBLE if lane.counters.get(name)}
    if trouble:
        facts.add_row("trouble", ", ".join(f"{name} {number:,}" for name, number in trouble.items()))
    parts: list[RenderableType] = [facts, Text("")]
    if lane.consumers:
        parts.append(table(lane.consumers))
    else:
        parts.append(Text("no consumers"))
    parts += [Text(f"! {problem}", "yellow") for problem in lane.problems]
    return Group(*parts)


def _delayed(lane: LaneStatus, commands: Advice) -> str:
    if not lane.delayed or lane.next_due_in_ms is None:
        return f"{lane.delayed:,}"
    due = f"in {duration(lane.next_due_in_ms)}" if lane.next_due_in_ms > 0 else "now"
    return f"{lane.delayed:,} (the next is due {due}; {commands.bridge('delayed', 'list')})"


def _schedule(entries: int, commands: Advice) -> str:
    return f"{count(entries, 'recurring message')} ({commands.of_app('schedule', 'list')})"


def _parked(lane: LaneStatus, commands: Advice) -> str:
    number = f"{lane.parked:,}" if lane.parked_complete else f"at least {lane.parked:,}"
    if not lane.parked:
        return number
    listed = commands.bridge("ticket", "list", "--parked")
    return f"{number} ({count(lane.parked_messages, 'message')} waiting; {listed})"
