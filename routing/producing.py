"""The Lua scripts of a producer: they append messages of one task, in parts, and each message once if asked to.

The messages of a part are encoded once, as RESP, when they are checked. So the functions here make the opening of
a call. A producer sends an opening and then the encoded messages. What is encoded does not depend on the layout of the
stream: the opening says which partition each message goes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from redis import Redis

from bridge.routing.errors import KeyUsed, OptionError
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


def push_many(places: Places, task: str, count: int, fields: tuple[str, ...] = ()) -> bytes:
    """The beginning of the call that appends messages, all or none, before its last ``count`` arguments.

    ``fields``: names of further fields, such as ``due``. The arguments: of each message in turn the ticket, the payload
    and the values of these fields, in the form of the script's head. The reply is for `stored_layout_in` and `ids_in`.
    """
    keys: list[Argument] = [layout_key(places.base), *places.streams]
    return _PUSH_MANY.opening(keys, [*places.arguments(), task, " ".join(fields)], count)


_push_many_kept = lru_cache(maxsize=64)(push_many)


def many_opening(places: Places, task: str, count: int, fields: tuple[str, ...] = ()) -> bytes:
    """`push_many`, kept for the next push where all messages go to one stream."""
    return (push_many if places.numbers else _push_many_kept)(places, task, count, fields)


@lru_cache(maxsize=1024)
def one_opening(stream: str, layout: Layout, partition: int, task: str) -> bytes:
    """`push_many` for one message without further fields, to a partition."""
    return push_many(Places(stream, layout, (layout.stream(stream, partition),), (layout.suffix(partition),)), task, 2)


def push_once(
    places: Places,
    task: str,
    count: int,
    key: str,
    first: int,
    digest: str,
    fields: Sequence[str] = (),
    earliest_ms: int = 0,
) -> bytes:
    """The same for messages that are not appended again if they were appended under ``key`` before.

    ``first``: the number of the first of them among all messages of this key; ``digest``: hexadecimal, of the messages.
    ``earliest_ms``: the earliest of all times of the push that must not be past when it begins, in ms since 1970; 0:
    there is none.
    """
    keys: list[Argument] = [layout_key(places.base), push_once_key(places.base, key), *places.streams]
    args = [*places.arguments(), first, digest, IDEMPOTENCY_S, earliest_ms or "", task, " ".join(fields)]
    return _PUSH_ONCE.opening(keys, args, count)


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
    """The ids in a script's reply. Raises `KeyUsed`, and `OptionError` for a time that is past."""
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
        raise KeyUsed(f"other messages were pushed under the idempotency key {key!r}: use a key for each push")
    return text_of(reply[1]).split(" ")
