"""Types of command-line arguments that click does not have, and options that several commands share."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import click
from click.types import StringParamType

#: The type of ``--limit``. `islice` takes no larger number.
LIMIT = click.IntRange(1, sys.maxsize)


class Number(click.FloatRange):
    """A number in a range. Refuses "nan", which compares false with every number, so a wait for it would never end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


class Text(StringParamType):
    """Text that can be encoded as UTF-8. A shell may give any bytes, and no name in Redis has others."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!r} cannot be written as UTF-8.", param, ctx)
        return text


class NonEmptyText(Text):
    """Text of at least one character.

    An empty text is often an unset shell variable. It would mean the default, or match every dead letter.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            self.fail("it is empty.", param, ctx)
        return super().convert(value, param, ctx)


class TicketId(NonEmptyText):
    """What can be a ticket."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from bridge.producer.message_bytes import ticket_bytes
        from bridge.routing.errors import PayloadError

        text = super().convert(value, param, ctx)
        try:
            ticket_bytes(text)
        except PayloadError as exc:
            self.fail(f"{exc}.", param, ctx)
        return text


class MessageId(StringParamType):
    """What can be a message id. ``whole``: the number behind its time may not be left out."""

    def __init__(self, *, whole: bool = True) -> None:
        self._whole = whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from bridge.inspect.choice import checked_id
        from bridge.routing.errors import InputError

        try:
            return checked_id(str(value), whole=self._whole)
        except InputError as exc:
            self.fail(f"{exc}.", param, ctx)


TEXT = Text()
NON_EMPTY = NonEmptyText()
TICKET_ID = TicketId()
MESSAGE_ID = MessageId()
#: Where a reading of a stream begins.
PLACE = MessageId(whole=False)


def with_options(*options: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that adds the decorators ``options`` of click; the first one comes first in the help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


#: Options of commands that have to find messages before they change them.
CHANGING = (
    click.option("--dry-run", is_flag=True, help="Only print what would be done."),
    click.option("--yes", is_flag=True, help="Do not ask."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    click.pass_context,
)
