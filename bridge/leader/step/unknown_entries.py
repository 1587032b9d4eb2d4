"""Entries of the outcome stream that this version does not understand: skipped, counted, and logged once for each kind.

An entry with a known form and an unknown kind most likely comes from a newer version. It stays in the stream, because
the next leader reads the stream from its start and may understand it. The number of such entries is bounded: only the
last `KEPT` stay, for `KEPT_S` at most, and none over `KEPT_BYTES`. All other unknown entries leave the stream like
settled ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.routing.text import one_line

if TYPE_CHECKING:
    from bridge.routing.batch import Batch

logger = get_logger(__name__)

#: Most unknown entries that stay, most bytes of one of them, and how long they stay, in seconds.
KEPT = 100
KEPT_BYTES = 4096
KEPT_S = 86_400
#: Most reasons that are remembered as logged, and how many characters of a reason are logged.
SAID = 1000
SHOWN_CHARS = 120

#: Reasons that a leader of this process has logged.
_said: set[str] = set()


class UnknownEntries:
    """The unknown entries that one leader has met."""

    def __init__(self) -> None:
        #: Ids of entries that stay in the stream, oldest first.
        self._kept: list[str] = []

    def skip(self, id_: str, fields: Sequence[bytes], why: str, batch: Batch, *, newer: bool = False) -> None:
        """Notes an entry, or a part of one, that is not understood. ``newer``: a newer version may understand it."""
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
            logger.error("skipped entry %s of the outcome stream: %s; %s; logged once per kind", id_, shown, left)

    def keep_from(self, following: str, now_ms: int) -> str:
        """The entries of the outcome stream that the batch keeps: all from ``following`` on, and older unknown ones."""
        if not self._kept:
            return following
        oldest_ms = now_ms - KEPT_S * 1000
        self._kept = [id_ for id_ in self._kept if int(id_.partition("-")[0]) >= oldest_ms]
        return " ".join((following, *self._kept))
