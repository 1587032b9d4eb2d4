"""The verdict of a run as a table for people."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from bridge.routing.numbers import duration
from bridge.stack.demo.verdict import DemoVerdict, Findings


def verdict_table(verdict: DemoVerdict) -> Table:
    """The table; a number that is not what it must be is red."""
    table = Table(title="Verdict", title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right")
    table.add_column()

    def row(name: str, value: int, wanted: int | None = None, note: str = "") -> None:
        bad = wanted is not None and value != wanted
        table.add_row(name, Text(f"{value:,}", style="bold red" if bad else ""), note)

    findings = verdict.findings
    row("messages handled", verdict.done, verdict.messages, f"of {verdict.messages:,}")
    row("tickets", verdict.tickets)
    row("lost", findings.lost, 0)
    row("reordered", findings.reordered, 0)
    row("overlapped", findings.overlapped, 0)
    row("unexpected", findings.unexpected, 0, "ran, and was not pushed")
    row("dead", verdict.dead, 0)
    row("repeated", findings.repeated, None, "what the killed worker was running may run again")
    row("states as Spark's", verdict.states_equal, verdict.tickets, f"of {verdict.tickets:,}")
    if verdict.states_read_by_spark is not None:
        row(
            "read by Spark",
            verdict.states_read_by_spark,
            verdict.tickets,
            f"of {verdict.tickets:,} equal in the table redisstate",
        )
    if (trail := verdict.trail) is not None:
        faults = _faults(trail.findings, trail.dead)
        note = f"of {verdict.tickets:,} complete, a second subscription: {trail.done:,} messages, {faults}"
        bad = "" if verdict.trail_ok else "bold red"
        table.add_row("audit trails", Text(f"{trail.complete:,}", style=bad), Text(note, style=bad))
    if (later := verdict.follow_ups) is not None:
        note = (
            f"of {later.wanted:,} delayed messages, {later.early:,} early, {later.reordered:,} out of order; "
            f"late by {duration(later.median_late_s * 1000)} (median), at most {duration(later.max_late_s * 1000)}"
        )
        bad = "" if later.ok else "bold red"
        table.add_row("follow-ups", Text(f"{later.came:,}", style=bad), Text(note, style=bad))
    if (notices := verdict.notices) is not None:
        handled = notices.messages - notices.findings.lost
        note = f"of {notices.messages:,} urgent events, over HTTP: {_faults(notices.findings, notices.dead)}"
        bad = "" if notices.ok else "bold red"
        table.add_row("handled by Node", Text(f"{handled:,}", style=bad), Text(note, style=bad))
    row("throughput", round(verdict.throughput), None, f"messages per second, over {duration(findings.seconds * 1000)}")
    found = verdict.reroute
    if found is None:
        table.add_row("time to re-route", "", f"no ticket was in flight on {verdict.killed or 'a killed worker'}")
        return table
    table.add_row(
        "time to re-route",
        duration(found.median_s * 1000),
        f"median of {found.tickets} tickets of {verdict.killed}, at most {duration(found.max_s * 1000)}; "
        f"bounded by the lease ({verdict.lease_s:g} s) and the time until the master looks (1 s)",
    )
    return table


def _faults(findings: Findings, dead: int) -> str:
    """What another subscription than the first did wrong, in words."""
    faults = [(findings.lost, "lost"), (findings.reordered, "reordered"), (findings.overlapped, "overlapped")]
    faults += [(findings.unexpected, "unexpected"), (dead, "dead")]
    return ", ".join(f"{number:,} {word}" for number, word in faults)
