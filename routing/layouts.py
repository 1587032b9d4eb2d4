"""The stored layout of a stream: how many partitions it has. The first leader or producer of a split stream writes it.

The stored layout rules over what an app sets. Every push compares it in the step that adds the messages. A stream
without a stored layout has one partition. Spark's executors use this module: they need not have orjson.
"""

from __future__ import annotations

import json
import time
from typing import Any

from redis import Redis

from bridge.routing.errors import ConfigurationError
from bridge.routing.keys import layout_key
from bridge.routing.partitions import MOST, Layout
from bridge.routing.scripts import Argument, Script

#: Reads the layout, and stores one where there is none.
CLAIM_LAYOUT = Script("claim_layout")


def layout_of(stored: bytes | str, stream: str) -> Layout:
    """The layout ``stored`` for ``stream``; empty: none is. Raises `ConfigurationError` when it cannot be read."""
    text = stored.decode(errors="backslashreplace") if isinstance(stored, bytes) else stored
    if not text:
        return Layout()
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
