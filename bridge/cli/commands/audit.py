"""``bridge audit``: checks the history of a lane for broken promises."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from bridge.cli.parameters import PLACE, TICKET_ID, Number
from bridge.cli.target import Target
from bridge.stack.stopping import Stopped, StopRequest

if TYPE_CHECKING:
    from bridge.audit.audit import AuditVerdict
    from bridge.audit.partitions import Audits
    from bridge.cli.audit_view import AuditView
    from bridge.routing.keys import LaneKeys

#: With --follow: seconds between two comparisons of the history with the lane.
COMPARE_S = 10.0
#: Longest wait for new rows, in ms. Ctrl-C is noticed after it.
WAIT_MS = 300
#: Seconds between two tries to reach a server that is away.
RETRY_S = 1.0


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with new rows until Ctrl-C, then print the result.")
@click.option(
    "--ticket",
    type=TICKET_ID,
    metavar="ID",
    help="Show this ticket's life, row by row; violations of other tickets do not count.",
)
@click.option(
    "--clock-skew",
    default=100.0,
    show_default=True,
    metavar="MS",
    type=Number(0, 3_600_000),
    help="How far the clocks of two machines may differ, in ms.",
)
@click.option(
    "--from",
    "since",
    type=PLACE,
    metavar="MESSAGE_ID",
    help="Audit from this entry on. Every later entry must be in the history. 0: the whole stream.  [default: the "
    "oldest message that the history names]",
)
@click.option(
    "--wanted",
    is_flag=True,
    help="Also look for messages that were left out although the lane wants them, by its filter and tasks of today.",
)
@click.option("--explain", is_flag=True, help="Print what each check proves and what it cannot prove. Audits nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON. With --follow: one object on each line.")
@click.pass_context
def audit(
    ctx: click.Context,
    follow: bool,
    ticket: str | None,
    clock_skew: float,
    since: str | None,
    wanted: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """Proves from the history that nothing was lost, reordered, overlapped, or repeated without a cause.

    Where the stream follows older versions, it adds up all of them; --stream, --from and --wanted are about one.
    Exits 1 when it finds a violation, and when there is nothing to audit.
    """
    from bridge.app.finding import reach_lanes
    from bridge.audit.partitions import Audits
    from bridge.audit.wanted import wants as wants_of
    from bridge.cli.audit_view import AuditView, print_explanation
    from bridge.routing.partitions import stream_id, suffix_in, suffix_of

    if explain:
        print_explanation(as_json=as_json)
        return
    target: Target = ctx.obj
    if since is not None:
        if suffix_of(since):
            # Its time is the start in the other partitions.
            target.lane_of_message(since)
        since = stream_id(since)
    # A ticket has all its messages in one partition.
    lanes = target.app_lanes if ticket is None else (target.lane_of_ticket(ticket),)
    redis = reach_lanes(target.app, lanes)
    older: list[tuple[LaneKeys, str]] = []
    named = {lane.settings.stream for lane in lanes}
    if target.version is None and since is None and not wanted:
        # Each of these options is about one stream. Without them the older versions are audited, too.
        older = [
            (one.keys, f"{suffix_in(one.stream, lane.version, lane.id_suffix)} of {one.stream}")
            for lane in lanes
            for one in lane.older
            # An older partition has a lane of its own here, and several newer ones follow it.
            if one.stream not in named and redis.exists(one.keys.history)
        ]
    wants = wants_of(lanes[0].settings, lanes[0].tasks) if wanted else None
    streams = dict.fromkeys([*(keys.stream for keys, _ in older), *(lane.settings.stream for lane in lanes)])
    view = AuditView(ticket=ticket, as_json=as_json, follow=follow, streams=list(streams) if older else [])

    def begin() -> Audits:
        return Audits(
            redis,
            [*older, *((lane.settings.keys, lane.id_suffix) for lane in lanes)],
            clock_skew_ms=clock_skew,
            since=since,
            ticket=ticket,
            wants=wants,
            on_rows=view.rows,
            on_finding=view.finding,
        )

    result = _follow(begin, view) if follow else begin().run()
    if result.nothing:
        why = "history is off (bridge_history = 0)" if not lanes[0].settings.history else "the history is empty"
        view.nothing(f"nothing to audit: {why}")
        ctx.exit(1)
    view.result(result)
    ctx.exit(0 if result.ok and not view.found else 1)


def _follow(begin: Callable[[], Audits], view: AuditView) -> AuditVerdict:
    """Audits the rows that exist, and new rows as they come, until Ctrl-C or SIGTERM."""
    from bridge.link.failures import translated

    made = begin()
    away = False
    compare_at = time.monotonic()
    with StopRequest(once=True) as stop:
        while not stop.requested:
            try:
                while made.advance() and not stop.requested:
                    view.progress(made.totals)
                if time.monotonic() >= compare_at:
                    made.compare()
                    compare_at = time.monotonic() + COMPARE_S
                view.progress(made.totals)
                made.wait(WAIT_MS)
                away = False
            except Exception as exc:
                said = translated(exc)
                if said is None:
                    raise
                if not away:
                    view.note(f"{said}; when it is back, the audit starts again with the first row")
                away = True
                # A crashed server may have lost its last second, rows included. So the audit starts again.
                made = begin()
                with suppress(Stopped):
                    stop.wait(lambda: False, RETRY_S)
        made.compare()
        return made.result()
