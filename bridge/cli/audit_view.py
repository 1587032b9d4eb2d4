"""Prints an audit: as text for people, as JSON for programs."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from bridge.audit.checks import Check, Finding
from bridge.audit.verdict import AuditVerdict, row_document
from bridge.cli.terminal import echo_error, echo_json
from bridge.routing.history import LAST, What
from bridge.routing.numbers import count, duration, moment
from bridge.routing.terminal import console
from bridge.routing.text import one_line, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridge.audit.partitions import Totals
    from bridge.routing.history import Delivery

#: Seconds between two progress lines.
PROGRESS_S = 5.0
#: Violations that are remembered, at most. A remembered violation is not printed again.
REMEMBERED = 10_000


class AuditView:
    """Prints the progress of an audit, its violations and its result."""

    def __init__(self, *, ticket: str | None, as_json: bool, follow: bool, streams: Sequence[str] = ()) -> None:
        self._ticket = ticket
        self._as_json = as_json
        self._follow = follow
        #: The streams of several versions, of which the result is the sum.
        self._streams = streams
        self._life: list[Delivery] = []
        self._ids: set[str] = set()
        self._printed: set[Finding] = set()
        self._progress_at = time.monotonic() + PROGRESS_S
        self._read = 0
        #: Whether a violation was found. A restart of the audit does not reset it.
        self.found = False

    def rows(self, rows: list[Delivery]) -> None:
        """Adds the rows of one step."""
        self._read += len(rows)
        if not self._follow and time.monotonic() >= self._progress_at:
            self._progress_at = time.monotonic() + PROGRESS_S
            click.echo(f"{count(self._read, 'row')} read …", err=True)
        if self._ticket is None:
            return
        for row in rows:
            # The row of a refused outcome names no ticket.
            if row.ticket != self._ticket and not (not row.ticket and row.message_id in self._ids):
                continue
            self._ids.add(row.message_id)
            if not self._follow:
                self._life.append(row)
            elif self._as_json:
                echo_json({"row": row_document(row)}, pretty=False)
            else:
                click.echo("  ".join(str(cell) for cell in _cells(row)))

    def finding(self, finding: Finding) -> None:
        """Adds a violation. With --follow it is printed at once."""
        self.found = True
        if not self._follow or finding in self._printed:
            return
        if len(self._printed) < REMEMBERED:
            self._printed.add(finding)
        if self._as_json:
            echo_json({"violation": finding.document()}, pretty=False)
        else:
            click.echo(_line(finding))

    def progress(self, totals: Totals) -> None:
        """Prints a progress line, at most every `PROGRESS_S`."""
        if time.monotonic() < self._progress_at:
            return
        self._progress_at = time.monotonic() + PROGRESS_S
        deliveries = sum(totals.rows.values())
        undone = totals.undone
        if self._as_json:
            numbers = {"deliveries": deliveries, "undone": undone, "violations": sum(totals.counts.values())}
            echo_json({"progress": numbers}, pretty=False)
            return
        at = datetime.now().astimezone().strftime("%H:%M:%S")
        found = sum(totals.counts.values())
        rows = f"{count(deliveries, 'row')}, {count(totals.rows[What.DONE], 'message')} done, {undone:,} undone"
        click.echo(f"{at}  {rows}, {count(found, 'violation') if found else 'no violation'}")

    def note(self, text: str) -> None:
        """Prints a remark about the audit itself."""
        if self._as_json:
            echo_json({"note": text}, pretty=False)
        else:
            click.echo(printable(text), err=True)

    def nothing(self, text: str) -> None:
        """Prints that there is nothing to audit."""
        if self._as_json:
            echo_json({"ok": False, "error": text}, pretty=not self._follow)
        else:
            echo_error(text)

    def result(self, result: AuditVerdict) -> None:
        """Prints the result. With --ticket the rows of that ticket come first."""
        if self._as_json:
            document = result.document()
            if self._streams:
                document = {**document, "streams": self._streams}
            if self._ticket is not None and not self._follow:
                document = {"ticket": self._ticket, "life": [row_document(row) for row in self._life], **document}
            echo_json({"verdict": document} if self._follow else document, pretty=not self._follow)
            return
        out = console()
        if self._ticket is not None and not self._follow:
            if self._life:
                out.print(_table(self._life))
            else:
                click.echo(f"the history has no row of ticket {one_line(self._ticket, 100)}")
            click.echo()
        if self._streams:
            click.echo(f"added up over the versions: {one_line(', '.join(self._streams))}")
        _print(result, self._ticket)


def print_explanation(*, as_json: bool) -> None:
    """Prints what each check proves, and what it cannot prove."""
    if as_json:
        echo_json({check.value: {"proves": check.proves, "cannot": check.cannot} for check in Check})
        return
    for check in Check:
        click.echo(f"{check.value}\n  proves: {check.proves}\n  cannot: {check.cannot}")


def _print(result: AuditVerdict, ticket: str | None) -> None:
    rows = result.rows
    # A message that was replayed has died before, and ends once more.
    messages = max(0, sum(rows[what] for what in LAST) - rows[What.REPLAYED])
    span = duration(result.last_ms - result.first_ms)
    click.echo(
        f"audited {count(result.deliveries, 'row')}: {count(messages, 'message')} that ended, "
        f"{count(result.tickets, 'ticket')}, over {span}, until {_clock(result.last_ms)}"
    )
    covered = result.coverage
    if covered.complete:
        click.echo(f"the history is complete, from message {covered.from_id} on")
    else:
        click.echo(f"the history was capped: it is complete for messages from {covered.from_id} on")
    if covered.older:
        click.echo("  the stream has older entries: whether one of them was lost is not covered")
    for note in result.notes:
        click.echo(f"  {note}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for check, found in result.counts.items():
        table.add_row(check.value, Text(f"{found:,}", style="bold red" if found else ""), "")
    causes = ", ".join(f"{what.value} {rows[what]:,}" for what in _CAUSES if rows[what])
    table.add_row("repeats", f"{result.repeats:,}", f"explained: {causes}" if result.repeats else "")
    if rows[What.DROPPED]:
        table.add_row("dropped", f"{rows[What.DROPPED]:,}", "acknowledged, and not handled: their tasks said so")
    replayed = f"{rows[What.REPLAYED]:,} of them replayed" if rows[What.REPLAYED] else ""
    table.add_row("dead", f"{rows[What.DEAD] + rows[What.REFUSED]:,}", replayed)
    for what, why in _NOT_HANDLED.items():
        if rows[what]:
            table.add_row(what.value, f"{rows[what]:,}", why)
    table.add_row("undone", f"{result.undone:,}", "read by the group, not done or dead yet" if result.undone else "")
    if rows[What.STALE]:
        table.add_row("stale", f"{rows[What.STALE]:,}", "ran with an old fence: the effects were refused")
    console().print(table)
    for finding in result.examples:
        click.echo(_line(finding))
    if result.violations > len(result.examples):
        click.echo(f"… {len(result.examples):,} of {count(result.violations, 'violation')} shown")
    if result.clean:
        of = "" if ticket is None else f" of ticket {one_line(ticket, 100)}"
        click.echo(f"nothing{of} was lost, reordered, overlapped, or repeated without a cause")
    else:
        click.echo(f"FOUND {count(result.violations, 'violation')}")


#: Rows after which a message is delivered again.
_CAUSES = (What.FAILED, What.NACKED, What.LOST, What.RETURNED, What.REPLAYED)


#: Rows of messages that the lane never handles, and why.
_NOT_HANDLED = {
    What.LEFT_OUT: "not for this subscription, by its filter and its tasks",
    What.CANCELLED: "not handled: an operator cancelled it while it was delayed",
    What.SKIPPED: "not handled: the subscription was beyond bridge_max_lag",
}


def _line(finding: Finding) -> str:
    of = f" (ticket {one_line(finding.ticket, 100)})" if finding.ticket else ""
    return f"{finding.check.value}: {finding.message_id or 'the history'}{of}: {one_line(finding.text, 500)}"


def _table(life: list[Delivery]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, no_wrap=True, justify="right" if name in ("attempt", "fence", "ran") else "left")
    for row in life:
        table.add_row(*map(str, _cells(row)))
    return table


_COLUMNS = ("message", "what", "attempt", "enqueued", "dispatched", "started", "ran", "settled", "consumer", "fence")


def _cells(row: Delivery) -> tuple[Any, ...]:
    return (
        row.message_id,
        row.what.value,
        row.attempt or "",
        _clock(int(row.message_id.partition("-")[0])),
        _clock(row.dispatched_ms),
        _clock(row.started_us / 1000),
        duration(row.service_ms) if row.started_us else "",
        _clock(row.written_ms),
        one_line(row.consumer, 60),
        row.fence or "",
    )


def _clock(ms: float) -> str:
    """``ms`` as local date and time with milliseconds; '' for 0."""
    return moment(ms, "milliseconds")[:23] if ms else ""
