"""HTTP consumers acknowledge messages, and ask for more time. Outcomes have the form of those of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from bridge.http.problems import Problem
from bridge.protocol.outcome_limits import ERROR_CHARS
from bridge.protocol.outcomes import Kind
from bridge.routing.http_consumers import Answer, acknowledge
from bridge.routing.return_codes import ReturnCode

if TYPE_CHECKING:
    from bridge.http.consumer_forms import Acknowledgement
    from bridge.http.incarnations import Incarnation, Incarnations
    from bridge.http.registering import Registry
    from bridge.http.site import Site

#: The outcome that a consumer names -> its kind.
KINDS = {"done": Kind.DONE, "failed": Kind.FAILED, "refused": Kind.NACKED, "dead": Kind.DEAD}
#: What a code means for the caller: status and detail.
MEANINGS = {
    ReturnCode.OK: (200, ""),
    ReturnCode.AGAIN: (200, ""),
    ReturnCode.CHANGED: (409, "this message was acknowledged before, with another outcome, and that one counts"),
    ReturnCode.STALE: (409, "the fence is stale: this delivery of the message does not count any more"),
    ReturnCode.UNKNOWN: (404, "this incarnation does not have such a message"),
    ReturnCode.LATE: (410, "the lease of this incarnation is over, and its tickets go to others: register again"),
}


class Acknowledging:
    """The acknowledgements of a server. For its event loop."""

    def __init__(self, site: Site, incarnations: Incarnations, registry: Registry) -> None:
        self._site = site
        self._incarnations = incarnations
        self._registry = registry

    async def acknowledge(self, incarnation: Incarnation, items: Sequence[Acknowledgement]) -> list[ReturnCode]:
        """Writes the outcomes of one incarnation, in one step. Returns a code for each. Raises redis errors."""
        redis = await self._site.redis()
        answers = [Answer(item.message_id, item.fence, KINDS[item.outcome].value, _rest(item)) for item in items]
        return await acknowledge(redis, incarnation.lanes, incarnation.id, answers)

    async def extend(self, incarnation: Incarnation, messages: Sequence[tuple[str, int]]) -> tuple[int, list[bool]]:
        """Renews the leases. Returns the Unix ms when they end, and of each message whether it is the consumer's.

        Raises `Problem` (410), and redis errors.
        """
        found = await self._registry.heartbeat(incarnation, messages)
        return found.now_ms + incarnation.lease_ms, found.is_own


def _rest(item: Acknowledgement) -> str:
    """What follows the start time in the outcome."""
    if item.outcome == "done":
        return ""
    error = (item.error or "")[:ERROR_CHARS].encode(errors="replace").decode()
    delay_ms = None if item.delay is None else round(item.delay * 1000)
    return "," + orjson.dumps([error, "", delay_ms]).decode()[1:-1]


def problem_of(code: ReturnCode) -> Problem | None:
    """The problem that a code means; None: it means none."""
    status, detail = MEANINGS[code]
    return None if status == 200 else Problem(status, detail)


def result_of(message_id: str, problem: Problem | None) -> dict[str, Any]:
    """One item of the answer to a list."""
    if problem is None:
        return {"message_id": message_id, "status": 200}
    return {"message_id": message_id, "status": problem.status, "detail": problem.detail}
