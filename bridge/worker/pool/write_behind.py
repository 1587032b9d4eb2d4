"""The outcomes of a bundle on their way to the server: one write is under way while messages of other tickets run.

Contract:

- At most one write is under way. Its replies are read before the next one begins, before a later message of one of its
  tickets starts, and before the bundle ends. So the writes of a bundle take effect in their order.
- A ticket whose success was refused does not go on (`WriteBehind.refused`).
- A bundle that ends half way drops the write that is under way. It is then as if the process had died: the server may
  have got the write or not, and the fence decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridge.worker.pool.delivery import Delivery, event_of

if TYPE_CHECKING:
    from bridge.protocol.outcomes import Outcome
    from bridge.worker.pool.execute import Execution
    from bridge.worker.pool.round_write import RoundWrite

_NONE: frozenset[str] = frozenset()


class WriteBehind:
    """The outcomes of one bundle."""

    __slots__ = ("_execution", "_incarnation", "_under_way", "_written", "events", "pending", "refused", "tickets")

    def __init__(self, execution: Execution, incarnation: str) -> None:
        self._execution = execution
        self._incarnation = incarnation
        self._under_way: RoundWrite | None = None
        #: The messages of the write that is under way.
        self._written: list[tuple[Delivery, Outcome]] = []
        #: The messages whose outcomes are not sent yet.
        self.pending: list[tuple[Delivery, Outcome]] = []
        #: The tickets of the write that is under way.
        self.tickets: set[str] | frozenset[str] = _NONE
        #: The tickets whose runs have ended, since a success of theirs was refused.
        self.refused: set[str] = set()
        #: Fence -> event, of each message that ran.
        self.events: dict[int, tuple[Any, ...] | None] = {}

    @property
    def has_effects(self) -> bool:
        """Whether the first pending outcome has effects. The tasks of a bundle are alike in most cases."""
        context = self.pending[0][0].context
        return context is not None and context.has_changes

    @property
    def may_begin(self) -> bool:
        """Whether `begin` would not wait for the server."""
        return self._under_way is None or self._under_way.has_replies

    def begin(self) -> None:
        """Begins to write the pending outcomes, when the write before is over."""
        self.end()
        written = self._written = self.pending.copy()
        self.pending.clear()
        self._under_way = self._execution.begin_write(self._incarnation, written)
        self.tickets = {delivery.ticket for delivery, _ in written}

    def end(self) -> None:
        """Waits until the write that is under way is over, if there is one."""
        write = self._under_way
        if write is None:
            return
        refused = write.end()
        self._under_way, self.tickets = None, _NONE
        if refused:
            for one, _ in self._written:
                if one.fence in refused:
                    self.events[one.fence] = event_of(one, refused[one.fence])
                    self.refused.add(one.ticket)

    def drop(self) -> None:
        """The bundle has ended: nobody waits for what is under way."""
        if self._under_way is not None:
            self._under_way.drop()
