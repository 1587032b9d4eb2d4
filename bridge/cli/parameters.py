"""Types of command-line arguments that click does not have."""

from __future__ import annotations

import math
import sys
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


class NonEmptyText(StringParamType):
    """Text of at least one character that can be encoded as UTF-8.

    An empty text is often an unset shell variable. It would mean the default, or match every dead letter.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text:
            self.fail("it is empty.", param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!r} cannot be written as UTF-8.", param, ctx)
        return text


NON_EMPTY = NonEmptyText()
