"""What the words of an effect may be: everything that would make Redis refuse the command is found here, at the call.

Redis has no rollback: a command that fails after others of the same message were applied would leave half of them. The
script checks the types of keys and the numbers that are there; this checks what can be told from the words alone, of
one command (`check`) and of all commands of one message together (`Harmony`). The oldest server's grammar counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from bridge.routing.errors import PayloadError

Words = list[bytes]

#: Most words of one command: what Lua can put into one call is limited.
MAX_WORDS = 6000
#: Largest number that a double holds exactly, and the script can add with.
MAX_NUMBER = 2**53 - 1
#: Longest time to live, in seconds: about three hundred years. Redis refuses what overflows with its clock.
MAX_TTL_S = 10**10

_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_DECIMAL = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_ID = re.compile(rb"[0-9]{1,19}(-[0-9]{1,19})?")
_INFINITE = (b"inf", b"+inf", b"-inf")


class _Unfit(Exception):
    """Why; becomes a `PayloadError` that names the command."""


def check(name: str, words: Words) -> None:
    """Raises `PayloadError` when Redis could refuse the command ``name`` with the words after it."""
    try:
        if len(words) >= MAX_WORDS:
            raise _Unfit(f"{len(words)} words are too many for one call; make several of at most {MAX_WORDS - 1}")
        GRAMMAR[name](words)
    except _Unfit as exc:
        raise PayloadError(f"effects.{name.lower()}: {exc}") from None


def _integer(word: bytes, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    if not _INTEGER.fullmatch(word) or not low <= int(word) <= high:
        raise _Unfit(f"{_shown(word)} is not an integer from {low} to {high}")
    return int(word)


def _decimal(word: bytes, low: float = -1e300, high: float = 1e300) -> float:
    if not _DECIMAL.fullmatch(word) or not low <= float(word) <= high:
        raise _Unfit(f"{_shown(word)} is not a number from {low:g} to {high:g}")
    return float(word)


def _score(word: bytes) -> None:
    if word.lower() not in _INFINITE:
        _decimal(word)


def _shown(word: bytes) -> str:
    return repr(word[:40].decode(errors="replace"))


def _exactly(count: int) -> Callable[[Words], None]:
    def grammar(words: Words) -> None:
        if len(words) != count:
            raise _Unfit(f"takes {count} words, not {len(words)}")

    return grammar


def _at_least(count: int) -> Callable[[Words], None]:
    def grammar(words: Words) -> None:
        if len(words) < count:
            raise _Unfit(f"takes at least {count} words, not {len(words)}")

    return grammar


def _groups(words: Words, size: int) -> None:
    if not words or len(words) % size:
        raise _Unfit(f"takes groups of {size} words, not {len(words)} words")


def _options(words: Words, known: tuple[bytes, ...]) -> tuple[set[bytes], Words]:
    """The leading words that are options, upper case, and the rest."""
    found: set[bytes] = set()
    i = 0
    while i < len(words) and words[i].upper() in known:
        found.add(words[i].upper())
        i += 1
    return found, words[i:]


def _one_of(found: set[bytes], *exclusive: bytes) -> None:
    both = sorted(found.intersection(exclusive))
    if len(both) > 1:
        raise _Unfit(f"{' and '.join(option.decode() for option in both)} exclude each other")


_SET_ENDS = {b"EX": MAX_TTL_S, b"PX": MAX_TTL_S * 1000, b"EXAT": 2 * MAX_TTL_S, b"PXAT": 2 * MAX_TTL_S * 1000}


def _set(words: Words) -> None:
    _at_least(2)(words)
    ends = conditions = 0
    rest = iter(words[2:])
    for word in rest:
        option = word.upper()
        if option in _SET_ENDS:
            _integer(next(rest, b""), 1, _SET_ENDS[option])
            ends += 1
        elif option == b"KEEPTTL":
            ends += 1
        elif option in (b"NX", b"XX"):
            conditions += 1
        else:
            raise _Unfit(f"{_shown(word)} is not possible here: an effect returns nothing and runs on Redis 6.2, too")
    if ends > 1 or conditions > 1:
        raise _Unfit("options exclude each other")


def _setex(seconds: int) -> Callable[[Words], None]:
    def grammar(words: Words) -> None:
        _exactly(3)(words)
        _integer(words[1], 1, seconds)

    return grammar


def _expire(longest: int) -> Callable[[Words], None]:
    def grammar(words: Words) -> None:
        _exactly(2)(words)
        _integer(words[1], 1, longest)

    return grammar


def _mset(words: Words) -> None:
    _groups(words, 2)


def _hset(words: Words) -> None:
    _groups(words[1:], 2)


def _add_at(position: int, number: Callable[[bytes], object]) -> Callable[[Words], None]:
    def grammar(words: Words) -> None:
        _exactly(position + 1)(words)
        number(words[position])

    return grammar


def _whole(word: bytes) -> None:
    _integer(word, -MAX_NUMBER, MAX_NUMBER)


def _fraction(word: bytes) -> None:
    _decimal(word, -MAX_NUMBER, MAX_NUMBER)


def _range(words: Words) -> None:
    _exactly(3)(words)
    _integer(words[1])
    _integer(words[2])


def _lrem(words: Words) -> None:
    _exactly(3)(words)
    _integer(words[1], -MAX_NUMBER, MAX_NUMBER)


def _zadd(words: Words) -> None:
    found, rest = _options(words[1:], (b"NX", b"XX", b"GT", b"LT", b"CH"))
    _one_of(found, b"NX", b"XX")
    _one_of(found, b"NX", b"GT", b"LT")
    _groups(rest, 2)
    for word in rest[::2]:
        _score(word)


def _zincrby(words: Words) -> None:
    _exactly(3)(words)
    _decimal(words[1])


def _by_score(words: Words) -> None:
    _exactly(3)(words)
    for word in words[1:]:
        _score(word.removeprefix(b"("))


def _geoadd(words: Words) -> None:
    found, rest = _options(words[1:], (b"NX", b"XX", b"CH"))
    _one_of(found, b"NX", b"XX")
    _groups(rest, 3)
    for i in range(0, len(rest), 3):
        _decimal(rest[i], -180, 180)
        _decimal(rest[i + 1], -85.05, 85.05)


def _setbit(words: Words) -> None:
    _exactly(3)(words)
    _integer(words[1], 0, 2**32 - 1)
    _integer(words[2], 0, 1)


def _xadd(words: Words) -> None:
    rest = words[1:]
    if rest[:1] and rest[0].upper() == b"NOMKSTREAM":
        rest = rest[1:]
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
            raise _Unfit(f"{_shown(threshold)} is not a stream id")
        rest = rest[1:]
        if rest[:1] and rest[0].upper() == b"LIMIT":
            if not about:
                raise _Unfit("a limit needs approximate=True")
            _integer(rest[1] if len(rest) > 1 else b"", 0)
            rest = rest[2:]
    if rest[:1] != [b"*"]:
        raise _Unfit("leave the id to Redis ('*'); any other could be refused")
    _groups(rest[1:], 2)


#: Command -> what its words, without its name, must be like.
GRAMMAR: dict[str, Callable[[Words], None]] = {
    "SET": _set,
    "SETEX": _setex(MAX_TTL_S),
    "PSETEX": _setex(MAX_TTL_S * 1000),
    "SETNX": _exactly(2),
    "MSET": _mset,
    "APPEND": _exactly(2),
    "INCR": _exactly(1),
    "INCRBY": _add_at(1, _whole),
    "DECRBY": _add_at(1, _whole),
    "DECR": _exactly(1),
    "DEL": _at_least(1),
    "UNLINK": _at_least(1),
    "EXPIRE": _expire(MAX_TTL_S),
    "PEXPIRE": _expire(MAX_TTL_S * 1000),
    "PERSIST": _exactly(1),
    "HSET": _hset,
    "HSETNX": _exactly(3),
    "HDEL": _at_least(2),
    "HINCRBY": _add_at(2, _whole),
    "HINCRBYFLOAT": _add_at(2, _fraction),
    "LPUSH": _at_least(2),
    "RPUSH": _at_least(2),
    "LTRIM": _range,
    "LREM": _lrem,
    "SADD": _at_least(2),
    "SREM": _at_least(2),
    "ZADD": _zadd,
    "ZINCRBY": _zincrby,
    "ZREM": _at_least(2),
    "ZREMRANGEBYRANK": _range,
    "ZREMRANGEBYSCORE": _by_score,
    "XADD": _xadd,
    "PUBLISH": _exactly(2),
    "SETBIT": _setbit,
    "GEOADD": _geoadd,
}

#: Commands that make their keys strings, whatever they were.
_MAKE_STRINGS = ("SET", "SETEX", "PSETEX", "SETNX", "MSET")


class Harmony:
    """The commands of one message together: none may make a later one fail, since the script looks at what is there
    before the first of them.
    """

    def __init__(self) -> None:
        self._kinds: dict[bytes, str] = {}
        #: (key, field) -> 'int', 'float', or 'written' by something else than an increment.
        self._values: dict[tuple[bytes, bytes], str] = {}
        self._sums: dict[tuple[bytes, bytes], int] = {}

    def add(self, name: str, kind: str, increment: str, words: Words) -> None:
        """Takes one command in. Raises `PayloadError` when one before it could make it fail."""
        if name == "PUBLISH":
            return
        if name in _MAKE_STRINGS:
            kind = "string"
        keys = words[::2] if name == "MSET" else words if name in ("DEL", "UNLINK") else words[:1]
        for key in keys:
            if kind and self._kinds.setdefault(key, kind) != kind:
                known = self._kinds[key]
                raise PayloadError(f"effects.{name.lower()}: an effect before it makes {_shown(key)} a {known}")
        if increment:
            self._add_up(name, increment, words)
            return
        for key in keys:
            for field in self._fields(name, words):
                self._values[key, field] = "written"

    @staticmethod
    def _fields(name: str, words: Words) -> Words:
        if name == "HSET":
            return words[1::2]
        if name == "HSETNX":
            return words[1:2]
        return [b""] if name in (*_MAKE_STRINGS, "APPEND", "SETBIT") else []

    def _add_up(self, name: str, increment: str, words: Words) -> None:
        value = (words[0], words[1] if name.startswith("H") else b"")
        before = self._values.setdefault(value, increment)
        if before != increment:
            how = "sets" if before == "written" else f"adds a {before} to"
            raise PayloadError(f"effects.{name.lower()}: an effect before it {how} the same value")
        by = words[-1] if len(words) > 1 else b"1"
        self._sums[value] = self._sums.get(value, 0) + math.ceil(abs(float(by)))
        if self._sums[value] > MAX_NUMBER:
            raise PayloadError(f"effects.{name.lower()}: the effects of one message add too much to one value")
