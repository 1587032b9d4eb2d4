"""A circuit breaker for each task: when the task fails for most tickets (its database is down), its messages wait.

A circuit opens when two conditions hold within ``seconds``: messages of at least ``tickets`` different tickets failed,
and failures are at least ``share`` of all outcomes. So one bad message that fails repeatedly does not open it.

While a circuit is open, messages of the task are not dispatched. They wait like messages that no consumer can run
(`bridge.leader.picture.stranded`): in order, and without using memory. Messages of other tasks go on. Every ``probe``
seconds one message goes out as a *trial*. When a message succeeds, the circuit closes.

While the circuit is open, a failure uses up no attempt, and no message dies. Only a trial's failure is charged, never
beyond the last attempt. Otherwise a task that asks for a retry first could not reach its second attempt.

The leader notes the waiting tasks and the reasons in the lane (`bridge.leader.duties.unknown_tasks`). So the next
leader keeps the circuit open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.leader.picture.pieces import Ticket
from bridge.leader.picture.stranded import Waiting

if TYPE_CHECKING:
    from bridge.leader.picture.lane import Lane

logger = get_logger(__name__)

#: Most characters of the last error that are logged.
ERROR_CHARS = 200


class Circuit:
    """The outcomes of one task, counted in two halves of the time window: the current half and the one before."""

    def __init__(self, now_ms: int) -> None:
        self.turned_ms = now_ms
        self.failures = 0
        self.failures_before = 0
        #: Tickets of these, as many as are needed to open the circuit.
        self.failed: set[str] = set()
        self.failed_before: set[str] = set()
        self.succeeded = 0
        self.succeeded_before = 0
        #: Why the circuit is open; '': it is closed.
        self.why = ""
        self.trial: Ticket | None = None
        self.trial_at_ms = 0
        #: The trial that failed last, and whether it goes out once more before another one does.
        self.last: Ticket | None = None
        self.again = True

    def turn(self, now_ms: int, half_ms: float) -> None:
        """Forgets outcomes that are too old."""
        while now_ms - self.turned_ms >= half_ms:
            idle = now_ms - self.turned_ms >= 2 * half_ms
            self.turned_ms = now_ms if idle else int(self.turned_ms + half_ms)
            self.failures_before, self.failures = (0 if idle else self.failures), 0
            self.failed_before, self.failed = (set() if idle else self.failed), set()
            self.succeeded_before, self.succeeded = (0 if idle else self.succeeded), 0


class Breakers:
    """The circuit breakers of one lane, on the leader's thread."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._limits = lane.settings.breaker
        #: Task -> circuit, for tasks with a recent failure. Successes are counted only for these tasks.
        self.circuits: dict[str, Circuit] = {}

    def restore(self, task: str, why: str) -> None:
        """Opens the circuit of ``task``, because the previous leader left it open."""
        circuit = self.circuits[task] = Circuit(self._lane.now_ms())
        circuit.why = why
        self._lane.stranded.open_circuits.add(task)

    def why(self, task: str) -> str:
        """Why the circuit of ``task`` is open; '': it is closed."""
        circuit = self.circuits.get(task)
        return "" if circuit is None else circuit.why

    def succeeded(self, task: str) -> None:
        """A message of ``task`` succeeded."""
        circuit = self.circuits.get(task)
        if circuit is None:
            return
        circuit.succeeded += 1
        if circuit.why:
            self._close(task, circuit)

    def failed(self, task: str, ticket: Ticket, error: str) -> bool:
        """The oldest message of ``ticket`` failed. Returns whether the message is charged with the attempt."""
        if self._limits.share == 0:
            return True
        now_ms = self._lane.now_ms()
        circuit = self.circuits.get(task)
        if circuit is None:
            circuit = self.circuits[task] = Circuit(now_ms)
        circuit.turn(now_ms, self._limits.seconds * 500)
        if circuit.why:
            return self._trial_failed(circuit, ticket, now_ms)
        circuit.failures += 1
        if len(circuit.failed) < self._limits.tickets:
            circuit.failed.add(ticket.id)
        tickets = len(circuit.failed | circuit.failed_before)
        failures = circuit.failures + circuit.failures_before
        succeeded = circuit.succeeded + circuit.succeeded_before
        if tickets < self._limits.tickets or failures < self._limits.share * (failures + succeeded):
            return True
        self._open(task, circuit, failures, error)
        return False

    def nacked(self, task: str, ticket: Ticket) -> None:
        """The task refused the oldest message of ``ticket`` without a charge. That says nothing about the task: another
        message is the next trial.
        """
        circuit = self.circuits.get(task)
        if circuit is not None and circuit.why:
            self._trial_failed(circuit, ticket, self._lane.now_ms())

    def look(self) -> None:
        """Sends the trials that are due, and forgets closed circuits without recent failures."""
        now_ms = self._lane.now_ms()
        for task, circuit in list(self.circuits.items()):
            if circuit.why:
                self._send_trial(task, circuit, now_ms)
                continue
            circuit.turn(now_ms, self._limits.seconds * 500)
            if not (circuit.failed or circuit.failed_before):
                del self.circuits[task]

    def _open(self, task: str, circuit: Circuit, failures: int, error: str) -> None:
        lane = self._lane
        circuit.why = (
            f"its circuit breaker is open: {failures} attempts failed within {self._limits.seconds:g} s and "
            f"{circuit.succeeded + circuit.succeeded_before} messages succeeded; the last error: {error[:ERROR_CHARS]}"
        )
        circuit.trial_at_ms = lane.now_ms() + int(self._limits.probe * 1000)
        details = (task, circuit.why, self._limits.probe)
        logger.error("task %s: %s. Its messages wait, in order; every %g s one is tried", *details)
        lane.stranded.open_circuits.add(task)
        # Even while no message waits: so the circuit is reported and noted for the next leader.
        lane.stranded.waiting.setdefault(task, Waiting(lane.clock.server_ms()))
        for consumer in list(lane.crowded):
            lane.free_ready(consumer)
        lane.queue_again()

    def _close(self, task: str, circuit: Circuit) -> None:
        logger.warning("task %s: a message succeeded, its circuit breaker is closed", task)
        del self.circuits[task]
        stranded = self._lane.stranded
        stranded.open_circuits.discard(task)
        if circuit.trial is not None:
            stranded.trials.discard(circuit.trial)
        stranded.release(task)

    def _send_trial(self, task: str, circuit: Circuit, now_ms: int) -> None:
        stranded = self._lane.stranded
        trial = circuit.trial
        if trial is not None:
            # Where another version of the stream goes first, it is not read again, or waits in memory.
            read_again = trial in self._lane.spilled and not trial.waiting
            if trial.run or trial.queued or trial.due_ms or read_again:
                return
            stranded.trials.discard(trial)
            circuit.trial = None
        waiting = stranded.waiting.get(task)
        if now_ms < circuit.trial_at_ms or waiting is None or not waiting.tickets:
            return
        # A trial that failed goes out once more. Then another message is the trial, because this one may be bad.
        circuit.again = not circuit.again and circuit.last in waiting.tickets
        chosen = circuit.last if circuit.again and circuit.last is not None else next(iter(waiting.tickets))
        circuit.trial = circuit.last = chosen
        circuit.trial_at_ms = now_ms + int(self._limits.probe * 1000)
        stranded.trials.add(chosen)
        stranded.free(chosen)

    def _trial_failed(self, circuit: Circuit, ticket: Ticket, now_ms: int) -> bool:
        if ticket is not circuit.trial:
            return False
        circuit.trial = None
        circuit.trial_at_ms = now_ms + int(self._limits.probe * 1000)
        self._lane.stranded.trials.discard(ticket)
        return True
