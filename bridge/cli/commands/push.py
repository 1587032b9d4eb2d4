"""``bridge push``: adds the rows of a file to the stream."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from bridge.cli.target import Target
from bridge.cli.terminal import echo_error, echo_json
from bridge.producer.rows import FORMATS, Rules, format_of, rows
from bridge.producer.sources import Fingerprint, opened, readable_twice
from bridge.routing.errors import ConfigurationError, InputError, PayloadError, TicketBridgeError
from bridge.routing.numbers import count, duration, rate
from bridge.routing.terminal import Part, ProgressDisplay, console

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bridge.producer.pusher import Pushed
    from bridge.producer.rows import Format

#: Seconds between two progress lines, when standard error is no terminal.
PLAIN_EVERY_S = 10.0


@click.command()
@click.argument("file")
@click.option(
    "--key", default="ticket_id", show_default=True, metavar="COLUMN", help="The column that names the ticket."
)
@click.option("--task", metavar="NAME", help="The task of rows without one.  [default: bridge_default_task]")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="[default: from the name of the file]")
@click.option("--delimiter", default=",", show_default=True, help="The character between two cells of a CSV.")
@click.option(
    "--batch",
    default=500,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="Rows in one round trip, 500 at most.",
)
@click.option("--delay", type=float, metavar="SECONDS", help="Messages are due so long after they are pushed.")
@click.option("--eta", metavar="TIME", help="Messages are due at this time, as in 2030-01-31T12:00:00+01:00.")
@click.option("--hold", is_flag=True, help="Until a message is due, later ones of its ticket wait for it.")
@click.option("--max-attempts", type=int, metavar="N", help="The attempts of each message.")
@click.option("--timeout", type=float, metavar="SECONDS", help="For how long each message may run.")
@click.option("--expires", type=float, metavar="SECONDS", help="A message that has not begun so long after is dead.")
@click.option("--priority", type=int, metavar="0..9", help="The priority of each message between tickets.")
@click.option("--dry-run", is_flag=True, help="Only check the file.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
@click.pass_obj
def push(
    target: Target,
    file: str,
    key: str,
    task: str | None,
    kind: Format | None,
    delimiter: str,
    batch: int,
    delay: float | None,
    eta: str | None,
    hold: bool,
    max_attempts: int | None,
    timeout: float | None,
    expires: float | None,
    priority: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Pushes one message for each row of FILE: CSV or JSON lines, also gzipped. - is standard input.

    The columns due, delay and hold of a row go before --delay, --eta and --hold. They are no part of the payload. In a
    file with a column payload, so do max_attempts, timeout, expires (ms since 1970) and priority.

    The whole file is checked before the first message is pushed. A pipe is checked row by row.
    """
    from bridge.app.belonging import belongs
    from bridge.app.finding import load_tasks, reach
    from bridge.app.ticket_tasks import ticket_tasks
    from bridge.producer.pusher import Destination, Pushed, push_rows
    from bridge.routing.layouts import claim_layout

    kind = kind or format_of(file)
    if delimiter == "\\t":
        delimiter = "\t"
    if len(delimiter) != 1:
        raise ConfigurationError(f"--delimiter must be one character, not {delimiter!r}")
    app = target.app
    lane = app.bridge.settings.lane
    load_tasks(app)
    tasks = frozenset(name for name in ticket_tasks(app) if belongs(app, app.tasks[name]))
    if task is not None and task not in tasks:
        known = ", ".join(sorted(tasks)) or "none"
        what = "it belongs to no subscription" if task in ticket_tasks(app) else "there is no such task"
        raise ConfigurationError(f"--task {task}: {what}; this app's tasks: {known}")
    handling = {"max_attempts": max_attempts, "timeout": timeout, "expires": expires, "priority": priority}
    options = _options(delay, eta, hold, handling)
    rules = Rules(key, task, app.bridge.settings.default_task, tasks, lane.max_payload, delimiter, options)

    # Connects before the check, which may take long.
    client = None if dry_run else reach(app)
    destination = Destination(lane.stream)
    if client is not None:
        settings = app.bridge.settings
        found = claim_layout(client, lane.stream, settings.partitions, settings.older_streams)
        destination.layout = app.bridge.take_layout(found)
    total = None
    if readable_twice(file):
        before = Fingerprint(file)
        total = _check(file, kind, rules, quiet=as_json)
        if before != Fingerprint(file):
            raise InputError(
                f"{file} changed while it was checked; nothing was pushed. Try again when the file is complete"
            )
    if client is None:
        total = _check(file, kind, rules, quiet=as_json) if total is None else total
        if as_json:
            echo_json({"rows": total, "pushed": 0, "stream": lane.stream, "dry_run": True})
        else:
            click.echo(f"{file} is fine: {count(total, 'row')}; nothing was pushed (--dry-run)")
        return

    pushed = Pushed()
    began = time.monotonic()
    error = ""
    code = 0
    try:
        with _progress("pushing", total, quiet=as_json) as advance, opened(file) as source:
            push_rows(client, destination, rows(source, kind, rules), batch, pushed, advance)
    except TicketBridgeError as exc:
        error, code = str(exc), exc.exit_code
    except KeyboardInterrupt:
        error, code = "interrupted", 1
    _report(pushed, lane.stream, time.monotonic() - began, error, as_json)
    sys.exit(code)


