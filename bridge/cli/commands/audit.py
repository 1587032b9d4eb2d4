"""``bridge audit``: what the history proves."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from bridge.cli.main import Target
from bridge.cli.parameters import Number
from bridge.stack.stopping import Stopped, StopRequest

if TYPE_CHECKING:
    from bridge.audit.audit import Audit, AuditVerdict
    from bridge.cli.audit_view import Shown

#: Seconds between two comparisons of the history with the lane, of --follow.
COMPARE_S = 10.0
#: How long one wait for new rows lasts at most, in ms; Ctrl-C is heard in between.
WAIT_MS = 300
#: Seconds until a server that is away is asked again.
AGAIN_S = 1.0


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until Ctrl-C, then give the verdict.")
@click.option("--ticket", metavar="ID", help="Show this ticket's life, row by row; only its violations count.")
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
    metavar="MESSAGE_ID",
    help="Entries from this one on are the lane's, so that the first is missed, too; 0: all.  [default: the oldest "
    "that the history mentions]",
)
@click.option("--explain", is_flag=True, help="Say what each check proves and what it cannot; looks at nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --follow one line for each thing.")
@click.pass_context
def audit(
    ctx: click.Context,
    follow: bool,
    ticket: str | None,
    clock_skew: float,
    since: str | None,
    explain: bool,
    as_json: bool,
) -> None:
    """Proves from the history that nothing was lost, reordered, overlapped, or repeated without a cause.

    Exits 1 when it finds a violation, and when there is nothing to audit.
    """
    from bridge.app.finding import reach_lane
    from bridge.audit.audit import Audit
    from bridge.cli.audit_view import Shown, explained
    from bridge.producer.push import ticket_bytes

    if explain:
        explained(as_json=as_json)
        return
    target: Target = ctx.obj
    lane = target.lane
    if ticket is not None:
        ticket_bytes(ticket)
    if since is not None and not re.fullmatch(r"\d{1,20}(-\d{1,20})?", since):
        raise click.BadParameter(f"{since!r} is no message id; they look like 1700000000000-0", param_hint="--from")
    redis = reach_lane(target.app)
    shown = Shown(ticket=ticket, as_json=as_json, follow=follow)

    def begin() -> Audit:
        return Audit(
            redis,
            lane.keys,
            clock_skew_ms=clock_skew,
            since=since,
            ticket=ticket,
            on_rows=shown.rows,
            on_finding=shown.finding,
        )

    verdict = _follow(begin, shown) if follow else begin().run()
    if verdict.nothing:
        why = "history is off (bridge_history = 0)" if not lane.history else "the history is empty"
        shown.nothing(f"nothing to audit: {why}")
        ctx.exit(1)
    shown.verdict(verdict)
    ctx.exit(0 if verdict.ok and not shown.found else 1)


def _follow(begin: Callable[[], Audit], shown: Shown) -> AuditVerdict:
    """Audits what is there, and what comes, until it is told to stop."""
    from bridge.link.failures import translated

    made = begin()
    away = False
    compare_at = time.monotonic()
    with StopRequest(once=True) as stop:
        while not stop.requested:
            try:
                while made.advance() and not stop.requested:
                    shown.progress(made.auditor)
                if time.monotonic() >= compare_at:
                    made.compare()
                    compare_at = time.monotonic() + COMPARE_S
                shown.progress(made.auditor)
                made.wait(WAIT_MS)
                away = False
            except Exception as exc:
                said = translated(exc)
                if said is None:
                    raise
                if not away:
                    shown.note(f"{said}; will audit anew from the history's beginning when it is back")
                away = True
                # A server that crashed may have lost its last second, rows too: what was read does not hold any more.
                made = begin()
                with suppress(Stopped):
                    stop.wait(lambda: False, AGAIN_S)
        made.compare()
        return made.verdict()
