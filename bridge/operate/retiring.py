"""Retires a stream: deletes it with all keys of its lanes, once nothing of it is undone and nobody uses it.

The lanes are those of all its consumer groups, of all apps, also when the stream was deleted by hand. A note replaces
the stream's layout (`bridge.routing.layouts.Retired`). Each push compares the layout, so producers are refused from
then on. The order of the steps:

1. All streams (one for each partition) are checked.
2. The note is written. No producer adds a message after that.
3. All streams are checked again. If one is refused now, the note is taken back.
4. Each stream is deleted in one step, which checks it once more: another program may XADD.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError

from bridge.inspect.advice import NOT_OF_AN_APP
from bridge.operate.deleting import LanesOfStream, StillUsed, lanes_on, literally
from bridge.routing.errors import InputError
from bridge.routing.groups import name_in_group, raw_name, shown_name
from bridge.routing.keys import layout_copy_key, layout_key, retired_key, schedule_key
from bridge.routing.layouts import Retired, layout_of, retired_in
from bridge.routing.numbers import count
from bridge.routing.partitions import Layout
from bridge.routing.text import printable
from bridge.routing.versions import leave_chain, newer_versions, older_versions

if TYPE_CHECKING:
    from redis import Redis

#: How often a deletion is tried while groups and consumers of the stream change.
TRIES = 5
#: What follows the hash tag in the key of a ticket's state (`LaneKeys.state`). States outlive the versions of a stream.
_STATE = re.compile(":[^:]*:state:")


@dataclass(frozen=True)
class Contents:
    """What a stream has."""

    #: The stream itself, or its partitions.
    streams: tuple[str, ...]
    #: Names of the consumer groups.
    groups: tuple[str, ...]
    #: Entries that are in the stream, and dead letters of all groups.
    entries: int
    letters: int

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "streams": self.streams,
            "groups": [shown_name(name) for name in self.groups],
            "entries": self.entries,
            "dead": self.letters,
        }


class Retirement:
    """The retirement of ``stream`` by the app whose own stream is ``newest``. ``letters``: deletes dead letters, too.

    Raises `InputError`, one line, when there is no such stream, or nothing is left of it, and redis errors.
    """

    def __init__(self, redis: Redis, stream: str, newest: str, *, letters: bool) -> None:
        self._redis, self._stream, self._newest, self._letters = redis, stream, newest, letters
        stored: Any = redis.get(layout_key(stream))
        self._stored = b"" if stored is None else stored
        self._note = retired_in(self._stored)
        layout = layout_of(self._stored if self._note is None else self._note.was, stream)
        if layout.older is not None or layout.leaving is not None:
            raise InputError(
                f"{printable(stream)} is being repartitioned: finish that first with "
                f"`bridge stream repartition {layout.partitions}`; nothing was changed"
            )
        self._parts = layout.streams(stream)
        #: Stream or partition -> its keys. The keys of the whole stream are under the stream's own name.
        self._found = _keys_of(redis, stream, layout)
        there = redis.exists(*self._parts)
        if self._note is not None:
            self._refuse_again(self._note, there)
        chained = newer_versions(redis, stream) or older_versions(redis, stream)
        if not there and not chained and not any(self._found.values()) and not stored:
            raise InputError(f"there is no stream {printable(stream)}")

    def _refuse_again(self, note: Retired, there: int) -> None:
        """The stream was retired before. Only a retirement that was interrupted is finished."""
        what = note.sentence(printable(self._stream))
        undo = self._undo
        if not there and not any(self._found.values()):
            raise InputError(f"{what}, and nothing is left of it; {undo}")
        if there and not any(lanes_on(self._redis, one) for one in self._parts):
            entries = sum(self._redis.xlen(one) for one in self._parts)
            raise InputError(
                f"{what}, and {count(entries, 'message')} came since then, by XADD; nobody handles them: delete them "
                f"with DEL, or {undo}"
            )

    @property
    def _undo(self) -> str:
        return f"{NOT_OF_AN_APP.of_app('stream', 'retire', '--undo', about=self._stream)} lets its name be used again"

    def contents(self) -> Contents:
        """What the stream has."""
        lanes = [keys for part in self._parts for keys in lanes_on(self._redis, part, self._found[part])]
        letters = sum(self._redis.xlen(keys.dead) for keys in lanes)
        groups = sorted({keys.group for keys in lanes})
        return Contents(self._parts, tuple(groups), sum(self._redis.xlen(one) for one in self._parts), letters)

    def check(self) -> int:
        """Returns how many keys would be deleted. Raises `InputError` when something is undone or in use."""
        deleted = sum(self._retire(part) for part in self._parts)
        return deleted + len(self._found.get("", ()))

    def carry_out(self) -> int:
        """Deletes the stream and all keys of its lanes. Returns how many keys. Raises as `check` does."""
        self.check()
        self._write_note()
        try:
            self.check()
        except BaseException:
            if self._note is None:
                self._take_note_back()
            raise
        deleted = 0
        for part in self._parts:
            deleted += self._retire(part, deleted=deleted)
        rest = [raw_name(key) for key in self._found.get("", ())]
        deleted += self._redis.exists(*rest) if rest else 0
        for name in {self._stream, *self._parts}:
            leave_chain(self._redis, name)
        self._redis.delete(schedule_key(self._stream))
        if rest:
            self._redis.unlink(*rest)
        # A user without the permission for SCAN did not find it.
        return deleted + self._redis.delete(layout_copy_key(self._stream))

    def _write_note(self) -> None:
        note = self._note or Retired(int(time.time() * 1000), self._newest, self._stored.decode())
        if self._note is None:
            self._redis.set(layout_key(self._stream), note.text)
        # Also when an earlier run was ended between the two.
        names: Any = self._redis.hgetall(retired_key(self._stream))
        self._redis.hset(retired_key(note.newest), mapping={**names, self._stream: note.since_ms})

    def _take_note_back(self) -> None:
        self._redis.hdel(retired_key(self._newest), self._stream)
        if self._stored:
            self._redis.set(layout_key(self._stream), self._stored)
        else:
            self._redis.delete(layout_key(self._stream))

    def _retire(self, part: str, *, deleted: int | None = None) -> int:
        """``deleted``: how many keys of other partitions are deleted already; None: this only looks."""
        lanes = LanesOfStream(self._redis, part, self._found[part], letters=self._letters)
        try:
            return lanes.delete(look=deleted is None, keep=(layout_key(self._stream),))
        except StillUsed as exc:
            so_far = "nothing was changed"
            if self._note is not None and exc.unread:
                # It came by XADD before that run was cut off, and nobody can handle it.
                so_far += f"; the stream was retired by a run before this one, and {self._undo}"
            if deleted is not None:
                so_far = f"the stream is retired, and {count(deleted, 'key')} deleted: run this again for the rest"
            raise InputError(f"{part} cannot be retired: {exc.why}; {so_far}") from None


def undo_retirement(redis: Redis, stream: str, newest: str, *, look: bool = False) -> None:
    """Lets the name of a retired stream be used again. Raises `InputError` when the stream was not retired.

    With ``look`` nothing is written.
    """
    note = retired_in(redis.get(layout_key(stream)))
    if note is None:
        raise InputError(f"the stream {printable(stream)} was not retired")
    if look:
        return
    was = layout_of(note.was, stream)
    if was.generation > 0 or (was.partitions > 1 and redis.exists(*was.streams(stream))):
        # Newer versions have partitions of the same generation. Or partitions are still there, with messages.
        redis.mset({layout_key(stream): note.was, layout_copy_key(stream): note.was})
    else:
        redis.delete(layout_key(stream))
    for name in {note.newest, newest}:
        redis.hdel(retired_key(name), stream)


def _keys_of(redis: Redis, stream: str, layout: Layout) -> dict[str, list[str]]:
    """Stream of a partition -> the keys of its lanes; "": other keys that begin with the name of a partition or of the
    whole stream. The key of the layout is left out.
    """
    found: dict[str, list[str]] = {part: [] for part in layout.streams(stream)}
    tags = {f"{{{part}}}": part for part in (stream, *found)}
    try:
        for raw in redis.scan_iter(match=f"{{{literally(stream)}*", count=1000):
            key = name_in_group(raw)
            tag, brace, rest = key.partition("}")
            part = tags.get(tag + brace)
            if part is None or key == layout_key(stream) or _STATE.match(rest):
                continue
            if rest.startswith(":") and part in found:
                found[part].append(key)
            elif rest[:1] in (":", "/"):
                found.setdefault("", []).append(key)
    except NoPermissionError:
        # This user may not SCAN. The groups of an existing stream are known without it.
        pass
    return found
