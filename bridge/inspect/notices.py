"""What keeps notices about dead letters from their receiver, over several lanes. Never writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bridge.routing.notices import Notices, notices_in
from bridge.routing.text import one_line

if TYPE_CHECKING:
    from redis import Redis

    from bridge.routing.keys import LaneKeys


def notice_problem(found: Notices | None) -> str:
    """One sentence, or '' when nothing is wrong."""
    if found is None or not found.error:
        return ""
    return f"the receiver of dead letters (bridge_on_dead_notify) does not get them: {one_line(found.error)}"


def notice_problems(redis: Redis, lanes: Iterable[LaneKeys]) -> list[str]:
    """A sentence for each kind of error, in one round trip. Raises redis errors."""
    with redis.pipeline(transaction=False) as pipe:
        for keys in lanes:
            pipe.hgetall(keys.notices)
        found = [notice_problem(notices_in(fields)) for fields in pipe.execute()]
    return [problem for problem in dict.fromkeys(found) if problem]
