"""``self.ticket.effects``: Redis commands that are applied in the same atomic step as the task's success.

They are recorded, not executed: a command returns nothing. Redis has no rollback, so a command may only be here when
everything that can make it fail is checked before the first one is applied: its key's type and, where it adds to a
number, that number, by the script (``routing/lua/apply.lua``); its own words by `bridge.app.effect_arguments`, and what
the commands of one message do to each other by `bridge.app.effect_conflicts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from redis._parsers import Encoder
from redis.commands import CoreCommands
from redis.exceptions import DataError

from bridge.app.effect_arguments import COMMANDS, check
from bridge.app.effect_conflicts import CommandConflicts
from bridge.routing.effects import Effect
from bridge.routing.errors import PayloadError

#: Why none is recorded any more when the others are being written.
WRITTEN = "the success of this message is written already; record effects in its task, not in what runs after it"

_ENCODER = Encoder(encoding="utf-8", encoding_errors="strict", decode_responses=False)


if TYPE_CHECKING:
    from collections.abc import Mapping

    # The signatures of redis-py's commands are written for its clients.
    from redis import Redis as _Commands

    Value = str | bytes | int | float
    #: redis-py asks for a mapping of exactly its own type of keys, which a ``dict[str, int]`` is not.
    Fields = Mapping[Any, Value]
else:
    _Commands = CoreCommands


class Effects(_Commands):
    """Records commands under the names and signatures of redis-py's client."""

    #: The stream and the beginnings of the lane's own keys, in a worker: no effect touches them.
    own: ClassVar[tuple[bytes, tuple[bytes, ...]] | None] = None

    def __init__(self, refusal: str = "") -> None:
        self._recorded: list[Effect] = []
        self._conflicts = CommandConflicts()
        #: Why none is recorded (any more); "": they are.
        self._refusal = refusal

    def __len__(self) -> int:
        return len(self._recorded)

    # A fresh recorder is "there", even when nothing was recorded yet.
    def __bool__(self) -> bool:
        return True

    def recorded(self) -> tuple[Effect, ...]:
        """The commands, in the order of the calls."""
        return tuple(self._recorded)

    def seal(self) -> tuple[Effect, ...]:
        """The commands, which are written now: one that came later would be lost, and is refused."""
        self._refusal = WRITTEN
        return self.recorded()

    def execute_command(self, *args: Any, **options: Any) -> None:
        """Records one command. Raises `PayloadError` when it cannot be an effect."""
        del options
        name = str(args[0]).upper()
        if self._refusal:
            raise PayloadError(f"effects.{name.lower()}: {self._refusal}")
        if name not in COMMANDS:
            known = ", ".join(sorted(command.lower() for command in COMMANDS))
            raise PayloadError(f"effects cannot {name.lower()}: it could fail half way; these can: {known}")
        try:
            words: list[bytes] = [_ENCODER.encode(word) for word in args[1:]]
        except (DataError, UnicodeEncodeError) as exc:
            raise PayloadError(f"effects.{name.lower()}: {exc}") from None
        check(name, words)
        if self.own is not None and name != "PUBLISH":
            self._refuse_lane_keys(name, words)
        command = COMMANDS[name]
        if name == "DECRBY":
            # Written as an increment, so that the script adds in one way only.
            name, words = "INCRBY", [words[0], str(-int(words[1])).encode()]
        self._conflicts.add(name, words)
        self._recorded.append(Effect(command.kind, command.increment, (name, *words)))

    def _refuse_lane_keys(self, name: str, words: list[bytes]) -> None:
        assert self.own is not None
        stream, beginnings = self.own
        for key in COMMANDS[name].keys(words):
            # A message that is pushed with the success of another one is what a task may want.
            if key.startswith(beginnings) or (key == stream and name != "XADD"):
                raise PayloadError(
                    f"effects cannot {name.lower()} {key.decode(errors='replace')}: it is the lane's own"
                )

    if TYPE_CHECKING:

        def hset(  # type: ignore[override]
            self,
            name: str | bytes,
            key: str | bytes | None = None,
            value: Value | None = None,
            mapping: Fields | None = None,
            items: list[Value] | None = None,
        ) -> Any: ...

        def xadd(  # type: ignore[override]
            self,
            name: str | bytes,
            fields: Fields,
            id: str = "*",  # noqa: A002  (redis-py's name)
            maxlen: int | None = None,
            approximate: bool = True,
            nomkstream: bool = False,
            minid: str | int | None = None,
            limit: int | None = None,
        ) -> Any: ...

    def pipeline(self, *_: Any, **__: Any) -> Any:
        """Always refuses."""
        raise PayloadError("effects are one atomic step already; call the commands on effects itself")
