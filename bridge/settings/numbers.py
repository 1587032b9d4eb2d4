"""Numbers in settings."""

from __future__ import annotations


def int_as_float(value: object) -> object:
    """A whole number as a float, which the models ask for; other values, also bools, as they are."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
