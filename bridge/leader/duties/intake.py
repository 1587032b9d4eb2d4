"""Stops reading new entries while there are ``bridge_dead_max`` dead letters or more.

A broken producer, or tasks that fail for hours, must not fill the server with dead letters. No letter is dropped to
make room. Messages that were read before go on. When the last attempt of one fails in this time, it keeps that attempt,
and comes again after its backoff. Reading goes on when letters were dropped or replayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.utils.log import get_logger

if TYPE_CHECKING:
    from bridge.leader.step.term import Term
    from bridge.routing.batch import Batch
    from bridge.routing.transitions import Advanced

logger = get_logger(__name__)


class Intake:
    """Counts dead letters for one term, on the leader's thread. ``open``: whether new entries may be read."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._most = term.settings.dead_max
        self._letters = 0
        self.open = True

    def look(self) -> None:
        """Counts the dead letters again: operators may have dropped some."""
        self._letters = int(self._term.redis.xlen(self._term.keys.dead))
        self._judge()

    def settled(self, _done: Advanced, batch: Batch) -> None:
        """Counts the dead letters that a batch wrote."""
        if batch.dead or batch.replayed:
            self._letters += len(batch.dead) - len(batch.replayed)
            self._judge()

    def _judge(self) -> None:
        was, self.open = self.open, self._letters < self._most
        if was and not self.open:
            logger.error(
                "%d dead letters, and bridge_dead_max is %d: nothing new is read until some are replayed or dropped "
                "(`bridge dead list`)",
                *(self._letters, self._most),
            )
        elif self.open and not was:
            logger.warning("there is room for dead letters again: new entries are read")
