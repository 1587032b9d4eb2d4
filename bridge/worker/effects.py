"""``self.ticket.effects``: Redis commands that are applied in the same atomic step as the task's success.

They are recorded, not executed: a command returns nothing. Redis has no rollback, so a command may only be here when
everything that can make it fail is checked before the first one is applied: its key's type and, where it adds to a
number, that number, by the script (``routing/lua/apply.lua``); its own words, here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from redis._parsers import Encoder
from redis.commands import CoreCommands

from routing.errors import PayloadError
from routing.transitions import Effect

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
    "INCRBYFLOAT": ("string", "float"),
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
    "PFADD": ("string", ""),
    "SETBIT": ("string", ""),
    "GEOADD": ("zset", ""),
}

#: Commands whose words may hold numbers that Redis refuses, and where those words are.
_POSITIVE = {"SETEX": 2, "PSETEX": 2}

_ENCODER = Encoder(encoding="utf-8", encoding_errors="strict", decode_responses=False)


if TYPE_CHECKING:
    _Base = CoreCommands[Any]
else:
    _Base = CoreCommands


class Effects(_Base):
    """Records commands under the names and signatures of redis-py's client."""

    def __init__(self) -> None:
        self._recorded: list[Effect] = []

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
        words: list[str | bytes] = [name]
        for word in args[1:]:
            if isinstance(word, float) and not math.isfinite(word) and name != "ZADD":
                raise PayloadError(f"effects.{name.lower()}: {word} is not a finite number")
            if isinstance(word, float) and math.isnan(word):
                raise PayloadError(f"effects.{name.lower()}: nan is not a score")
            words.append(_ENCODER.encode(word))
        if name in _POSITIVE and int(words[_POSITIVE[name]]) <= 0:
            raise PayloadError(f"effects.{name.lower()}: the time to live must be positive")
        if name == "XADD" and b"*" not in words[2:8]:
            raise PayloadError("effects.xadd: leave the id to Redis ('*'); any other could be refused")
        kind, check = ALLOWED[name]
        if name == "DECRBY":
            # Written as an increment, so that the script adds in one way only.
            words = ["INCRBY", words[1], str(-int(words[2])).encode()]
        self._recorded.append(Effect(kind, check, tuple(words)))

    def pipeline(self, *args: Any, **kwargs: Any) -> Any:
        raise PayloadError("effects are one atomic step already; call the commands on effects itself")
