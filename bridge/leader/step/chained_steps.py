"""The steps of a leader whose stream has other versions. They dispatch nothing before an older version's messages.

The planner leaves out the tickets that a picture of this process defers (`bridge.leader.picture.chain`). The script
refuses a step with a ticket that must wait for another reason: an older version has an entry of it that its leader has
not read yet, or a newer version that another master led has it in flight. Nothing was changed then. The same batch is
sent again without its dispatches, and the ticket is deferred until the other leader has worked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.leader.step.steps import Steps
from bridge.routing.batch import OlderLane
from bridge.routing.errors import DispatchRefused
from bridge.routing.ids import id_text

if TYPE_CHECKING:
    from bridge.leader.picture.chain import Place
    from bridge.leader.picture.chained_lane import ChainedLane
    from bridge.leader.picture.planner import Planner
    from bridge.leader.picture.settling import Settling
    from bridge.leader.step.dropped_versions import DroppedVersions
    from bridge.leader.step.term import Term
    from bridge.protocol.envelope import Envelopes
    from bridge.routing.batch import Batch

logger = get_logger(__name__)


class ChainedSteps(Steps):
    """Does the steps of one term of a lane in a chain, each in a turn of ``place``."""

    def __init__(
        self,
        term: Term,
        lane: ChainedLane,
        planner: Planner,
        envelopes: Envelopes,
        settling: Settling,
        place: Place,
        dropped: DroppedVersions | None,
    ) -> None:
        super().__init__(term, lane, planner, envelopes, settling)
        self._chained = lane
        self._place = place
        #: The older versions that the app does not name any more; None: there are none.
        self._dropped = dropped

    def advance(self, batch: Batch) -> None:
        """Plans what can be dispatched before or beside other versions, and sends the batch."""
        lane, place, dropped = self._chained, self._place, self._dropped
        place.paused = not place.open
        if place.paused:
            self._planner.skip()
            lane.close(batch, set())
            self._write(batch, {})
            return
        mark = batch.mark()
        dispatched = self._planner.plan(batch, lane.now_ms())
        due_end = len(batch.due)
        lane.close(batch, set(dispatched))
        if dispatched:
            batch.older = [OlderLane(one.keys, one.token, id_text(lane.read_to)) for one, lane in place.older_lanes()]
            batch.newer = list(place.newer_keys)
            if dropped is not None:
                batch.older += dropped.lanes
                batch.newer += [one.keys for one in dropped.lanes]
            batch.contested = [ticket.id for ticket in dispatched]
        try:
            self._write(batch, dispatched)
        except DispatchRefused as exc:
            logger.debug("nothing was dispatched: %s", exc)
            batch.withdraw(mark, due_end)
            behind_dropped = dropped is not None and exc.behind in dropped.streams
            held = [ticket.id for ticket in dispatched] if behind_dropped else exc.tickets
            lane.withdraw(dispatched, held, batch)
            if dropped is not None:
                dropped.look(self._term.redis)
            if behind_dropped:
                place.refused.update(held)
                self._planner.skip()
            elif exc.behind:
                place.wait_for(exc.behind)
                self._planner.skip()
            else:
                place.refused.update(exc.tickets)
                self._planner.again()
            self._write(batch, {})
