"""The stored layout of a stream: how many partitions it has. The first leader or producer of a split stream writes it.

The stored layout rules over what an app sets. Every push compares it in the step that adds the messages. A stream
without a stored layout has one partition, unless it has partitions all the same: then the layout was *lost*, by
FLUSHALL or DEL. A process that knows a lost layout stores it again (`restore_layout`): masters look for it, producers
notice it when they push. A layout after the first one (`bridge stream repartition`) has a copy under another key. When
a stream is retired, a note takes the place of its layout, so that every push is refused. Spark's executors use this
module: they need not have orjson.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError

from bridge.routing.errors import ConfigurationError, LayoutLost, StreamRetired
from bridge.routing.keys import layout_copy_key, layout_key
from bridge.routing.numbers import moment
from bridge.routing.partitions import MOST, Layout, first_partition
from bridge.routing.scripts import Argument, Script

#: Reads the layout, and stores one where there is none.
CLAIM_LAYOUT = Script("claim_layout")
#: What an error says when a permission is missing. Within a script it has no code of its own.
_FORBIDDEN = re.compile("[Nn]o permission|NOPERM|can't run this command|can't access")


class InLayout(NamedTuple):
    """Which layout a lane's stream belongs to. ``key``: where that of the whole stream is stored. ``generation``: the
    one in which the lane's stream is a partition.
    """

    key: str
    generation: int


def in_layout(stream: str, whole: str | None = None) -> InLayout:
    """``whole``: the stream of which ``stream`` is a partition, of any generation; None: ``stream`` is whole."""
    parts = [] if whole is None else stream.removeprefix(whole).split(":")
    generation = int(parts[1][1:]) if parts[1:] and parts[1].startswith("g") else 0
    return InLayout(layout_key(stream if whole is None else whole), generation)


class Retired(NamedTuple):
    """The note that a stream was retired. ``newest``: the stream of the app that retired it. ``was``: its layout."""

    since_ms: int
    newest: str
    was: str

    @property
    def text(self) -> str:
        """As it is stored, in the place of the layout."""
        note = {"retired_ms": self.since_ms, "newest": self.newest, "was": self.was}
        return json.dumps(note, separators=(",", ":"))

    def sentence(self, stream: str) -> str:
        """That ``stream`` was retired, and when."""
        return f"stream {stream} was retired on {moment(self.since_ms)}"


def retired_in(stored: bytes | str | None) -> Retired | None:
    """The note in the place of a layout; None: the stream was not retired."""
    if not stored:
        return None
    text = stored.decode(errors="backslashreplace") if isinstance(stored, bytes) else stored
    try:
        found: Any = json.loads(text)
        return Retired(int(found["retired_ms"]), str(found["newest"]), str(found["was"]))
    except (json.JSONDecodeError, LookupError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def retired_among(client: Redis, streams: Sequence[str]) -> dict[str, Retired]:
    """Those of ``streams`` that were retired. Raises redis errors."""
    if not streams:
        return {}
    with client.pipeline(transaction=False) as pipe:
        for name in streams:
            pipe.get(layout_key(name))
        stored: list[Any] = pipe.execute(raise_on_error=False)
    for reply in stored:
        if isinstance(reply, Exception) and "WRONGTYPE" not in str(reply):
            raise reply
    # A key of another type is no note. The code that reads the layout reports it.
    notes = {
        name: retired_in(None if isinstance(text, Exception) else text)
        for name, text in zip(streams, stored, strict=True)
    }
    return {name: note for name, note in notes.items() if note is not None}


def layout_of(stored: bytes | str, stream: str) -> Layout:
    """The layout ``stored`` for ``stream``; empty: none is.

    Raises `StreamRetired`, and `ConfigurationError` when it cannot be read.
    """
    text = stored.decode(errors="backslashreplace") if isinstance(stored, bytes) else stored
    if not text:
        return Layout()
    if (note := retired_in(text)) is not None:
        raise StreamRetired(f"{note.sentence(stream)}: nobody handles its messages; push to {note.newest}")
    try:
        found: Any = json.loads(text)
        older, leaving = (_read(found[name]) if name in found else None for name in ("older", "leaving"))
        return replace(_read(found), text=text, older=older, leaving=leaving)
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ConfigurationError(_unreadable(stream, text)) from None


def _read(found: Any) -> Layout:
    partitions, generation, since_ms = (found[name] for name in ("partitions", "generation", "since_ms"))
    known = all(type(number) is int for number in (partitions, generation, since_ms))
    if not (known and 1 <= partitions <= MOST and 0 <= generation < 1 << 31):
        raise ValueError(found)
    return Layout(partitions, generation, since_ms)


def text_of_layout(layout: Layout) -> str:
    """The text that is stored for ``layout``."""
    return json.dumps(_fields(layout), separators=(",", ":"))


def _fields(layout: Layout) -> dict[str, Any]:
    own: dict[str, Any] = {name: getattr(layout, name) for name in ("partitions", "generation", "since_ms")}
    before = {"older": layout.older, "leaving": layout.leaving}
    return own | {name: _fields(one) for name, one in before.items() if one is not None}


def _unreadable(stream: str, text: str) -> str:
    key = layout_key(stream)
    if _FORBIDDEN.search(text):
        return _forbidden(stream)
    what = "no string" if text.startswith("WRONGTYPE") else f"{text!r:.80}"
    return (
        f"the layout of stream {stream} cannot be read: {what} in the key {key}; if a newer version wrote it, upgrade "
        "this one, else delete the key: a master that runs, or starts with bridge_partitions, stores it again"
    )


def _forbidden(stream: str) -> str:
    return (
        f"this Redis user may not read or store the layout of stream {stream} in the key {layout_key(stream)}: "
        "`bridge acl` prints the permissions that it needs"
    )


def lost_layout(stream: str) -> str:
    """Says that the layout of ``stream`` was lost, and what to do."""
    return (
        f"stream {stream} is split, since {first_partition(stream)} or {layout_copy_key(stream)} exists, and its "
        f"layout is lost: the key {layout_key(stream)} is not there; a master that runs stores it again: try again, or "
        "start one with bridge_partitions set as it was"
    )


def claim_layout(
    client: Redis, stream: str, partitions: int, versions: Sequence[str] = (), lost: Layout | None = None
) -> Layout:
    """The stored layout of ``stream``. When there is none, and no stream either, it is stored with ``partitions``.

    ``partitions``: 1, without ``versions``, to read only. ``versions``: other versions of the stream. It gets their
    generation, and nothing is stored when one of them is split in another way. ``lost``: a layout that was stored; it
    is stored again in any case. Raises `ConfigurationError`.
    """
    arguments = claim_arguments(stream, partitions, versions) if lost is None else restore_arguments(stream, lost)
    try:
        reply = CLAIM_LAYOUT.run(client, *arguments)
    except ResponseError as exc:
        if not _FORBIDDEN.search(str(exc)):
            raise
        raise ConfigurationError(_forbidden(stream)) from None
    return claimed_layout(reply, stream, partitions)


def claimed_layout(reply: Any, stream: str, partitions: int) -> Layout:
    """The layout in the reply to a claim. Raises `ConfigurationError`."""
    if isinstance(reply, bytes | str):
        return layout_of(reply, stream)
    if len(reply) == 1:
        raise LayoutLost(lost_layout(stream))
    older, text = (part.decode() if isinstance(part, bytes) else part for part in reply[1:])
    raise ConfigurationError(_different(older, layout_of(text, older), stream, Layout(partitions)))


def restore_layout(client: Redis, stream: str, layout: Layout) -> Layout:
    """Stores ``layout`` again, which was stored and is lost. Returns what is stored. Raises `ConfigurationError`."""
    return claim_layout(client, stream, layout.partitions, lost=layout)


def stored_text(client: Redis, stream: str) -> bytes | str:
    """What is stored as the layout of ``stream``; empty: nothing. For `layout_of`, which refuses what is no layout."""
    try:
        found: Any = client.get(layout_key(stream))
    except NoPermissionError:
        raise ConfigurationError(_forbidden(stream)) from None
    except ResponseError as exc:
        if "WRONGTYPE" not in str(exc):
            raise
        return str(exc)
    return found or ""


def copied_text(client: Redis, stream: str) -> str:
    """The copy of the layout; "": there is none, or this user may not read it."""
    try:
        found: Any = client.get(layout_copy_key(stream))
    except ResponseError as exc:
        if "WRONGTYPE" not in str(exc) and not isinstance(exc, NoPermissionError):
            raise
        return ""
    text = found.decode(errors="backslashreplace") if isinstance(found, bytes) else found or ""
    return text if text.startswith('{"partitions":') else ""


def find_layout(client: Redis, stream: str, partitions: int, versions: Sequence[str] = ()) -> Layout:
    """As `claim_layout`, and stores nothing."""
    if stored := stored_text(client, stream):
        return layout_of(stored, stream)
    if copied := copied_text(client, stream):
        return layout_of(copied, stream)
    lost = _exists(client, first_partition(stream)) and not _is_read(client, stream)
    # A layout is stored before its partitions: one that was stored since the first look is there now.
    if lost and (stored := stored_text(client, stream)):
        return layout_of(stored, stream)
    generation = _generation_of(client, versions, partitions)
    if (partitions > 1 and lost) or ((partitions > 1 or generation) and not client.exists(stream)):
        return Layout(partitions, generation)
    if lost:
        raise LayoutLost(lost_layout(stream))
    return Layout()


def _generation_of(client: Redis, versions: Sequence[str], partitions: int) -> int:
    """The generation of those of ``versions`` that have so many partitions: that of a new version's first layout."""
    for name in versions:
        # One that is retired, or that cannot be read, is named elsewhere.
        with suppress(ConfigurationError, NoPermissionError):
            theirs = layout_of(stored_text(client, name) or copied_text(client, name), name)
            if theirs.text and theirs.partitions == partitions:
                return theirs.generation
    return 0


