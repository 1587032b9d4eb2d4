"""Refuses effects of one message that conflict: an effect must not make a later one fail.

The script that applies effects checks all keys before it applies the first effect. So it cannot see such a conflict.
"""

from __future__ import annotations

import math

from bridge.app.effect_arguments import COMMANDS, MAX_NUMBER, Arguments, shown
from bridge.routing.errors import PayloadError

#: Commands after which their keys are strings, whatever type they had.
_MAKE_STRINGS = ("SET", "SETEX", "PSETEX", "SETNX", "MSET")


class CommandConflicts:
    """The commands of one message so far."""

    def __init__(self) -> None:
        self._kinds: dict[bytes, str] = {}
        #: (key, field) -> how it was changed: 'int' or 'float' by increments, 'written' by another command.
        self._values: dict[tuple[bytes, bytes], str] = {}
        self._sums: dict[tuple[bytes, bytes], int] = {}

    def add(self, name: str, arguments: Arguments) -> None:
        """Adds a command. Raises `PayloadError` when an earlier one could make it fail."""
        if name == "PUBLISH":
            return
        command = COMMANDS[name]
        kind = "string" if name in _MAKE_STRINGS else command.kind
        keys = command.keys(arguments)
        for key in keys:
            if kind and self._kinds.setdefault(key, kind) != kind:
                known = self._kinds[key]
                raise PayloadError(f"effects.{name.lower()}: an effect before it makes {shown(key)} a {known}")
        if command.increment:
            self._add_up(name, command.increment, arguments)
            return
        for key in keys:
            for field in self._fields(name, arguments):
                self._values[key, field] = "written"

    @staticmethod
    def _fields(name: str, arguments: Arguments) -> Arguments:
        if name == "HSET":
            return arguments[1::2]
        if name == "HSETNX":
            return arguments[1:2]
        return [b""] if name in (*_MAKE_STRINGS, "APPEND", "SETBIT") else []

    def _add_up(self, name: str, increment: str, arguments: Arguments) -> None:
        value = (arguments[0], arguments[1] if name.startswith("H") else b"")
        before = self._values.setdefault(value, increment)
        if before != increment:
            how = "sets" if before == "written" else f"adds a {before} to"
            raise PayloadError(f"effects.{name.lower()}: an effect before it {how} the same value")
        by = arguments[-1] if len(arguments) > 1 else b"1"
        self._sums[value] = self._sums.get(value, 0) + math.ceil(abs(float(by)))
        if self._sums[value] > MAX_NUMBER:
            raise PayloadError(f"effects.{name.lower()}: the effects of one message add too much to one value")
