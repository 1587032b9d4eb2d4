"""The commands that may be effects, and the grammar of their arguments. A command that Redis would refuse raises here.

Redis has no rollback: a command that fails after others of the same message were applied would leave half of them. The
script checks the types of keys and the numbers that are there. This checks the arguments of one command, by the grammar
of the oldest server, and `bridge.app.effect_conflicts` what the commands of one message do to each other.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import NamedTuple

from bridge.routing.errors import PayloadError

Arguments = list[bytes]

#: Most arguments of one command, since Lua can put only so many into one call.
MAX_ARGUMENTS = 6000
#: Largest number that a double holds exactly, and the script can add with.
MAX_NUMBER = 2**53 - 1
#: Most bytes of a number. Redis refuses to add a text of 5 KB.
MAX_DIGITS = 255
#: Longest time to live, in seconds: about three hundred years. Redis refuses what overflows with its clock.
MAX_TTL_S = 10**10

_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_DECIMAL = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
#: Of a decimal: no digit before its exponent is another one.
_ZERO = re.compile(rb"-?[0.]+([eE]|$)")
_ID = re.compile(rb"[0-9]{1,19}(-[0-9]{1,19})?")
_INFINITE = (b"inf", b"+inf", b"-inf")


class _BadArgument(Exception):
    """The reason. `check` turns it into a `PayloadError` that names the command."""


def check(name: str, arguments: Arguments) -> None:
    """Raises `PayloadError` when Redis could refuse the command ``name`` with these ``arguments``."""
    try:
        if len(arguments) >= MAX_ARGUMENTS:
            raise _BadArgument(
                f"{len(arguments)} arguments are too many for one call; make several of at most {MAX_ARGUMENTS - 1}"
            )
        COMMANDS[name].grammar(arguments)
    except _BadArgument as exc:
        raise PayloadError(f"effects.{name.lower()}: {exc}") from None


def _integer(argument: bytes, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    if not _INTEGER.fullmatch(argument) or not low <= int(argument) <= high:
        raise _BadArgument(f"{shown(argument)} is not an integer from {low} to {high}")
    return int(argument)


def _decimal(argument: bytes, low: float = -1e300, high: float = 1e300) -> float:
    if len(argument) > MAX_DIGITS or not _DECIMAL.fullmatch(argument) or not low <= float(argument) <= high:
        raise _BadArgument(f"{shown(argument)} is not a number from {low:g} to {high:g}")
    if abs(float(argument)) < sys.float_info.min and not _ZERO.match(argument):
        raise _BadArgument(f"{shown(argument)} is too small for a double")
    return float(argument)


def _score(argument: bytes) -> None:
    if argument.lower() not in _INFINITE:
        _decimal(argument)


def shown(argument: bytes) -> str:
    """An argument as errors show it: at most its first 40 bytes."""
    return repr(argument[:40].decode(errors="replace"))


def _exactly(count: int) -> Callable[[Arguments], None]:
    def grammar(arguments: Arguments) -> None:
        if len(arguments) != count:
            raise _BadArgument(f"takes {count} arguments, not {len(arguments)}")

    return grammar


def _at_least(count: int) -> Callable[[Arguments], None]:
    def grammar(arguments: Arguments) -> None:
        if len(arguments) < count:
            raise _BadArgument(f"takes at least {count} arguments, not {len(arguments)}")

    return grammar


def _groups(arguments: Arguments, size: int) -> None:
    if not arguments or len(arguments) % size:
        raise _BadArgument(f"takes groups of {size} arguments, not {len(arguments)} arguments")


def _options(arguments: Arguments, known: tuple[bytes, ...]) -> tuple[set[bytes], Arguments]:
    """The leading arguments that are options, upper case, and the rest."""
    found: set[bytes] = set()
    i = 0
    while i < len(arguments) and arguments[i].upper() in known:
        found.add(arguments[i].upper())
        i += 1
    return found, arguments[i:]


def _one_of(found: set[bytes], *exclusive: bytes) -> None:
    both = sorted(found.intersection(exclusive))
    if len(both) > 1:
        raise _BadArgument(f"{' and '.join(option.decode() for option in both)} exclude each other")


_SET_ENDS = {b"EX": MAX_TTL_S, b"PX": MAX_TTL_S * 1000, b"EXAT": 2 * MAX_TTL_S, b"PXAT": 2 * MAX_TTL_S * 1000}


def _set(arguments: Arguments) -> None:
    _at_least(2)(arguments)
    ends = conditions = 0
    rest = iter(arguments[2:])
    for argument in rest:
        option = argument.upper()
        if option in _SET_ENDS:
            _integer(next(rest, b""), 1, _SET_ENDS[option])
            ends += 1
        elif option == b"KEEPTTL":
            ends += 1
        elif option in (b"NX", b"XX"):
            conditions += 1
        else:
            raise _BadArgument(
                f"{shown(argument)} is not possible here: an effect returns nothing and runs on Redis 6.2, too"
            )
    if ends > 1 or conditions > 1:
        raise _BadArgument("options exclude each other")


def _setex(seconds: int) -> Callable[[Arguments], None]:
    def grammar(arguments: Arguments) -> None:
        _exactly(3)(arguments)
        _integer(arguments[1], 1, seconds)

    return grammar


def _expire(longest: int) -> Callable[[Arguments], None]:
    def grammar(arguments: Arguments) -> None:
        _exactly(2)(arguments)
        _integer(arguments[1], 1, longest)

    return grammar


def _mset(arguments: Arguments) -> None:
    _groups(arguments, 2)


def _hset(arguments: Arguments) -> None:
    _groups(arguments[1:], 2)


def _add_at(position: int, number: Callable[[bytes], object]) -> Callable[[Arguments], None]:
    def grammar(arguments: Arguments) -> None:
        _exactly(position + 1)(arguments)
        number(arguments[position])

    return grammar


def _whole(argument: bytes) -> None:
    _integer(argument, -MAX_NUMBER, MAX_NUMBER)


def _fraction(argument: bytes) -> None:
    _decimal(argument, -MAX_NUMBER, MAX_NUMBER)


def _range(arguments: Arguments) -> None:
    _exactly(3)(arguments)
    _integer(arguments[1])
    _integer(arguments[2])


def _lrem(arguments: Arguments) -> None:
    _exactly(3)(arguments)
    _integer(arguments[1], -MAX_NUMBER, MAX_NUMBER)


def _zadd(arguments: Arguments) -> None:
    found, rest = _options(arguments[1:], (b"NX", b"XX", b"GT", b"LT", b"CH"))
    _one_of(found, b"NX", b"XX")
    _one_of(found, b"NX", b"GT", b"LT")
    _groups(rest, 2)
    for argument in rest[::2]:
        _score(argument)


def _zincrby(arguments: Arguments) -> None:
    _exactly(3)(arguments)
    _decimal(arguments[1])


def _by_score(arguments: Arguments) -> None:
    _exactly(3)(arguments)
    for argument in arguments[1:]:
        _score(argument.removeprefix(b"("))


def _geoadd(arguments: Arguments) -> None:
    found, rest = _options(arguments[1:], (b"NX", b"XX", b"CH"))
    _one_of(found, b"NX", b"XX")
    _groups(rest, 3)
    for i in range(0, len(rest), 3):
        _decimal(rest[i], -180, 180)
        _decimal(rest[i + 1], -85.05, 85.05)


def _setbit(arguments: Arguments) -> None:
    _exactly(3)(arguments)
    _integer(arguments[1], 0, 2**32 - 1)
    _integer(arguments[2], 0, 1)


def _without_nomkstream(arguments: Arguments) -> Arguments:
    return arguments[1:] if arguments[:1] and arguments[0].upper() == b"NOMKSTREAM" else arguments


def _xadd(arguments: Arguments) -> None:
    # The server takes it anywhere before the id, and redis-py puts it first or last.
    rest = _without_nomkstream(arguments[1:])
    if rest[:1] and rest[0].upper() in (b"MAXLEN", b"MINID"):
        by_id = rest[0].upper() == b"MINID"
        rest = rest[1:]
        about = rest[:1] == [b"~"]
        if rest[:1] in ([b"~"], [b"="]):
            rest = rest[1:]
        threshold = rest[0] if rest else b""
        if not by_id:
            _integer(threshold, 0)
        elif not _ID.fullmatch(threshold):
            raise _BadArgument(f"{shown(threshold)} is not a stream id")
        rest = rest[1:]
        if rest[:1] and rest[0].upper() == b"LIMIT":
            if not about:
                raise _BadArgument("a limit needs approximate=True")
            _integer(rest[1] if len(rest) > 1 else b"", 0)
            rest = rest[2:]
        rest = _without_nomkstream(rest)
    if rest[:1] != [b"*"]:
        raise _BadArgument("leave the id to Redis ('*'); any other could be refused")
    _groups(rest[1:], 2)


def _first(arguments: Arguments) -> Arguments:
    return arguments[:1]


def _all(arguments: Arguments) -> Arguments:
    return arguments


def _every_second(arguments: Arguments) -> Arguments:
    return arguments[::2]


class Command(NamedTuple):
    """A command that may be an effect."""

    #: Checks the arguments after its name. Raises `_BadArgument` when Redis could refuse them.
    grammar: Callable[[Arguments], None]
    #: The Redis type that its key must have; '': any type.
    kind: str = ""
    #: 'int' or 'float' if it adds its last argument to a number; '' if it does not.
    increment: str = ""
    #: Returns those of its arguments that are keys.
    keys: Callable[[Arguments], Arguments] = _first


#: The commands that may be effects.
COMMANDS = {
    "SET": Command(_set),
    "SETEX": Command(_setex(MAX_TTL_S)),
    "PSETEX": Command(_setex(MAX_TTL_S * 1000)),
    "SETNX": Command(_exactly(2)),
    "MSET": Command(_mset, keys=_every_second),
    "APPEND": Command(_exactly(2), "string"),
    "INCR": Command(_exactly(1), "string", "int"),
    "INCRBY": Command(_add_at(1, _whole), "string", "int"),
    # Not INCRBYFLOAT: in a script it makes Redis 6.2 write past its own memory. HINCRBYFLOAT does not.
    "DECRBY": Command(_add_at(1, _whole), "string", "int"),
    "DECR": Command(_exactly(1), "string", "int"),
    "DEL": Command(_at_least(1), keys=_all),
    "UNLINK": Command(_at_least(1), keys=_all),
    "EXPIRE": Command(_expire(MAX_TTL_S)),
    "PEXPIRE": Command(_expire(MAX_TTL_S * 1000)),
    "PERSIST": Command(_exactly(1)),
    "HSET": Command(_hset, "hash"),
    "HSETNX": Command(_exactly(3), "hash"),
    "HDEL": Command(_at_least(2), "hash"),
    "HINCRBY": Command(_add_at(2, _whole), "hash", "int"),
    "HINCRBYFLOAT": Command(_add_at(2, _fraction), "hash", "float"),
    "LPUSH": Command(_at_least(2), "list"),
    "RPUSH": Command(_at_least(2), "list"),
    "LTRIM": Command(_range, "list"),
    "LREM": Command(_lrem, "list"),
    "SADD": Command(_at_least(2), "set"),
    "SREM": Command(_at_least(2), "set"),
    "ZADD": Command(_zadd, "zset"),
    "ZINCRBY": Command(_zincrby, "zset"),
    "ZREM": Command(_at_least(2), "zset"),
    "ZREMRANGEBYRANK": Command(_range, "zset"),
    "ZREMRANGEBYSCORE": Command(_by_score, "zset"),
    "XADD": Command(_xadd, "stream"),
    "PUBLISH": Command(_exactly(2)),
    "SETBIT": Command(_setbit, "string"),
    "GEOADD": Command(_geoadd, "zset"),
}