def _is_read(client: Redis, stream: str) -> bool:
    """Whether ``stream`` has a group, as far as this user may know. A stream without one, beside partitions, has
    messages of a producer that did not know of them.
    """
    try:
        return bool(client.exists(stream) and client.xinfo_groups(stream))
    except ResponseError:
        return True


def _exists(client: Redis, stream: str) -> bool:
    try:
        return bool(client.exists(stream))
    except NoPermissionError:
        return False


def check_layouts(client: Redis, stream: str, layout: Layout, older: str) -> Layout:
    """The layout of ``older``, a version that ``stream`` follows. Raises `ConfigurationError` when it is split in
    another way.
    """
    theirs = find_layout(client, older, layout.partitions)
    if not theirs.text and not _exists(client, older) and not _exists(client, first_partition(older)):
        # The older stream is split as this one: a master stores that.
        return Layout(layout.partitions, layout.generation)
    for name, one in ((stream, layout), (older, theirs)):
        if one.older is not None:
            raise ConfigurationError(
                f"stream {name} is being repartitioned: finish that with `bridge stream repartition {one.partitions}` "
                "before one version follows another"
            )
    if (theirs.partitions, theirs.generation) == (layout.partitions, layout.generation):
        return theirs
    if theirs.is_split or _exists(client, older):
        raise ConfigurationError(_different(older, theirs, stream, layout))
    return theirs


