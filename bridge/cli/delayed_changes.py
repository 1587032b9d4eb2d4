"""What the commands that change delayed messages have in common: their options, and what each does with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING

import click

from bridge.cli.delayed_view import filters, searching, selection_of, table
from bridge.cli.parameters import CHANGING, LIMIT, MESSAGE_ID, with_options
from bridge.cli.refusals import ROWS, fail_for, list_refused, reporting_progress_on_error
from bridge.cli.target import Target
from bridge.cli.terminal import at_a_terminal, echo_json
from bridge.routing.numbers import count, moment
from bridge.routing.terminal import console

if TYPE_CHECKING:
    from bridge.app.lanes import AppLane
    from bridge.inspect.delayed import DelayedMessage
    from bridge.operate.delayed import Change
    from bridge.protocol.orders import DelayedAct

#: Adds the options of the commands that change delayed messages.
changing = with_options(
    click.argument("ids", type=MESSAGE_ID, metavar="[ID]...", nargs=-1),
    click.option("--all", "everything", is_flag=True, help="All delayed messages that match the other options."),
    filters,
    click.option("--limit", type=LIMIT, help="Change the next N at most."),
    *CHANGING,
)


class ChangeRequest:
    """One call of a command that changes delayed messages: chooses them, asks, gives the orders, prints the result.

    ``due``: the new time in the form of `bridge.producer.options`.
    """

    def __init__(
        self,
        ctx: click.Context,
        act: DelayedAct,
        verb: str,
        participle: str,
        due: bytes | None,
        *,
        ids: Sequence[str],
        everything: bool,
        limit: int | None,
        dry_run: bool,
        yes: bool,
        as_json: bool,
        **chosen: str | None,
    ) -> None:
        from bridge.app.finding import reach_lanes
        from bridge.inspect.delayed import now_ms_of

        is_chosen = everything or any(value is not None for value in chosen.values())
        if bool(ids) == is_chosen:
            raise click.UsageError(
                "either name messages by ID, or choose them with --all, --ticket, --task, --after, --before, --hold or "
                "--overtake",
                ctx,
            )
        target: Target = ctx.obj
        self._ctx, self._target = ctx, target
        self._act, self._verb, self._participle = act, verb, participle
        self._limit, self._dry_run, self._as_json = limit, dry_run, as_json
        self._sure = yes or bool(ids)
        self._redis = reach_lanes(target.app, target.app_lanes, to_change=True)
        self._now_ms = now_ms_of(self._redis)
        self._due_ms = None if due is None else _unix_ms(due, self._now_ms)
        self._ids = list(dict.fromkeys(ids))
        self._selection = selection_of(self._now_ms, **chosen)

    def run(self) -> None:
        """Carries out the command, and ends it with its exit code."""
        found = self._named() if self._ids else self._matching()
        if self._dry_run:
            self._print_plan(found)
            return
        if found and not self._sure and not self._confirmed(len(found)):
            return
        results: list[Change] = []
        whys: list[str | None] = []
        print_json = partial(self._print_json, found, results) if self._as_json else None
        with reporting_progress_on_error(whys, len(found), self._participle, print_json):
            for result in self._changes(found):
                results.append(result)
                whys.append(result.why)
        self._report(found, results)

    def _named(self) -> list[DelayedMessage]:
        from bridge.inspect.delayed import find_delayed

        return [find_delayed(self._redis, self._target.lane_of_message(id_), id_) for id_ in self._ids]

    def _matching(self) -> list[DelayedMessage]:
        from bridge.inspect.delayed import DelayedMessage, soonest_first

        with searching(self._redis, self._target, self._selection, quiet=self._as_json) as on_page:
            source = soonest_first(self._redis, self._target.app_lanes, self._selection, on_page)
            # There may be many: keep of their entries what is printed.
            kept = _without_payload if self._dry_run or self._as_json else lambda _fields: ()
            return [
                DelayedMessage(one.id, one.due_ms, one.mode, kept(one.fields), one.default_task)
                for one in islice(source, self._limit)
            ]

    def _changes(self, found: Sequence[DelayedMessage]) -> Iterator[Change]:
        """The results, lane after lane."""
        from bridge.operate.delayed import change

        def lane_of(message: DelayedMessage) -> AppLane:
            return self._target.lane_of_message(message.id)

        by_lane = sorted(found, key=lambda message: lane_of(message).id_suffix)
        for _, some in groupby(by_lane, key=lambda message: lane_of(message).id_suffix):
            messages = list(some)
            yield from change(self._redis, lane_of(messages[0]), self._act, messages, self._due_ms)

    def _confirmed(self, number: int) -> bool:
        what = f"{self._verb} {count(number, 'delayed message')}"
        if not at_a_terminal():
            raise click.UsageError(f"this would {what}: add --yes, or look first with --dry-run", self._ctx)
        return click.confirm(f"{what}?", err=True)

    def _print_plan(self, found: Sequence[DelayedMessage]) -> None:
        if self._as_json:
            self._echo_json(found, [None] * len(found))
            return
        if found:
            console().print(table(found[:ROWS], self._now_ms))
        if len(found) > ROWS:
            click.echo(f"… and {len(found) - ROWS:,} more")
        until = "" if self._due_ms is None else f" to {moment(self._due_ms)}"
        click.echo(f"would {self._verb} {count(len(found), 'delayed message')}{until}")

    def _report(self, found: Sequence[DelayedMessage], results: Sequence[Change]) -> None:
        refused = [(one.message_id, one.why) for one in results if one.why is not None]
        if self._as_json:
            self._print_json(found, results, "")
        elif not refused or len(found) > 1:
            list_refused(refused, self._participle, ROWS)
            until = "" if self._due_ms is None else f" to {moment(self._due_ms)}"
            click.echo(f"{self._participle} {count(len(found) - len(refused), 'delayed message')}{until}")
        fail_for(refused, len(found), "delayed message", self._participle)

    def _print_json(self, found: Sequence[DelayedMessage], results: Sequence[Change], unknown: str) -> None:
        """``unknown``: why there is no result for the others."""
        known = {one.message_id: one.why for one in results}
        self._echo_json(found, [known.get(one.id, unknown) for one in found])

    def _echo_json(self, found: Sequence[DelayedMessage], whys: Sequence[str | None]) -> None:
        """``whys``: why each is refused; None: it is not."""
        messages = [
            {**one.summary(self._now_ms), self._word: why is None, "why": why}
            for one, why in zip(found, whys, strict=True)
        ]
        done = whys.count(None)
        echo_json(
            {
                "dry_run": self._dry_run,
                self._word: done,
                "refused": len(found) - done,
                "due_ms": self._due_ms,
                "messages": messages,
            }
        )

    @property
    def _word(self) -> str:
        return self._participle.replace(" ", "_")


def _unix_ms(due: bytes, now_ms: int) -> int:
    return now_ms + int(due) if due.startswith(b"+") else int(due.removeprefix(b"="))


def _without_payload(fields: Sequence[bytes]) -> tuple[bytes, ...]:
    kept = (b"ticket_id", b"task")
    return tuple(part for i in range(0, len(fields), 2) if fields[i] in kept for part in fields[i : i + 2])
