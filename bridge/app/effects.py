"""``self.ticket.effects``: Redis commands that are applied in the same atomic step as the task's success.

Commands are recorded and not executed, so they return nothing. Redis has no rollback. So a command is allowed only if
every reason for its failure can be checked before the first command is applied:

- `bridge.app.effect_arguments` checks the arguments of each command;
- `bridge.app.effect_conflicts` checks that no command makes a later one of the same message fail;
- the script (``routing/lua/apply.lua``) checks the type of its key, the number that it adds to, how long its string
  becomes, and whether its stream has an id left.
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

#: The error of an effect that is recorded after the success was written.
WRITTEN = "the success of this message is written already; record effects in its task, not in code that runs after it"

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

    #: The streams of the worker's lanes. Set in a worker. Effects must not change them, nor the keys of their lanes.
    own: ClassVar[frozenset[bytes]] = frozenset()

    def __init__(self, refusal: str = "") -> None:
        self._recorded: list[Effect] = []
        self._conflicts = CommandConflicts()
        #: Why effects are refused; "": they are recorded.
        self._refusal = refusal

    def __len__(self) -> int:
        return len(self._recorded)

    # True even when nothing was recorded: else ``if self.ticket.effects`` would mislead.
    def __bool__(self) -> bool:
        return True

    def recorded(self) -> tuple[Effect, ...]:
        """The commands, in the order of the calls."""
        return tuple(self._recorded)

    def seal(self) -> tuple[Effect, ...]:
        """Closes the effects and returns them. They are written now, so a later one would be lost, and is refused."""
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
            arguments: list[bytes] = [_ENCODER.encode(argument) for argument in args[1:]]
        except (DataError, UnicodeEncodeError) as exc:
            raise PayloadError(f"effects.{name.lower()}: {exc}") from None
        check(name, arguments)
        if self.own and name != "PUBLISH":
            self._refuse_lane_keys(name, arguments)
        command = COMMANDS[name]
        if name == "DECRBY":
            # Recorded as an increment, so that the script has one way to add only.
            name, arguments = "INCRBY", [arguments[0], str(-int(arguments[1])).encode()]
        self._conflicts.add(name, arguments)
        self._recorded.append(Effect(command.kind, command.increment, (name, *arguments)))

    def _refuse_lane_keys(self, name: str, arguments: list[bytes]) -> None:
        for key in COMMANDS[name].keys(arguments):
            # XADD to the stream is allowed: a task may push a message together with its success.
            if (key in self.own and name != "XADD") or self._is_lane_key(key):
                raise PayloadError(
                    f"effects cannot {name.lower()} {key.decode(errors='replace')}: it is the lane's own"
                )

    def _is_lane_key(self, key: bytes) -> bool:
        stream, _, rest = key[1:].partition(b"}")
        return key.startswith(b"{") and rest[:1] in (b":", b"/") and stream in self.own

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
        """Always raises `PayloadError`."""
        raise PayloadError("effects are one atomic step already; call the commands on effects itself")