def _options(delay: float | None, eta: str | None, hold: bool, handling: Mapping[str, Any]) -> dict[str, Any]:
    """The options of rows that have none. Raises `ConfigurationError`."""
    from bridge.producer.options import checked_options, eta_of_text

    try:
        given = {"delay": delay, "eta": None if eta is None else eta_of_text(eta), "hold": hold, **handling}
        found = {name: value for name, value in given.items() if value is not None and value is not False}
        # With --hold alone the rows say when they are due.
        alone = hold and delay is None and eta is None
        checked_options(handling if alone else found)
    except PayloadError as exc:
        raise ConfigurationError(f"{exc}; nothing was pushed") from None
    return found


def _report(pushed: Pushed, stream: str, seconds: float, error: str, as_json: bool) -> None:
    speed = pushed.rows / seconds if seconds > 0 else 0.0
    if as_json:
        echo_json(
            {
                "stream": stream,
                "pushed": pushed.rows,
                "delayed": pushed.delayed,
                "uncertain": pushed.uncertain,
                "first_id": pushed.first_id,
                "last_id": pushed.last_id,
                "seconds": round(seconds, 3),
                "rows_per_second": round(speed),
                "error": error or None,
            }
        )
    if error:
        what = f"{count(pushed.rows, 'row')} before it {'was' if pushed.rows == 1 else 'were'} pushed"
        if pushed.uncertain:
            what = f"{count(pushed.rows, 'row')} pushed for certain, {pushed.uncertain:,} more may be in"
        echo_error(f"{error}; {what}")
    elif not as_json:
        later = f", {pushed.delayed:,} of them delayed" if pushed.delayed else ""
        took = f"{duration(seconds * 1000)} ({rate(speed)})"
        click.echo(f"pushed {count(pushed.rows, 'message')} to {stream} in {took}{later}")


def _check(file: str, kind: Format, rules: Rules, *, quiet: bool) -> int:
    """The number of rows of ``file``. Raises `InputError` when a row cannot be pushed."""
    number = 0
    try:
        with _progress("checking", None, quiet=quiet) as advance, opened(file) as source:
            for number, _ in enumerate(rows(source, kind, rules), 1):
                if number % 1000 == 0:
                    advance(1000)
            advance(number % 1000)
    except InputError as exc:
        raise InputError(f"{exc}; nothing was pushed") from None
    return number


@contextmanager
def _progress(what: str, total: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Shows progress on standard error. Yields a function that is called with the number of further rows done."""
    if quiet:
        yield lambda _: None
        return
    began = time.monotonic()
    done = 0
    with ProgressDisplay(console(err=True), every_s=PLAIN_EVERY_S, first_s=PLAIN_EVERY_S) as display:

        def advance(number: int) -> None:
            nonlocal done
            done += number
            speed = rate(done / max(0.001, time.monotonic() - began))
            rows = count(done, "row") if total is None else f"{done:,} of {count(total, 'row')}"
            display.show(f"{what}: {rows}, {speed}", [Part(what, f"{rows}, {speed}", done, total)])

        yield advance
