"""``self.ticket.effects``: Redis commands that are applied in the same atomic step as the task's success.

They are recorded, not executed: a command returns nothing. Redis has no rollback, so a command may only be here when
everything that can make it fail is checked before the first one is applied: its key's type and, where it adds to a
number, that number, by the script (``routing/lua/apply.lua``); its own words, and what the commands of one message do
to each other, by `bridge.worker.effect_words`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis._parsers import Encoder
from redis.commands import CoreCommands
from redis.exceptions import DataError

from bridge.worker.effect_words import Harmony, check
from routing.effects import Effect
from routing.errors import PayloadError

#: Command -> (type that its key must have, '' = any; check of the number that it adds to).
ALLOWED: dict[str, tuple[str, str]] = {
    "SET": ("", ""),
    "SETEX": ("", ""),
    "PSETEX": ("", ""),
    "SETNX": ("", ""),
    "MSET": ("", ""),
    "APPEND": ("string", ""),
    "INCR": ("string", "int"),
    "INCRBY": ("string", "int"),
    # Not INCRBYFLOAT: in a script it makes Redis 6.2 write past its own memory. HINCRBYFLOAT does not.
    "DECRBY": ("string", "int"),
    "DECR": ("string", "int"),
    "DEL": ("", ""),
    "UNLINK": ("", ""),
    "EXPIRE": ("", ""),
    "PEXPIRE": ("", ""),
    "PERSIST": ("", ""),
    "HSET": ("hash", ""),
    "HSETNX": ("hash", ""),
    "HDEL": ("hash", ""),
    "HINCRBY": ("hash", "int"),
    "HINCRBYFLOAT": ("hash", "float"),
    "LPUSH": ("list", ""),
    "RPUSH": ("list", ""),
    "LTRIM": ("list", ""),
    "LREM": ("list", ""),
    "SADD": ("set", ""),
    "SREM": ("set", ""),
    "ZADD": ("zset", ""),
    "ZINCRBY": ("zset", ""),
    "ZREM": ("zset", ""),
    "ZREMRANGEBYRANK": ("zset", ""),
    "ZREMRANGEBYSCORE": ("zset", ""),
    "XADD": ("stream", ""),
    "PUBLISH": ("", ""),
    "SETBIT": ("string", ""),
    "GEOADD": ("zset", ""),
}

_ENCODER = Encoder(encoding="utf-8", encoding_errors="strict", decode_responses=False)


if TYPE_CHECKING:
    # The signatures of redis-py's commands are written for its clients.
    from redis import Redis as _Commands
else:
    _Commands = CoreCommands


class Effects(_Commands):
    """Records commands under the names and signatures of redis-py's client."""

    def __init__(self) -> None:
        self._recorded: list[Effect] = []
        self._harmony = Harmony()

    def __len__(self) -> int:
        return len(self._recorded)

    # A fresh recorder is "there", even when nothing was recorded yet.
    def __bool__(self) -> bool:
        return True

    def recorded(self) -> tuple[Effect, ...]:
        """The commands, in the order of the calls."""
        return tuple(self._recorded)

    def execute_command(self, *args: Any, **options: Any) -> None:
        """Records one command. Raises `PayloadError` when it cannot be an effect."""
        del options
        name = str(args[0]).upper()
        if name not in ALLOWED:
            known = ", ".join(sorted(command.lower() for command in ALLOWED))
            raise PayloadError(f"effects cannot {name.lower()}: it could fail half way; these can: {known}")
        try:
            words: list[bytes] = [_ENCODER.encode(word) for word in args[1:]]
        except (DataError, UnicodeEncodeError) as exc:
            raise PayloadError(f"effects.{name.lower()}: {exc}") from None
        check(name, words)
        kind, increment = ALLOWED[name]
        if name == "DECRBY":
            # Written as an increment, so that the script adds in one way only.
            name, words = "INCRBY", [words[0], str(-int(words[1])).encode()]
        self._harmony.add(name, kind, increment, words)
        self._recorded.append(Effect(kind, increment, (name, *words)))

    def pipeline(self, *_: Any, **__: Any) -> Any:
        """Always refuses."""
        raise PayloadError("effects are one atomic step already; call the commands on effects itself")
