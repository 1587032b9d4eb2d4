"""The stored layout of a stream: how many partitions it has. The first leader or producer of a split stream writes it.

The stored layout rules over what an app sets. Every push compares it in the step that adds the messages. A stream
without a stored layout has one partition. Of a retired stream a note takes the place of the layout, so that every push
is refused. Spark's executors use this module: they need not have orjson.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from redis import Redis

from bridge.routing.errors import ConfigurationError, StreamRetired
from bridge.routing.keys import layout_key
from bridge.routing.partitions import MOST, Layout
from bridge.routing.scripts import Argument, Script

#: Reads the layout, and stores one where there is none.
CLAIM_LAYOUT = Script("claim_layout")


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
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).astimezone()
        return f"stream {stream} was retired on {since.isoformat(sep=' ', timespec='seconds')}"


def retired_in(stored: bytes | str | None) -> Retired | None:
    """The note in the place of a layout; None: the stream was not retired."""
    if not stored:
        return None
    text = stored.decode(errors="backslashreplace") if isinstance(stored, bytes) else stored
    try:
        found: Any = json.loads(text)
        return Retired(int(found["retired_ms"]), str(found["newest"]), str(found["was"]))
    except (json.JSONDecodeError, LookupError, TypeError, ValueError):
        return None


def retired_among(client: Redis, streams: Sequence[str]) -> dict[str, Retired]:
    """Those of ``streams`` that were retired. Raises redis errors."""
    if not streams:
        return {}
    with client.pipeline(transaction=False) as pipe:
        for name in streams:
            pipe.get(layout_key(name))
        stored = pipe.execute()
    notes = {name: retired_in(text) for name, text in zip(streams, stored, strict=True)}
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
        partitions, generation, since_ms = (found[name] for name in ("partitions", "generation", "since_ms"))
        known = all(type(number) is int for number in (partitions, generation, since_ms))
        known = known and 1 <= partitions <= MOST and 0 <= generation < 1 << 31
    except (json.JSONDecodeError, LookupError, TypeError):
        known = False
    if not known:
        raise ConfigurationError(
            f"the layout of stream {stream} cannot be read: {text!r:.80} in the key {layout_key(stream)}; a newer "
            "version may have written it"
        )
    return Layout(partitions, generation, since_ms, text)


def claim_layout(client: Redis, stream: str, partitions: int) -> Layout:
    """The stored layout of ``stream``. When there is none, and no stream either, it is stored with ``partitions``.

    ``partitions``: 1 to read only. Raises `ConfigurationError`.
    """
    return layout_of(CLAIM_LAYOUT.run(client, *claim_arguments(stream, partitions)), stream)


def find_layout(client: Redis, stream: str, partitions: int) -> Layout:
    """As `claim_layout`, and stores nothing."""
    stored: Any = client.get(layout_key(stream))
    if not stored and partitions > 1 and not client.exists(stream):
        return Layout(partitions)
    return layout_of(stored or b"", stream)


def check_layouts(client: Redis, stream: str, layout: Layout, older: str) -> None:
    """Raises `ConfigurationError` when ``older``, a version that ``stream`` follows, is split in another way."""
    theirs = claim_layout(client, older, 1)
    if (theirs.partitions, theirs.generation) == (layout.partitions, layout.generation):
        return
    if theirs.is_split or client.exists(older):
        raise ConfigurationError(
            f"stream {older} has {_count(theirs)}, and {stream}, which follows it, has {_count(layout)}: versions of a "
            f"stream need the same partitions; set bridge_partitions = {theirs.partitions} while it follows"
        )


def _count(layout: Layout) -> str:
    count = "1 partition" if layout.partitions == 1 else f"{layout.partitions} partitions"
    return count if not layout.generation else f"{count} of generation {layout.generation}"


def claim_arguments(stream: str, partitions: int) -> tuple[list[Argument], list[Argument]]:
    """Keys and arguments of `CLAIM_LAYOUT`."""
    if partitions == 1:
        return [layout_key(stream)], [""]
    made = {"partitions": partitions, "generation": 0, "since_ms": time.time_ns() // 1_000_000}
    return [layout_key(stream), stream], [json.dumps(made, separators=(",", ":"))]


def difference(stored: Layout, wanted: int, stream: str) -> str | None:
    """How the stored layout differs from the setting ``wanted``, and what to do; None: it does not."""
    if stored.partitions == wanted:
        return None
    has = "1 partition" if stored.partitions == 1 else f"{stored.partitions} partitions"
    return (
        f"stream {stream} has {has}, and bridge_partitions is {wanted}: the stream is used as it is; set "
        f"bridge_partitions = {stored.partitions}"
    )
