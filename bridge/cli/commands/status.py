"""``bridge status``: prints the state of the lane, once or every second."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bridge.cli.commands.consumer import table
from bridge.cli.main import Target
from bridge.cli.parameters import Number
from bridge.cli.terminal import console, echo_json
from bridge.routing.text import count, duration, printable

if TYPE_CHECKING:
    from bridge.inspect.status import LaneStatus


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

    Exits 0 when the server answered, whatever the state of the lane is.
    """
    from bridge.app.finding import reach_lane
    from bridge.inspect.status import look

    settings = target.settings
    redis = reach_lane(target.app)
    if watch:
        try:
            _watch(lambda: look(redis, settings), interval, as_json)
        except KeyboardInterrupt:
            # Ctrl-C is the normal end of --watch.
            return
        return
    seen = look(redis, settings)
    if as_json:
        echo_json(as_document(seen))
    else:
        console().print(view(seen))


def as_document(seen: LaneStatus) -> dict[str, Any]:
    """The JSON of ``--json``."""
    return asdict(seen)


def _watch(look: Any, interval: float, as_json: bool) -> None:
    from bridge.link.failures import translated

    out = console()
    live = None if as_json or not out.is_terminal else Live(console=out, auto_refresh=False, screen=False)
    try:
        if live is not None:
            live.start()
        while True:
            began = time.monotonic()
            try:
                seen: LaneStatus | None = look()
            except Exception as exc:
                shown = translated(exc)
                if shown is None:
                    raise
                # The next round may succeed.
                seen, trouble = None, str(shown)
            if live is not None:
                live.update(view(seen) if seen is not None else Text(trouble, "red"), refresh=True)
            elif as_json:
                echo_json(as_document(seen) if seen is not None else {"error": trouble}, pretty=False)
            else:
                click.echo(line(seen) if seen is not None else f"{datetime.now().astimezone():%H:%M:%S} {trouble}")
            time.sleep(max(0.0, interval - (time.monotonic() - began)))
    finally:
        if live is not None:
            live.stop()


def line(seen: LaneStatus) -> str:
    """The state on one line, for a log."""
    alive = sum(1 for consumer in seen.consumers if consumer.alive)
    leader = f"term {seen.leader.term}" if seen.leader else "no leader"
    unread = unread_of(seen)
    now = datetime.now().astimezone()
    return (
        f"{now:%H:%M:%S} {leader}, consumers {alive}, unread {unread}, waiting {seen.waiting:,}, "
        f"in flight {seen.in_flight:,}, retrying {seen.awaiting_retry:,}, parked {seen.parked:,}, dead {seen.dead:,}, "
        f"done {seen.counters.get('done', 0):,}"
    )


def unread_of(seen: LaneStatus) -> str:
    """The number of unread messages. "at most" when the number is an upper bound."""
    return f"at most {seen.unread:,}" if seen.unread_why else f"{seen.unread:,}"


def view(seen: LaneStatus) -> RenderableType:
    """The state as tables."""
    from bridge.inspect.status import TROUBLE

    facts = Table.grid(padding=(0, 2))
    facts.add_row("lane", f"{printable(seen.stream)} / {printable(seen.group)} ({seen.length:,} entries)")
    facts.add_row("server", f"{seen.server} at {printable(seen.url)}")
    if seen.leader is None:
        facts.add_row("leader", Text("none", "red"))
    else:
        held = f"{printable(seen.leader.holder)}, term {seen.leader.term}, lease {duration(seen.leader.lease_ms)} left"
        facts.add_row("leader", held)
    facts.add_row("unread", unread_of(seen))
    facts.add_row("waiting", f"{seen.waiting:,}")
    facts.add_row("in flight", f"{seen.in_flight:,}")
    facts.add_row("retrying", f"{seen.awaiting_retry:,}")
    facts.add_row("dead", f"{seen.dead:,}" + (" (bridge dead list)" if seen.dead else ""))
    facts.add_row("parked", _parked(seen))
    facts.add_row("oldest", "nothing undone" if seen.oldest_undone_ms is None else duration(seen.oldest_undone_ms))
    usual = {name: number for name, number in seen.counters.items() if number and name not in TROUBLE}
    facts.add_row("so far", ", ".join(f"{name} {number:,}" for name, number in usual.items()) or "nothing")
    trouble = {name: seen.counters[name] for name in TROUBLE if seen.counters.get(name)}
    if trouble:
        facts.add_row("trouble", ", ".join(f"{name} {number:,}" for name, number in trouble.items()))
    parts: list[RenderableType] = [facts, Text("")]
    if seen.consumers:
        parts.append(table(seen.consumers))
    else:
        parts.append(Text("no consumers"))
    parts += [Text(f"! {problem}", "yellow") for problem in seen.problems]
    return Group(*parts)


def _parked(seen: LaneStatus) -> str:
    number = f"{seen.parked:,}" if seen.parked_complete else f"at least {seen.parked:,}"
    if not seen.parked:
        return number
    return f"{number} ({count(seen.parked_messages, 'message')} waiting; bridge ticket list --parked)"
