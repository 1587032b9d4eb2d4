"""How a command fails that did not do what it was asked for with all its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from bridge.routing.errors import OrderFailed
from bridge.routing.numbers import count
from bridge.routing.text import one_line

#: Most messages that a result lists.
ROWS = 50
#: What is said of the messages that come after the step that failed.
NOT_BEGUN = "nothing was done with it: the command ended before"
#: Most characters of a reason.
WHY_CHARS = 400


@contextmanager
def reporting_progress_on_error(
    whys: Sequence[str | None], total: int, participle: str, print_json: Callable[[str], None] | None
) -> Iterator[None]:
    """Runs the block. If it ends with an error, or Ctrl-C, says how many of ``total`` messages were done before.

    ``whys``: the result of each message so far; None: it was done. Those of the step that failed are among them.
    ``print_json`` gets what is to be said of the others.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as exc:
        done = whys.count(None)
        if not done:
            raise
        if print_json is not None:
            print_json(NOT_BEGUN)
        before = f"{done:,} of {total:,} were {participle} before"
        if isinstance(exc, OrderFailed):
            raise OrderFailed(f"{exc} ({before})") from None
        click.echo(before, err=True)
        raise


def list_refused(refused: Sequence[tuple[str, str]], participle: str, most: int | None = None) -> None:
    """Prints a line for each of ``refused`` (id, why)."""
    for message_id, why in refused[:most]:
        click.echo(f"not {participle}: {message_id}: {one_line(why, WHY_CHARS)}")
    if most is not None and len(refused) > most:
        click.echo(f"… and {len(refused) - most:,} more that were not {participle}")


def fail_for(refused: Sequence[tuple[str, str]], total: int, what: str, participle: str) -> None:
    """Raises `OrderFailed` if any of ``total`` messages (``what``: one of them) was refused. The error of the only one
    says why; of several, `list_refused` does.
    """
    if not refused:
        return
    if total == 1:
        [(message_id, why)] = refused
        raise OrderFailed(f"{message_id} was not {participle}: {one_line(why, WHY_CHARS)}")
    verb = "was" if len(refused) == 1 else "were"
    number = f"{len(refused):,} of {count(total, what)} {verb} not" if len(refused) < total else f"no {what} was"
    raise OrderFailed(f"{number} {participle}")
