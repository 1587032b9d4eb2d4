"""``bridge consumer``: lists the consumers, and gives orders about one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from bridge.cli.group import Group
from bridge.cli.parameters import NON_EMPTY, TICKET_ID, Number
from bridge.cli.target import ANY_VERSION, Target
from bridge.cli.terminal import echo_json
from bridge.routing.numbers import count, duration
from bridge.routing.terminal import console
from bridge.routing.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis import Redis

    from bridge.inspect.roster import ConsumerStatus
    from bridge.routing.keys import LaneKeys


@click.group(cls=Group)
def consumer() -> None:
    """Lists, drains and resumes consumers, and moves their tickets."""


@consumer.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(target: Target, as_json: bool) -> None:
    """Lists the consumers of the lane, with the state of each."""
    from bridge.app.finding import reach_lanes
    from bridge.inspect.partitions import consumers_of_all
    from bridge.inspect.status import read_status

    settings, lanes = target.app.bridge.settings, target.lanes_of_all_versions
    redis = reach_lanes(target.app, lanes)
    states = [read_status(redis, settings.model_copy(update={"lane": lane.settings})) for lane in lanes]
    found = consumers_of_all([state.consumers for state in states])
    for line in (line for state in states for line in state.unreadable):
        click.echo(f"! {printable(line)}", err=True)
    if as_json:
        echo_json({"consumers": found})
    elif found:
        console().print(table(found))
    else:
        click.echo(f"no consumers: start a worker with {target.commands(lanes[0].settings).worker}")


@consumer.command()
@click.argument("name", type=NON_EMPTY)
@click.option(
    "--timeout", "timeout_s", metavar="S", type=Number(0), help="Longest wait in seconds.  [default: no limit]"
)
@click.option("--no-wait", is_flag=True, help="Return at once.")
@click.pass_obj
def drain(target: Target, name: str, timeout_s: float | None, no_wait: bool) -> None:
    """Sends no new messages to the consumer NAME, and waits until its running messages are done.

    Messages that it has not started go to other consumers. The @host of NAME may be left out when only one consumer
    has that name.
    """
    from bridge.inspect.advice import NOT_OF_AN_APP
    from bridge.operate.draining import wait_empty
    from bridge.operate.orders import give_to_all
    from bridge.protocol.orders import Drain
    from bridge.routing.errors import OrderFailed

    redis, lanes, name = _of(target, name)
    left = sum(answer["in_flight"] for answer in give_to_all(redis, [(keys, Drain(name)) for keys in lanes]))
    shown = printable(name)
    if no_wait or not left:
        click.echo(f"{shown} takes nothing new; " + (f"{count(left, 'message')} in flight" if left else "it is empty"))
        return
    click.echo(f"{shown} takes nothing new; waiting for what it has in flight")
    try:
        wait_empty(redis, lanes, name, timeout_s, lambda left: click.echo(f"{count(left, 'message')} in flight"))
    except KeyboardInterrupt:
        ends = f"{NOT_OF_AN_APP.bridge('consumer', 'resume', about=name)} ends that"
        raise OrderFailed(f"interrupted; {shown} goes on draining, and {ends}") from None
    click.echo(f"{shown} is empty")


@consumer.command()
@click.argument("name", type=NON_EMPTY)
@click.pass_obj
def resume(target: Target, name: str) -> None:
    """Sends messages to the consumer NAME again, after `drain`."""
    from bridge.operate.orders import give_to_all
    from bridge.protocol.orders import Resume

    redis, lanes, name = _of(target, name)
    give_to_all(redis, [(keys, Resume(name)) for keys in lanes])
    click.echo(f"{printable(name)} takes work again")


@consumer.command()
@click.argument("name", type=NON_EMPTY)
@click.argument("other", required=False, type=NON_EMPTY)
@click.option("--to", type=NON_EMPTY, metavar="OTHER", help="The same as OTHER.  [default: any consumers with room]")
@click.option(
    "--ticket", "tickets", type=TICKET_ID, metavar="ID", multiple=True, help="Move only this ticket. May be repeated."
)
@click.pass_obj
def transfer(target: Target, name: str, other: str | None, to: str | None, tickets: tuple[str, ...]) -> None:
    """Moves the tickets of the consumer NAME to the consumer OTHER, each between two of its messages.

    Without OTHER, each goes to a consumer with room. Both may be workers or HTTP consumers. NAME may still get new
    tickets; `drain` prevents that.
    """
    from bridge.inspect.choice import lanes_with_ticket
    from bridge.inspect.roster import full_name
    from bridge.operate.orders import give_to_all
    from bridge.protocol.orders import Transfer

    if other is not None and to not in (None, other):
        raise click.UsageError(f"name one consumer that gets them: {printable(other)}, or --to {printable(str(to))}")
    to = other if to is None else to
    of_lane: dict[LaneKeys, list[str]] = {}
    for ticket in tickets:
        for lane in lanes_with_ticket(target.lanes_of_all_versions, ticket):
            of_lane.setdefault(lane.settings.keys, []).append(ticket)
    redis, lanes, name = _of(target, name)
    if to is not None:
        to = full_name(redis, lanes, to)
        if to == name:
            raise click.UsageError(f"--to names {printable(name)} itself")
    answers = give_to_all(
        redis, [(keys, Transfer(name, to, tuple(of_lane.get(keys, ())) or None)) for keys in of_lane or lanes]
    )
    moved, running = (sum(answer[what] for answer in answers) for what in ("moved", "running"))
    click.echo(f"moved {count(moved, 'ticket')}")
    if running:
        click.echo(f"{count(running, 'ticket')} more when their running messages are done")
    if (others := len(set(tickets)) - moved - running) > 0:
        click.echo(f"{printable(name)} has no message of {count(others, 'ticket')} that you named")


def _of(target: Target, name: str) -> tuple[Redis, list[LaneKeys], str]:
    """(client, keys of the lanes of all versions and partitions in which the consumer is registered, its full name)."""
    from bridge.app.finding import reach_lanes
    from bridge.inspect.roster import full_name

    redis = reach_lanes(target.app, target.lanes_of_all_versions, to_change=True)
    lanes = [lane.settings.keys for lane in target.lanes_of_all_versions]
    name = full_name(redis, lanes, name)
    return redis, [keys for keys in lanes if redis.hexists(keys.consumers, name)], name


def table(found: Iterable[ConsumerStatus]) -> Table:
    """A table with a row for each consumer."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column("consumer", no_wrap=True)
    for name in ("state", "pool", "slots", "in flight", "tickets", "queued", "lease", "up"):
        made.add_column(name, justify="left" if name in ("state", "pool") else "right", no_wrap=True)
    for one in found:
        made.add_row(
            printable(one.name),
            _state(one),
            "?" if one.pool is None else printable(one.pool),
            "?" if one.slots is None else str(one.slots),
            f"{one.in_flight:,}",
            "?" if one.tickets is None else f"{one.tickets:,}",
            f"{one.queued:,}",
            duration(one.lease_ms) if one.alive else "over",
            "?" if one.up_ms is None else duration(one.up_ms),
        )
    return made


def _state(one: ConsumerStatus) -> Text:
    from bridge.inspect.roster import ConsumerState

    colour = {ConsumerState.OPEN: "", ConsumerState.DRAINING: "yellow", ConsumerState.LEAVING: "yellow"}
    text = one.state.value if one.registered else f"{one.state.value}, not registered"
    return Text(text, colour.get(one.state, "red"))


ANY_VERSION.add_to(consumer)