def _different(older: str, theirs: Layout, stream: str, layout: Layout) -> str:
    what = f"stream {older} has {_count(theirs)}, and {stream}, which follows it, has {_count(layout)}"
    # What is stored for a stream goes before the setting, and no setting changes a generation.
    how = (
        f"name a new stream in bridge_stream, or `bridge stream retire {stream}` first"
        if layout.text or theirs.partitions == layout.partitions
        else f"set bridge_partitions = {theirs.partitions} while it follows"
    )
    return f"{what}: versions of a stream need the same partitions; {how}"


def _count(layout: Layout) -> str:
    count = "1 partition" if layout.partitions == 1 else f"{layout.partitions} partitions"
    return count if not layout.generation else f"{count} of generation {layout.generation}"


def claim_arguments(
    stream: str, partitions: int, versions: Sequence[str] = ()
) -> tuple[list[Argument], list[Argument]]:
    """Keys and arguments of `CLAIM_LAYOUT`."""
    signs = first_partition(stream), "", layout_copy_key(stream)
    if partitions == 1 and not versions:
        return [layout_key(stream)], ["", stream, *signs]
    text = text_of_layout(Layout(partitions, 0, time.time_ns() // 1_000_000))
    last, after = (Layout(MOST).stream(stream, number) for number in (partitions - 1, partitions))
    others = [word for one in versions for word in (layout_key(one), one, layout_copy_key(one))]
    # A user of a stream with one partition may have no permission for the stream itself.
    keys: list[Argument] = [layout_key(stream), stream] if partitions > 1 else [layout_key(stream)]
    return keys, [text, stream, *signs, last, after, *others]


def restore_arguments(stream: str, layout: Layout) -> tuple[list[Argument], list[Argument]]:
    """The same, for a layout that was stored and is lost."""
    return [layout_key(stream), stream], [layout.text, stream, first_partition(stream), "1", layout_copy_key(stream)]


def difference(stored: Layout, wanted: int, stream: str, command: str = "`bridge stream repartition`") -> str | None:
    """How the stored layout differs from the setting ``wanted``, and what to do; None: it does not. ``command``: what
    changes the layout.
    """
    if stored.partitions == wanted:
        return None
    has = "1 partition" if stored.partitions == 1 else f"{stored.partitions} partitions"
    return (
        f"stream {stream} has {has}, and bridge_partitions is {wanted}: the stream is used as it is; set "
        f"bridge_partitions = {stored.partitions}, or change the stream with {command}"
    )
