"""Numbers in settings."""

from __future__ import annotations


def int_as_float(value: object) -> object:
    """A whole number as a float, which the models ask for; other values, also bools, as they are.

    Raises ``ValueError`` for a number beyond a float.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    try:
        return float(value)
    except OverflowError:
        raise ValueError("is too large a number") from None
