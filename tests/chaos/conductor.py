"""Carries out the drawn faults on real processes and a real server, while messages flow.

One thread and no waiting: a fault starts something (a process is killed, frozen, asked to stop) and `tick` looks after
what comes of it, so faults overlap as they please. Only the server's own faults block, for as long as it is away.
"""

from __future__ import annotations

import time

from tests.chaos.actions import Actions, method_of
from tests.chaos.draw import Step
from tests.chaos.feeder import UNAVAILABLE


class Conductor(Actions):
    """Does one step after another, and keeps what is to be known of them."""

    @property
    def certain(self) -> int:
        """How many faults were done; those that still lie in wait are not counted."""
        return sum(self.done.values()) - len(self.traps)

    def do(self, step: Step) -> bool:
        """Does one step now; False when there is nobody to do it to."""
        action = getattr(self, method_of(step.action))
        try:
            hit = bool(action(*step.dice))
        except UNAVAILABLE:
            hit = False
        counts = self.done if hit else self.missed
        counts[step.action] = counts.get(step.action, 0) + 1
        return hit

    def tick(self) -> None:
        """Looks after everything that is on its way."""
        now = time.monotonic()
        for seat in self.seats:
            due = self.leave_at.get(seat.node.name())
            if due is not None and now >= due and seat.idle:
                del self.leave_at[seat.node.name()]
                seat.leaving = True
                seat.stop(0)
            seat.tick()
        if self.deploy is not None:
            self.deploy.tick(self.may_stop)
        if self.repartitions is not None:
            self.repartitions.tick()
        self._look_for_leader()
        self._spring_traps()
        for operator in self.operators:
            operator.tick()

    def calm_down(self) -> None:
        """No more faults: what is frozen goes on, and what an operator holds back is let go."""
        for seat in self.seats:
            seat.thaw()
            seat.mend()
        for operator in self.operators:
            operator.undo_all()

    def complaints(self) -> list[str]:
        """What processes did of their own accord and should not have."""
        return [line for seat in self.seats for line in seat.complaints]

    def _spring_traps(self) -> None:
        left = []
        for until, action, strike in self.traps:
            try:
                struck = strike()
            except UNAVAILABLE:
                struck = False
            if not struck and time.monotonic() < until:
                left.append((until, action, strike))
            elif not struck:
                self.done[action] -= 1
                self.missed[action] = self.missed.get(action, 0) + 1
        self.traps = left

    def _look_for_leader(self) -> None:
        """Takes the time from the kill of a leader to the next one's lead."""
        if self.leader_gone_at is None:
            return
        try:
            leader = str(self.redis.get(self.keys.leader) or "")
        except UNAVAILABLE:
            self.leader_gone_at = None  # another fault is in the way of the measurement
            return
        pid = leader.split(":")[-2] if leader else ""
        if any(seat.node.running and str(seat.node.pid) == pid for seat in self.masters):
            self.leaderless_s.append(time.monotonic() - self.leader_gone_at)
            self.leader_gone_at = None
