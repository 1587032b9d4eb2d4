"""Entries of the outcome stream that this version does not understand: passed over, counted, said once for each kind.

One in the form of a known part of the lane, of a kind that is not known here, is of a newer version, most likely, and
stays in the stream: the next leader may understand it, and reads the stream from its start. So that nothing grows, only
the last `KEPT` of them stay, for `KEPT_S` at most, and none over `KEPT_BYTES`. Whatever else is no entry of ours leaves
the stream like one that was settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.routing.text import one_line

if TYPE_CHECKING:
    from bridge.routing.transitions import Batch

logger = get_logger(__name__)

#: How many entries stay at most, of how many bytes each, and for how many seconds.
KEPT = 100
KEPT_BYTES = 4096
KEPT_S = 86_400
#: Kinds of which it is remembered that they were said; and characters of one that are shown.
SAID = 1000
SHOWN_CHARS = 120

#: What was said already, by any leader of this process.
_said: set[str] = set()


class UnknownEntries:
    """Of one leader."""

    def __init__(self) -> None:
        #: Ids of entries that stay in the stream, oldest first.
        self._kept: list[str] = []

    def pass_over(self, id_: str, fields: Sequence[bytes], why: str, batch: Batch, *, newer: bool = False) -> None:
        """Notes an entry, or a part of one, that is not understood. ``newer``: a later version may."""
        batch.count("unknown")
        stays = newer and sum(map(len, fields)) <= KEPT_BYTES
        if stays and id_ not in self._kept:
            self._kept = [*self._kept, id_][-KEPT:]
        if why in _said:
            return
        if len(_said) < SAID:
            _said.add(why)
            left = "it stays there for a newer version" if stays else "it is dropped"
            shown = one_line(why, SHOWN_CHARS)
            logger.error("passed over entry %s of the outcome stream: %s; %s; said once of its kind", id_, shown, left)

    def keep_from(self, following: str, now_ms: int) -> str:
        """What of the outcome stream stays: all from ``following`` on, and before it what is kept; for the batch."""
        if not self._kept:
            return following
        oldest_ms = now_ms - KEPT_S * 1000
        self._kept = [id_ for id_ in self._kept if int(id_.partition("-")[0]) >= oldest_ms]
        return " ".join((following, *self._kept))
