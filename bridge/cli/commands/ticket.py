"""``bridge ticket``: shows where a ticket is; parks and releases it."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
import orjson
from redis.exceptions import ResponseError
from rich.table import Table

from bridge.cli.group import Group
from bridge.cli.parameters import LIMIT, NON_EMPTY, TICKET_ID
from bridge.cli.target import ANY_VERSION, Target
from bridge.cli.terminal import echo_json
from bridge.inspect.ticket_state import TicketState
from bridge.routing.errors import PayloadError
from bridge.routing.numbers import count, duration
from bridge.routing.terminal import console
from bridge.routing.text import one_line, printable

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

    from bridge.inspect.scans import Scan
    from bridge.inspect.ticket_facts import TicketFacts
    from bridge.protocol.orders import Park, Release

#: Longest reason of an operator, in characters. It is written with every record of the ticket.
MAX_REASON = 200


@click.group(cls=Group)
def ticket() -> None:
    """Shows, parks and releases tickets."""


@ticket.command()
@click.argument("ticket_id", type=TICKET_ID)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def show(ctx: click.Context, ticket_id: str, as_json: bool) -> None:
    """Shows where TICKET_ID is and why it does not move.

    Exits 1 when nothing is known about it.
    """
    from bridge.app.finding import load_tasks, reach_lane
    from bridge.inspect.versions import find_ticket

    target: Target = ctx.obj
    app, app_lane = target.app, target.lane_of_ticket(ticket_id)
    load_tasks(app)
    redis = reach_lane(app, app_lane.settings)
    found = find_ticket(app, redis, app_lane, ticket_id, target.commands)
    kept, unreadable = _kept_state(app, redis, app_lane.name, ticket_id)
    if as_json:
        echo_json({**found.document(), "kept_state": orjson.Fragment(_json_of(kept)), "kept_state_error": unreadable})
    else:
        _print(found)
        if kept or unreadable:
            _fact("keeps", unreadable or _json_of(kept).decode())
    ctx.exit(0 if found.state is not None or kept else 1)


@ticket.command("list")
@click.option("--parked", is_flag=True, help="Only tickets that are parked.")
@click.option("--limit", default=1000, show_default=True, type=LIMIT, help="Print N at most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(target: Target, parked: bool, limit: int, as_json: bool) -> None:
    """Lists the tickets that are in flight, await a retry, are parked, or wait for a delayed message."""
    from bridge.app.finding import reach_lanes
    from bridge.inspect.recorded import recorded_in

    lanes = target.lanes_of_all_versions
    places = {lane.settings.stream: place for place, lane in enumerate(lanes)}
    found = recorded_in(reach_lanes(target.app, lanes), lanes, parked_only=parked)
    shown = list(islice(found, limit))
    more = next(found, None) is not None
    shown.sort(key=lambda one: (one.ticket_id, places[one.stream]))
    if as_json:
        echo_json({"tickets": shown, "more": more})
        return
    if not shown:
        click.echo("no ticket is parked" if parked else "no ticket is in flight, awaits a retry, or is parked")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("ticket", "stream", "state", "for"):
        table.add_column(name, no_wrap=True)
    table.add_column("waiting", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold", min_width=20)
    for one in shown:
        table.add_row(
            one_line(one.ticket_id, 512),
            printable(one.stream),
            one.state.value,
            duration(one.since_ms),
            "?" if one.waiting is None else f"{one.waiting:,}",
            one_line(f"on {one.consumer}" if one.state is TicketState.IN_FLIGHT else one.cause, 160),
        )
    console().print(table)
    if more:
        click.echo(f"{len(shown):,} shown, there are more: --limit N shows more")


@ticket.command()
@click.argument("ticket_id", type=TICKET_ID)
@click.option(
    "--reason",
    default="parked by an operator",
    show_default=True,
    type=NON_EMPTY,
    metavar="TEXT",
    help="Why. It becomes one line of up to 200 characters.",
)
@click.pass_obj
def park(target: Target, ticket_id: str, reason: str) -> None:
    """Parks TICKET_ID: none of its messages is dispatched until it is released.

    Its messages in flight are finished first.
    """
    from bridge.protocol.orders import Park

    reason = one_line(reason, MAX_REASON)
    running = sum(answer["in_flight"] for answer in _ordered(target, Park(ticket_id, reason)))
    shown = one_line(ticket_id, 512)
    if running:
        click.echo(
            f"{shown} will be parked when {count(running, 'message')} in flight {'is' if running == 1 else 'are'} done"
        )
    else:
        click.echo(f"{shown} is parked")


@ticket.command()
@click.argument("ticket_id", type=TICKET_ID)
@click.pass_obj
def release(target: Target, ticket_id: str) -> None:
    """Releases TICKET_ID, which was parked."""
    from bridge.protocol.orders import Release

    messages = sum(answer["messages"] for answer in _ordered(target, Release(ticket_id)))
    click.echo(f"{one_line(ticket_id, 512)} goes on, with {count(messages, 'message')} that waited")


def _ordered(target: Target, order: Park | Release) -> list[dict[str, Any]]:
    """The leaders' answers to an order for a ticket. It may have messages in older versions and partitions, too."""
    from bridge.app.finding import reach_lanes
    from bridge.inspect.choice import lanes_with_ticket
    from bridge.operate.orders import give_to_all

    lanes = lanes_with_ticket(target.lanes_of_all_versions, order.ticket)
    redis = reach_lanes(target.app, lanes, to_change=True)
    return give_to_all(redis, [(lane.settings.keys, order) for lane in lanes])


