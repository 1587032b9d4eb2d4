"""``self.ticket.state``: what a ticket's tasks keep between messages.

It is a dict of JSON values. It is read before the task's body, and what changed is saved in the same atomic step as
the success, under its fence. A failed attempt saves nothing.

In Redis it is one hash for each ticket and subscription (`LaneKeys.state`): a field for each name, with its value as
JSON. Only fields that changed are written. So other programs can read a state, and may write fields that no task
writes.

A change is found when the body has ended: a text, a whole number, a bool or None is compared with the one that was
read, and any other value is encoded once more and compared with the text that was read. So changes deep inside a value
are found as well, and reading or assigning a value costs no more than in any dict.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from itertools import chain
from typing import Any, NoReturn

import orjson

from bridge.routing.effects import Effect
from bridge.routing.errors import PayloadError
from bridge.routing.exact_json import TOO_DEEP, exact
from bridge.routing.messages import MAX_DEPTH, is_deep
from bridge.routing.text import printable

#: Longest time to live, in seconds: a hundred years.
LONGEST_TTL_S = 100 * 365 * 86_400
#: Most fields of one HSET or HDEL: the number of arguments of one call from Lua is limited.
FIELDS_OF_CALL = 1000
#: A number of so many digits may have more than 64 bits.
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_PLAIN = (str, int, float, bool, type(None))
#: Types whose values have the same JSON if and only if they are equal.
_COMPARED = frozenset({str, int, bool, type(None)})
#: Texts that are shorter than this have no such number.
_SHORT = 19
_NOTHING = object()
_ENCODING = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS

#: The error of a task that has no state.
NO_STATE = "this task has no state: declare it with @app.task(bind=True, bridge_state=True)"


class StateDict(dict[str, Any]):
    """The state of one ticket: a dict of JSON values with text keys. Tuples become lists, as in JSON."""

    __slots__ = ("_fields", "_read", "_stored", "_ttl_ms")

    def __init__(self, stored: Mapping[bytes, bytes] | None = None) -> None:
        """``stored``: the fields as they are in Redis. Raises `PayloadError` for one that is not JSON."""
        self._stored: dict[bytes, bytes] = dict(stored or {})
        self._ttl_ms: int | None = None
        #: The names that were read, as text -> as bytes.
        self._fields: dict[str, bytes] = {}
        super().__init__()
        for name, text in self._stored.items():
            try:
                shown = name.decode()
                self._fields[shown] = name
                self[shown] = orjson.loads(text) if len(text) < _SHORT else _value(text)
            except ValueError as exc:
                # A `UnicodeDecodeError` is one as well.
                raise PayloadError(
                    f"the field {printable(name.decode(errors='backslashreplace'))} of the state is not JSON: {exc}"
                ) from None

        #: The values as they were read. The body may have changed those that can change.
        self._read = dict(self)

    def ttl(self, seconds: float | timedelta | None) -> None:
        """The state is deleted when it was not saved for ``seconds``. None: it is kept until somebody deletes it.

        It takes effect with the success of this message. Raises `PayloadError` for what is no time.
        """
        if seconds is None:
            self._ttl_ms = 0
            return
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_TTL_S:
            raise PayloadError(
                f"state.ttl takes seconds or a timedelta, more than 0 and at most 100 years, not {seconds!r}"
            )
        self._ttl_ms = max(1, round(seconds * 1000))

    def end(self) -> None:
        """From now on every change is refused."""
        # Not a flag: writing to an open state costs no more than writing to a dict.
        self.__class__ = EndedState

    def changes(self, key: str, *, most_bytes: int, default_ttl_s: float | None = None) -> StateChanges:
        """What to write to the hash ``key``. ``default_ttl_s``: its time to live, if `ttl` was not called.

        Raises `PayloadError` for a key that is not text, a value that is not JSON, and a state above ``most_bytes``:
        the sum of its names and values.
        """
        stored: dict[bytes, bytes] = {}
        changed: list[bytes] = []
        size = 0
        fields, read = self._fields, self._read
        for name, value in self.items():
            field = fields.get(name) or _name(name)
            kind = type(value)
            if kind in _COMPARED:
                old = read.get(name, _NOTHING)
                if old == value and type(old) is kind:
                    # Another program may write the same value in another form. It stays as it is.
                    text = self._stored[field]
                else:
                    try:
                        text = orjson.dumps(value)
                    except TypeError:
                        text = _text(name, value)
                    changed += (field, text)
                stored[field] = text
                size += len(field) + len(text)
                continue
            text = _text(name, value)
            size += len(field) + len(text)
            if b"null" in text:
                # The encoder makes this of NaN and infinity, too. It must not look like a null that was read.
                _check(name, value, text)
            known = self._stored.get(field)
            if known is not None and (known == text or _text(name, _value(known)) == text):
                stored[field] = known
                continue
            _check(name, value, text)
            stored[field] = text
            changed += (field, text)
        if size > most_bytes and size > sum(map(len, chain(*self._stored.items()))):
            # Another program, or a larger limit before, may have made it too large. It may stay so, or shrink.
            raise PayloadError(f"the state would have {size} bytes; bridge_max_state is {most_bytes}")
        effects: list[Effect] = []
        if changed:
            effects += [_call("HSET", key, changed[at : at + 2 * FIELDS_OF_CALL]) for at in _starts(changed, 2)]
        if not self._stored.keys() <= stored.keys():
            removed = [field for field in self._stored if field not in stored]
            effects += [_call("HDEL", key, removed[at : at + FIELDS_OF_CALL]) for at in _starts(removed, 1)]
        ttl_ms = self._ttl_ms
        if ttl_ms is None and default_ttl_s is not None and stored:
            ttl_ms = max(1, round(default_ttl_s * 1000))
        if ttl_ms is not None:
            # The time of the stored state may end while the body runs. Then the fields that did not change are gone.
            written = set(changed[::2])
            same = [part for field, text in stored.items() if field not in written for part in (field, text)]
            for at in _starts(same, 2):
                effects.append(_call("HSET", key, same[at : at + 2 * FIELDS_OF_CALL], check="gone"))
            effects.append(_call("PEXPIRE", key, [b"%d" % ttl_ms]) if ttl_ms else _call("PERSIST", key, []))
        return StateChanges(stored, tuple(effects))


class EndedState(StateDict):
    """The state after the task's body: it can be read. What would change it raises `PayloadError`, since it would be
    lost, also where the task has kept the state.
    """

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise PayloadError("the state cannot be changed any more: the task's body has ended")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = ttl = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy is nobody's state.
        return dict, (dict(self),)


class StateChanges:
    """The state as it will be stored, and the commands that make it so."""

    __slots__ = ("effects", "stored")

    def __init__(self, stored: dict[bytes, bytes], effects: tuple[Effect, ...]) -> None:
        self.stored = stored
        self.effects = effects


def stored_form(values: Mapping[str, Any]) -> dict[bytes, bytes]:
    """The fields of a state that has these values. Raises `PayloadError`."""
    state = StateDict()
    state.update(values)
    return state.changes("", most_bytes=1 << 62).stored


def _starts(arguments: list[bytes], width: int) -> range:
    return range(0, len(arguments), width * FIELDS_OF_CALL)


def _call(command: str, key: str, arguments: list[bytes], *, check: str = "") -> Effect:
    return Effect("hash", check, (command, key, *arguments))


def _name(name: Any) -> bytes:
    if type(name) is not str:
        raise PayloadError(f"a name in a state is a text, not {name!r:.100}")
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise PayloadError(f"the name {name!r:.100} in a state is not UTF-8") from None


def _value(text: bytes) -> Any:
    """The value of a field. Raises ValueError."""
    # The fast parser reads a whole number of more than 64 bits as a float.
    if _LONG_NUMBER.search(text):
        return exact(text)
    found = orjson.loads(text)
    if is_deep(text, found):
        raise ValueError(TOO_DEEP)
    return found


def _text(name: str, value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=_ENCODING)
    except TypeError as exc:
        if "64-bit" not in str(exc):
            raise PayloadError(f"state[{name!r:.100}] is not JSON: {exc}") from None
    # It may have more than large numbers that the fast encoder refuses, and that this one would change.
    _check(name, value)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError) as exc:
        raise PayloadError(f"state[{name!r:.100}] is not JSON: {exc}") from None


def _check(name: str, value: Any, text: bytes = b"") -> None:
    """Refuses what an encoder would change without a word: NaN and infinity, enums, UUIDs, keys that are no texts; and
    what is too deep.
    """
    level, depth = [value], 0
    if is_deep(text):
        raise PayloadError(f"state[{name!r:.100}] is nested too deep")
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise PayloadError(f"state[{name!r:.100}] is nested too deep")
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                if any(type(key) is not str for key in one):
                    raise PayloadError(f"state[{name!r:.100}] is not JSON: it has a key that is no text")
                inner += one.values()
            elif isinstance(one, list | tuple):
                inner += one
            elif type(one) not in _PLAIN:
                raise PayloadError(f"state[{name!r:.100}] is not JSON: it has a {type(one).__name__}")
            elif isinstance(one, float) and (one != one or one in (float("inf"), float("-inf"))):
                raise PayloadError(f"state[{name!r:.100}] is not JSON: it has {one}")
        level = inner
