"""The checks of one delivery's row, against what is known about its message and its ticket."""

from __future__ import annotations

from bridge.audit.checks import Check
from bridge.audit.findings import Findings
from bridge.audit.messages import Messages, NextAttempt
from bridge.audit.missing_rows import MissingRows
from bridge.audit.trail import Trail
from bridge.routing.history import Delivery, What
from bridge.routing.ids import IdKey, id_key, id_text
from bridge.routing.numbers import duration

#: Two executions may seem to overlap by this much: the start is cut to whole us, and the duration is rounded.
ROUNDING_US = 2
#: Smaller than every fence.
BEFORE_ALL = 1


class DeliveryChecks:
    """Compares a delivery's row with the rows before it, and notes what the next ones are compared with."""

    def __init__(self, messages: Messages, missing: MissingRows, findings: Findings, skew_us: int) -> None:
        self._messages = messages
        self._missing = missing
        self._report = findings.report
        self._skew_us = skew_us
        #: Deliveries beyond the first of a message. A row explains each of them.
        self.repeats = 0

    def last(self, trail: Trail, row: Delivery, key: IdKey) -> None:
        """`Check.REPEATED`, and `Check.REORDERED` where no entry tells that it was handled before.

        A message that is not undone, and not younger than all messages of its ticket that ran, was either handled
        before or is late. Both are violations, unless rows are missing that say that it was replayed, or delayed.
        """
        id_ = row.message_id
        if id_ in self._messages.dead:
            text = f"{row.what.value}, after it was dead and had not been replayed"
            self._report(Check.REPEATED, trail.name, id_, text)
        elif key == trail.last:
            self._report(Check.REPEATED, trail.name, id_, f"{row.what.value}, after its own last row")
        elif key < trail.last:
            if not self._missing.begins_here(key):
                return
            if self._missing.covers(key) and key <= self._messages.entries_to:
                text = f"{row.what.value}, after its own last row, and after younger messages of its ticket"
                self._report(Check.REPEATED, trail.name, id_, text)
            else:
                younger = id_text(trail.last)
                text = f"{row.what.value} after the younger message {younger} of its ticket: out of order, or repeated"
                self._report(Check.REORDERED, trail.name, id_, text)

    def order(self, trail: Trail, row: Delivery, key: IdKey) -> None:
        """`Check.REORDERED`: compares with the undone, the replayed and the late messages of the ticket."""
        undone = trail.undone
        replayed = trail.replayed
        known, delayed = self._messages.undone, self._messages.delayed
        while undone and (
            undone[0] not in known or undone[0] in delayed or (replayed is not None and undone[0] in replayed)
        ):
            undone.popleft()
        place = delayed.get(row.message_id) or key
        if undone and undone[0] != row.message_id and id_key(undone[0]) < place:
            text = f"{row.what.value}, while the older message {undone[0]} of its ticket was undone"
            self._report(Check.REORDERED, trail.name, row.message_id, text)
        if not (replayed or trail.late) or not row.fence:
            return
        expected = self._messages.attempts.get(row.message_id)
        if expected is None and not self._missing.begins_here(key):
            return  # it may have started before the replay, in rows that are missing
        first_fence = row.fence if expected is None or not expected.first_fence else expected.first_fence
        late = [id_ for id_, (other, bound) in (trail.late or {}).items() if other < place and first_fence > bound]
        if late:
            text = f"first dispatched after {late[0]} was due, and {row.what.value} before {late[0]}"
            self._report(Check.REORDERED, trail.name, row.message_id, text)
        if not replayed:
            return
        passed = [id_ for id_, bound in replayed.items() if first_fence > bound]
        if passed:
            text = f"first dispatched after {passed[0]} was replayed, and {row.what.value} before {passed[0]}"
            self._report(Check.REORDERED, trail.name, row.message_id, text)

    def attempt(self, row: Delivery, key: IdKey) -> None:
        """`Check.ATTEMPTS`. A message that dies without being in flight (fence 0) has no attempt."""
        id_, attempt = row.message_id, row.attempt
        expected = self._messages.attempts.get(id_)
        if row.fence:
            if expected is not None:
                least, most = expected.least, expected.most
                if not least <= attempt <= most:
                    wanted = str(least) if least == most else f"{least} or {most}"
                    text = f"{row.what.value} in attempt {attempt}; expected {wanted} after the row before"
                    self._report(Check.ATTEMPTS, row.ticket, id_, text)
            elif attempt != 1 and self._missing.begins_here(key):
                self._report(Check.ATTEMPTS, row.ticket, id_, f"its first row is of attempt {attempt}")
        if expected is not None and expected.first_fence:
            self.repeats += 1
        if row.what is What.FAILED:
            least, most = attempt + 1, attempt + 1
        elif row.what is What.LOST:
            least, most = attempt, attempt + 1
        elif row.what is What.RETURNED or row.what is What.NACKED:
            least = most = attempt
        else:
            return
        if expected is not None and expected.first_fence:
            first_fence = expected.first_fence
        else:
            # When its first rows may be missing, its first fence is unknown: take the smallest.
            first_fence = row.fence if expected is not None or self._missing.begins_here(key) else BEFORE_ALL
        self._messages.attempts[id_] = NextAttempt(least, most, first_fence)

    def fence(self, trail: Trail, row: Delivery) -> None:
        """`Check.FENCES`."""
        fence = row.fence
        if not fence:
            return
        if fence <= trail.fence:
            text = f"fence {fence} is not larger than the earlier fence {trail.fence} of its ticket"
            self._report(Check.FENCES, trail.name, row.message_id, text)
        elif row.what is not What.RETURNED:
            trail.fence = fence

    def times(self, trail: Trail, row: Delivery) -> None:
        """`Check.OVERLAPPED`."""
        if not row.started_us:
            return
        host = host_of(row.consumer)
        finished_us = row.finished_us
        if trail.finished_us:
            allowed = ROUNDING_US if host == trail.host else self._skew_us
            early = trail.finished_us - row.started_us
            if early > allowed:
                text = f"began {duration(early / 1000)} before {trail.finished_id} had ended"
                if host != trail.host:
                    text += f", on another host ({host}, {trail.host})"
                self._report(Check.OVERLAPPED, trail.name, row.message_id, text)
        if host != trail.host or finished_us > trail.finished_us:
            trail.host, trail.finished_us, trail.finished_id = host, finished_us, row.message_id


def host_of(consumer: str) -> str:
    """The host of a consumer: the part of its name after the ``@``."""
    return consumer.rpartition("@")[2]