def _kept_state(app: Celery, redis: Redis, group: str, ticket_id: str) -> tuple[dict[str, Any], str]:
    """(what the ticket's tasks keep between messages, why that cannot be read)."""
    from bridge.app.state_home import read_state

    try:
        return read_state(redis, app, group, ticket_id), ""
    except (PayloadError, ResponseError) as exc:
        return {}, f"the state cannot be read: {exc}"


def _json_of(kept: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(kept)
    except TypeError:  # a whole number of more than 64 bits
        return json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()


def _fact(name: str, value: str) -> None:
    click.echo(f"{name:<10}{one_line(value, 2000)}")


def _print(found: TicketFacts) -> None:
    fact = _fact
    fact("ticket", found.ticket)
    fact("state", "unknown" if found.state is None else found.state.value)
    fact("why", found.why)
    if found.in_flight is not None:
        run = found.in_flight
        alive = f"alive, lease {duration(run.lease_ms)} left" if run.consumer_alive else "its lease is over"
        fact("consumer", f"{run.consumer} ({alive}), incarnation {run.incarnation}")
        fact("messages", ", ".join(run.message_ids))
        fact("attempt", str(run.attempt))
        fact("fence", str(run.fence))
        fact("since", f"{duration(run.since_ms)} ago")
    if found.retry is not None:
        retry = found.retry
        due = f"in {duration(retry.due_in_ms)}" if retry.due_in_ms > 0 else "now"
        fact("retry", f"message {retry.message_id}, attempt {retry.attempt} of {retry.max_attempts}, due {due}")
        if retry.last_error:
            fact("error", retry.last_error)
    if found.parked is not None:
        fact("since", f"{duration(found.parked.since_ms)} ago")
        fact("parked", found.parked.reason or "(no reason given)")
        if found.parked.message_id is not None:
            fact(
                "oldest", f"message {found.parked.message_id}, attempt {found.parked.attempt} comes when it is released"
            )
    if found.losses:
        ended = f"{count(found.losses, 'consumer')} ended while its oldest message may have been running"
        fact("suspect", ended)
    if found.lost is not None:
        lost = found.lost
        fact("cut off", f"attempt {lost.attempt} on {lost.consumer}, fence {lost.fence}: {lost.cause}")
    fact("waiting", _scan(found.waiting, "of the waiting messages"))
    fact("unread", _scan(found.unread, "of the unread entries"))
    if found.delayed.count or not found.delayed.complete:
        fact("delayed", _scan(found.delayed, "of the delayed messages"))
    for letter in found.letters:
        # `bridge dead show` has all of it.
        fact("dead", f"{letter.message_id}: {letter.reason}{': ' + one_line(letter.error) if letter.error else ''}")
    fact("leader", found.leader or "none")
    fact("alive", count(found.consumers_alive, "consumer"))


def _scan(scan: Scan, where: str) -> str:
    if scan.complete:
        return f"{scan.count:,}"
    return f"at least {scan.count:,} (searched the first {scan.looked_at:,} {where})"


for _command in (list_, park, release):
    ANY_VERSION.add_to(_command)
