"""Wakes the long polls of HTTP consumers: names the consumers that were just sent something, on the lane's channel.

A long poll that hears nothing looks again by itself after a second. So a name that is lost, by a leader that ends or a
user of Redis that may not publish, costs time and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from celery.utils.log import get_logger
from redis.exceptions import ResponseError

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane
    from bridge.leader.step.term import Term
    from bridge.routing.batch import Batch
    from bridge.routing.transitions import Advanced

logger = get_logger(__name__)


class HttpWakes:
    """Wakes them in one term, on the leader's thread."""

    def __init__(self, term: Term, lane: Lane) -> None:
        self._term = term
        self._lane = lane
        self._may_publish = True

    def written(self, _done: Advanced, batch: Batch) -> None:
        """A batch was written: its dispatches are in the queues."""
        if not batch.dispatches or not self._may_publish:
            return
        names = [name for name in batch.dispatches if name in self._lane.over_http]
        if not names:
            return
        try:
            self._term.wire.call("PUBLISH", self._term.keys.dispatched(), orjson.dumps(names))
        except ResponseError as exc:
            self._may_publish = False
            logger.warning("cannot wake the long polls of HTTP consumers, which look once a second: %s", exc)
