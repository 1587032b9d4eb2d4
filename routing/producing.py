"""The Lua scripts of a producer: they append messages of one task, in parts, and each message once if asked to.

The messages of a part are encoded once, as RESP, when they are checked. So this module also has the openings of the
calls. A producer sends an opening and then the encoded messages. What is encoded does not depend on the layout of the
stream: the opening says which partition each message goes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from redis import Redis

from bridge.routing.errors import OptionError, PayloadError
from bridge.routing.keys import layout_copy_key, layout_key
from bridge.routing.keys import push_once as push_once_key
from bridge.routing.layouts import CLAIM_LAYOUT, claim_arguments, restore_arguments
from bridge.routing.partitions import Layout, first_partition
from bridge.routing.return_codes import ReturnCode, code_of, text_of
from bridge.routing.scripts import Argument, Script

_PUSH_MANY = Script("push_many")
_PUSH_ONCE = Script("push_once")
_PUSH_ROWS = Script("push_rows")

#: Scripts that must be loaded on a server before calls are sent there.
LOADING: tuple[tuple[str, str, str], ...] = (_PUSH_MANY.loading, _PUSH_ONCE.loading, CLAIM_LAYOUT.loading)
#: How long the ids of an idempotency key are kept, in seconds.
IDEMPOTENCY_S = 86_400


class Places(NamedTuple):
    """Where the messages of one call go: the layout, the streams, and for each message the number of its stream."""

    base: str
    layout: Layout
    streams: tuple[str, ...]
    #: What follows the ids of each stream.
    suffixes: tuple[str, ...]
    #: Two bytes for each message; empty: all go to the first stream.
    numbers: bytes = b""

    def arguments(self) -> list[Argument]:
        return [self.layout.text, " ".join(self.suffixes), self.numbers, *self.signs]

    @property
    def signs(self) -> tuple[str, str]:
        """Two keys that exist only if a layout was stored and lost: the first partition, the copy. Else ""."""
        return ("", "") if self.layout.text else (first_partition(self.base), layout_copy_key(self.base))


def places_of(stream: str, layout: Layout, hashes: Sequence[int]) -> Places:
    """Where messages go. ``hashes``: the CRC-32 of each message's ticket."""
    if layout.partitions == 1:
        return _only_place(stream, layout)
    count = layout.partitions
    partitions = [each % count for each in hashes]
    used = sorted(set(partitions))
    numbers = b""
    if len(used) > 1:
        number_of = {partition: number.to_bytes(2) for number, partition in enumerate(used)}
        numbers = b"".join([number_of[partition] for partition in partitions])
    streams = tuple(layout.stream(stream, partition) for partition in used)
    return Places(stream, layout, streams, tuple(layout.suffix(partition) for partition in used), numbers)


@lru_cache(maxsize=64)
def _only_place(stream: str, layout: Layout) -> Places:
    return Places(stream, layout, layout.streams(stream), (layout.suffix(0),))


def push_many(
    client: Redis, places: Places, task: str, arguments: Sequence[bytes], fields: Sequence[str] = ()
) -> list[str]:
    """Appends messages, all or none. Returns their ids.

    ``fields``: names of further fields, such as ``due``. ``arguments``: of each message in turn the ticket, the payload
    and the values of these fields, in the form of the script's head.
    """
    keys, args = _many(places, task, fields)
    return ids_in(_PUSH_MANY.run(client, keys, [*args, *arguments]), "")


def many_opening(places: Places, task: str, count: int, fields: tuple[str, ...] = ()) -> bytes:
    """The beginning of the same call, before ``count`` more arguments."""
    if places.numbers:
        return _PUSH_MANY.opening(*_many(places, task, fields), count)
    return _opening_for_one_stream(places, task, count, fields)


@lru_cache(maxsize=64)
def _opening_for_one_stream(places: Places, task: str, count: int, fields: tuple[str, ...]) -> bytes:
    return _PUSH_MANY.opening(*_many(places, task, fields), count)


@lru_cache(maxsize=1024)
def one_opening(stream: str, layout: Layout, partition: int, task: str) -> bytes:
    """The beginning of the call that adds one message without further fields to a partition."""
    places = Places(stream, layout, (layout.stream(stream, partition),), (layout.suffix(partition),))
    return _PUSH_MANY.opening(*_many(places, task, ()), 2)


