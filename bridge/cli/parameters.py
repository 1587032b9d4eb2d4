"""What the arguments of commands may be, beyond what click checks."""

from __future__ import annotations

import math
import sys
from typing import Any

import click
from click.types import StringParamType

#: How many things to show at most. Python counts no further.
LIMIT = click.IntRange(1, sys.maxsize)


class Number(click.FloatRange):
    """A number in a range. "nan" is none: it would pass every comparison, and the loop that waits by it never would."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


class Words(StringParamType):
    """Text of at least one character, as UTF-8.

    An empty one comes from a variable that nobody has set: it would mean the default, or every letter there is.
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


WORDS = Words()
