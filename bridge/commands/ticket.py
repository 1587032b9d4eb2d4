"""``bridge ticket``: where one ticket is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bridge.cli import Target
from bridge.terminal import count, duration, echo_json, one_line

if TYPE_CHECKING:
    from bridge.scans import Scan
    from bridge.whereabouts import Whereabouts


@click.group()
def ticket() -> None:
    """Where a ticket is."""


@ticket.command()
@click.argument("ticket_id")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def show(ctx: click.Context, ticket_id: str, as_json: bool) -> None:
    """Shows where TICKET_ID is and why it does not move.

    Exits 1 when nothing is known of it.
    """
    from bridge.apps import load_tasks, reach
    from bridge.producer import ticket_bytes
    from bridge.whereabouts import locate

    target: Target = ctx.obj
    app, settings = target.app, target.settings
    ticket_bytes(ticket_id)
    load_tasks(app)

    def max_attempts(name: str | None) -> int:
        task = app.tasks.get(name or settings.default_task or "")
        return int(getattr(task, "bridge_max_attempts", None) or settings.max_attempts)

    found = locate(reach(app), settings, ticket_id, max_attempts)
    if as_json:
        echo_json(found.document())
    else:
        _print(found)
    ctx.exit(0 if found.state is not None else 1)


def _print(found: Whereabouts) -> None:
    def fact(name: str, value: str) -> None:
        click.echo(f"{name:<10}{one_line(value, 2000)}")

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
    fact("waiting", _scan(found.waiting, "of what waits"))
    fact("unread", _scan(found.unread, "of the unread entries"))
    for letter in found.letters:
        fact("dead", f"{letter.message_id}: {letter.reason}{': ' + letter.error if letter.error else ''}")
    fact("leader", found.leader or "none")
    fact("alive", count(found.consumers_alive, "consumer"))


def _scan(scan: Scan, where: str) -> str:
    if scan.complete:
        return f"{scan.count:,}"
    return f"at least {scan.count:,} (looked at the first {scan.looked_at:,} {where})"
