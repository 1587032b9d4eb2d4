"""``bridge delayed``: lists, cancels and reschedules messages that are not due yet."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click

from bridge.cli.delayed_changes import ChangeRequest, changing
from bridge.cli.delayed_view import due_in, filters, searching, selection_of, table
from bridge.cli.group import Group
from bridge.cli.older_versions import say_older
from bridge.cli.parameters import LIMIT, MESSAGE_ID, Number
from bridge.cli.target import Target
from bridge.cli.terminal import echo_json
from bridge.routing.errors import ConfigurationError, PayloadError
from bridge.routing.numbers import count, moment
from bridge.routing.terminal import console
from bridge.routing.text import one_line


@click.group(cls=Group)
def delayed() -> None:
    """Lists, cancels and reschedules messages that are not due yet."""


@delayed.command("list")
@filters
@click.option("--limit", default=20, show_default=True, type=LIMIT, help="Print the next N at most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_(target: Target, /, limit: int, as_json: bool, **chosen: str | None) -> None:
    """Lists delayed messages: what is due next comes first.

    TIME: as in 2030-01-31T12:00:00+01:00, or +90 for 90 seconds from now.
    """
    from bridge.app.finding import reach_lanes
    from bridge.inspect.delayed import Selection, count_in, count_of, now_ms_of, soonest_first
    from bridge.inspect.stream_status import read_streams

    redis = reach_lanes(target.app, target.app_lanes)
    now_ms = now_ms_of(redis)
    selection = selection_of(now_ms, **chosen)
    with searching(redis, target, selection, quiet=as_json) as on_page:
        source = soonest_first(redis, target.app_lanes, selection, on_page)
        found = list(islice(source, limit))
        more = next(source, None) is not None
    total = count_of(redis, target.app_lanes, Selection())
    if as_json:
        echo_json({"total": total, "more": more, "messages": [one.summary(now_ms) for one in found]})
        return
    if found:
        console().print(table(found, now_ms))
    else:
        click.echo("no delayed messages" if total == 0 else f"none of {count(total, 'delayed message')} matches")
    if more:
        matching = count_of(redis, target.app_lanes, selection)
        rest = "there are more" if selection.reads_entries else f"there are {matching:,}"
        click.echo(f"the next {len(found):,} are shown, {rest}: --limit N shows more")
    say_older(target, "delayed message", lambda lane: count_in(redis, [lane], Selection()), "delayed", "list")
    lanes = [lane.settings for lane in target.app_lanes]
    _, streams = read_streams(redis, {lane.stream for lane in lanes})
    unread = [streams[lane.stream].unread(lane.group.encode()) for lane in lanes]
    if number := sum(one for one, _ in unread):
        most = "" if all(exact for _, exact in unread) else "at most "
        click.echo(f"{most}{count(number, 'message')} not read yet, which are not in this list")


@delayed.command()
@click.argument("message_id", type=MESSAGE_ID)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(target: Target, message_id: str, as_json: bool) -> None:
    """Shows the delayed message MESSAGE_ID, with its payload.

    Exits 1 when there is no such message, or it is not delayed any more.
    """
    from bridge.app.finding import reach_lane
    from bridge.inspect.delayed import find_delayed, now_ms_of

    lane = target.lane_of_message(message_id)
    redis = reach_lane(target.app, lane.settings)
    found = find_delayed(redis, lane, message_id)
    now_ms = now_ms_of(redis)
    if as_json:
        echo_json(found.document(now_ms))
        return
    does = "later ones wait for it" if found.mode.value == "hold" else "later ones overtake it"
    for name, value in (
        ("message", found.id),
        ("ticket", found.ticket_id or "(the entry was deleted)"),
        ("task", found.task or "(none)"),
        ("due", f"{moment(found.due_ms)}, {due_in(found, now_ms)}"),
        *([] if found.expires_ms is None else [("expires", moment(found.expires_ms))]),
        ("mode", f"{found.mode.value}: {does}"),
        ("pushed", moment(found.pushed_ms)),
        ("payload", found.payload.decode(errors="backslashreplace")),
    ):
        click.echo(f"{name:<10}{one_line(value, 4000)}")


@delayed.command()
@changing
def cancel(ctx: click.Context, **options: Any) -> None:
    """Cancels delayed messages: they are never handled.

    Exits 1 when a message could not be cancelled, since it is due, has begun or is done.
    """
    from bridge.protocol.orders import DelayedAct

    ChangeRequest(ctx, DelayedAct.CANCEL, "cancel", "cancelled", None, **options).run()


@delayed.command()
@changing
@click.option("--delay", type=Number(0), metavar="SECONDS", help="They are due so long after now.")
@click.option("--eta", metavar="TIME", help="They are due at this time.")
def reschedule(ctx: click.Context, delay: float | None, eta: str | None, **options: Any) -> None:
    """Changes when delayed messages are due: --delay or --eta says when.

    TIME: as in 2030-01-31T12:00:00+01:00. Exits 1 when a message could not be rescheduled.
    """
    from bridge.producer.options import checked_options, eta_of_text
    from bridge.protocol.orders import DelayedAct

    if (delay is None) == (eta is None):
        raise click.UsageError("say when the messages are due, with either --delay or --eta", ctx)
    try:
        values = checked_options({"delay": delay, "eta": None if eta is None else eta_of_text(eta)})
    except PayloadError as exc:
        raise ConfigurationError(f"{exc}; nothing was changed") from None
    ChangeRequest(ctx, DelayedAct.RESCHEDULE, "reschedule", "rescheduled", values.get("due", b"+0"), **options).run()


@delayed.command()
@changing
def now(ctx: click.Context, **options: Any) -> None:
    """Makes delayed messages due now.

    Exits 1 when a message could not be made due, since it is due, has begun or is done.
    """
    from bridge.protocol.orders import DelayedAct

    ChangeRequest(ctx, DelayedAct.NOW, "make due", "made due", None, **options).run()
