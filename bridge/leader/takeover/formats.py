"""Brings a lane of an older format up to the format of this version: the first thing that a new leader does.

There is one format so far, so there are no steps yet. A version with another format adds a step here, and the number in
`bridge.protocol.agreement`. Members of older versions refuse the lane from then on, each with one line.

A leader that dies in a step leaves the old number, and the next leader begins with the same step. So a step
must be one that can be done twice. Each write of a step checks the term.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.protocol.agreement import LANE_FORMAT
from bridge.routing.errors import ConfigurationError

if TYPE_CHECKING:
    from bridge.leader.step.term import Term

logger = get_logger(__name__)

#: Format -> what makes a lane of this format one of the next.
STEPS: Mapping[int, Callable[[Term], None]] = {}


def bring_up(term: Term, steps: Mapping[int, Callable[[Term], None]] = STEPS, to: int = LANE_FORMAT) -> None:
    """Does the steps from the lane's format to the format ``to``. `introduce` notes the new number afterwards.

    The lane is of no newer format (`arrive`). Raises `ConfigurationError` when it is too old.
    """
    raw = term.redis.hget(term.keys.about, "format")
    found = to if raw is None else int(raw)
    missing = next((number for number in range(found, to) if number not in steps), None)
    if missing is not None:
        raise ConfigurationError(
            f"the lane of stream {term.keys.stream}, group {term.keys.group}, is in format {found}, and this version "
            f"knows no way from format {missing} to {missing + 1}: run the version between them first"
        )
    for number in range(found, to):
        logger.warning("bringing the lane from format %d to %d", number, number + 1)
        steps[number](term)