def push_once(
    client: Redis,
    places: Places,
    task: str,
    arguments: Sequence[bytes],
    key: str,
    first: int,
    digest: str,
    fields: Sequence[str] = (),
    earliest_ms: int = 0,
) -> list[str]:
    """Appends messages, all or none, unless they were appended under ``key`` before. Returns their ids.

    ``first``: the number of the first of them among all messages of this key; ``digest``: hexadecimal, of the messages.
    ``arguments`` and ``fields``: as in `push_many`. ``earliest_ms``: the earliest of all times of the push that must
    not be past when it begins, in ms since 1970; 0: there is none. Raises `PayloadError` when other messages were
    pushed under the key, and `OptionError` for a time that is past.
    """
    keys, args = _once(places, task, key, first, digest, fields, earliest_ms)
    return ids_in(_PUSH_ONCE.run(client, keys, [*args, *arguments]), key)


def once_opening(
    places: Places,
    task: str,
    arguments: int,
    key: str,
    first: int,
    digest: str,
    fields: Sequence[str] = (),
    earliest_ms: int = 0,
) -> bytes:
    """The beginning of the same call, before ``arguments`` more arguments."""
    keys, args = _once(places, task, key, first, digest, fields, earliest_ms)
    return _PUSH_ONCE.opening(keys, args, arguments)


def push_rows(client: Redis, places: Places, rows: Sequence[Sequence[Argument]]) -> Sequence[Any]:
    """Appends ``rows``, the words of each: fields and values in turn. Returns OK with the stream id of each row, or the
    error with which it was refused; or LAYOUT with the text of the stored layout, when it is another one.
    """
    arguments: list[Argument] = [places.layout.text, places.numbers, *places.signs]
    for words in rows:
        arguments += (len(words), *words)
    reply = _PUSH_ROWS.run(client, [layout_key(places.base), *places.streams], arguments, loads=True)
    return [code_of(reply[0]), *reply[1:]]


def claim_call(stream: str, partitions: int, older: Sequence[str]) -> bytes:
    """The call of `bridge.routing.layouts.claim_layout`. Its reply is for `bridge.routing.layouts.claimed_layout`."""
    return CLAIM_LAYOUT.opening(*claim_arguments(stream, partitions, older), 0)


def restore_call(stream: str, layout: Layout) -> bytes:
    """The call of `bridge.routing.layouts.restore_layout`. Its reply is the text of the stored layout."""
    return CLAIM_LAYOUT.opening(*restore_arguments(stream, layout), 0)


def stored_layout_in(reply: Sequence[bytes]) -> bytes | None:
    """The text of the stored layout, when a call was refused since it is another one; None: it was not refused."""
    return reply[1] if reply[0] == b"LAYOUT" else None


def ids_in(reply: Sequence[bytes], key: str) -> list[str]:
    """The ids in a script's reply. Raises `PayloadError` and `OptionError` as `push_once` does."""
    code = code_of(reply[0])
    if code is ReturnCode.PAST:
        raise OptionError(
            "eta or expires is past by the server's clock, and no such push was made under this idempotency key (an "
            "expires before the delay is over counts as past)"
        )
    if code is ReturnCode.ERR:
        raise OptionError(
            "this Redis user may not run TIME, which a push with delay or eta needs: give it the rules of `bridge acl`"
        )
    if code is ReturnCode.CHANGED:
        raise PayloadError(f"other messages were pushed under the idempotency key {key!r}: use a key for each push")
    return text_of(reply[1]).split(" ")


def _many(places: Places, task: str, fields: Sequence[str]) -> tuple[list[Argument], list[Argument]]:
    return [layout_key(places.base), *places.streams], [*places.arguments(), task, " ".join(fields)]


def _once(
    places: Places, task: str, key: str, first: int, digest: str, fields: Sequence[str], earliest_ms: int
) -> tuple[list[Argument], list[Argument]]:
    keys: list[Argument] = [layout_key(places.base), push_once_key(places.base, key), *places.streams]
    return keys, [*places.arguments(), first, digest, IDEMPOTENCY_S, earliest_ms or "", task, " ".join(fields)]
