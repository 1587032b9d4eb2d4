"""``bridge pending``: the pending messages, as XPENDING and XINFO CONSUMERS have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.table import Table

from bridge.cli.older_versions import say_older
from bridge.cli.parameters import NON_EMPTY, PLACE, TICKET_ID, Number
from bridge.cli.target import Target
from bridge.cli.terminal import echo_json
from bridge.inspect.pending import PendingState
from bridge.routing.numbers import count, duration
from bridge.routing.terminal import console
from bridge.routing.text import one_line, printable

if TYPE_CHECKING:
    from bridge.inspect.pending import PendingPage
    from bridge.inspect.pending_names import PendingSummary

#: The states as words of the command line.
STATES = {state.value.replace(" ", "-"): state for state in PendingState}
#: The largest number of ms that a server takes as an idle time.
IDLE_MS = 2**53


@click.command()
@click.option("--idle", "idle_s", metavar="S", type=Number(0, IDLE_MS / 1000), help="Only messages idle for S seconds.")
@click.option(
    "--consumer",
    metavar="NAME",
    type=NON_EMPTY,
    help="Only messages pending under this name. A consumer's may be without its @host.",
)
@click.option("--ticket", type=TICKET_ID, metavar="ID", help="Only messages of this ticket.")
@click.option("--state", type=click.Choice(list(STATES)), help="Only messages in this state.")
@click.option("--after", type=PLACE, metavar="ID", help="Begin behind this message: the next page.")
@click.option("--limit", type=click.IntRange(1, 10_000), help="Print N at most.  [default: 100]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def pending(
    target: Target,
    idle_s: float | None,
    consumer: str | None,
    ticket: str | None,
    state: str | None,
    after: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Prints the messages that are pending in the consumer group: with another option than --json a page of them,
    without one how many there are under each name.
    """
    from bridge.app.finding import reach_lanes
    from bridge.inspect.choice import lanes_with_ticket
    from bridge.inspect.pending import Wanted
    from bridge.inspect.pending_names import pending_in, summarise
    from bridge.inspect.pending_pages import read_pending
    from bridge.inspect.roster import name_of_pending

    lanes = target.app_lanes
    if ticket is not None:
        lanes = lanes_with_ticket(lanes, ticket)
    if after is not None:
        target.lane_of_message(after)
    redis = reach_lanes(target.app, target.app_lanes)
    if (idle_s, consumer, ticket, state, after, limit) == (None,) * 6:
        found = summarise(redis, lanes)
        if as_json:
            echo_json(found.document())
        else:
            _print_summary(found)
            say_older(target, "pending message", lambda lane: pending_in(redis, lane), "pending")
        return
    if consumer is not None:
        consumer = name_of_pending(redis, [lane.settings for lane in lanes], consumer)
    wanted = Wanted(
        idle_ms=None if idle_s is None else int(idle_s * 1000),
        consumer=consumer,
        ticket=ticket,
        state=None if state is None else STATES[state],
    )
    page = read_pending(redis, lanes, wanted, after=after, limit=limit or 100)
    if as_json:
        echo_json(page.document())
    else:
        names = "" if consumer is None else target.commands(lanes[0].settings).bridge("pending")
        _print_page(page, names)
        say_older(target, "pending message", lambda lane: pending_in(redis, lane), "pending")


def _print_summary(found: PendingSummary) -> None:
    if found.oldest_ms is None:
        click.echo("nothing is pending")
    else:
        click.echo(
            f"{count(found.total, 'message')} pending; the oldest is {found.oldest_id}, {duration(found.oldest_ms)} old"
        )
    if not found.consumers:
        return
    table = _table(("name in the group", "is"), ("pending", "idle"))
    for one in found.consumers:
        kind = one.kind if one.kind != "parked tickets" else count(one.names, "parked ticket")
        table.add_row(printable(one.name), kind, f"{one.pending:,}", duration(one.idle_ms))
    console().print(table)


def _print_page(page: PendingPage, names: str) -> None:
    """``names``: the command that lists the names, when the page is of one of them."""
    if page.messages:
        table = _table(("message", "ticket", "state", "consumer"), ("idle", "deliveries", "attempt"))
        for one in page.messages:
            table.add_row(
                one.message_id,
                "?" if one.ticket_id is None else one_line(one.ticket_id, 512),
                one.state.value,
                printable(one.consumer),
                duration(one.idle_ms),
                f"{one.deliveries:,}",
                "" if one.attempt is None else str(one.attempt),
            )
        console().print(table)
    elif page.next is None:
        click.echo("no such message is pending" + (f"; {names} lists the names" if names else ""))
    if page.next is not None:
        looked = "" if page.messages else f"none of the first {page.looked_at:,} matches; "
        click.echo(f"{looked}there are more: --after {page.next}")


def _table(left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in left:
        made.add_column(name, no_wrap=True)
    for name in right:
        made.add_column(name, justify="right", no_wrap=True)
    return made
