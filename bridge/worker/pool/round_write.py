"""One write of the outcomes of several messages, at most one of each ticket: begun, and ended by its replies.

Between the two, a bundle runs messages of other tickets. What came of the write is known only when it has ended: the
server may refuse a success whose effects cannot be applied or whose fence is stale, and it may never get the write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.exceptions import Retry
from celery.utils.log import get_logger
from redis.exceptions import ResponseError

from bridge.consumer.writer import is_refusal
from bridge.protocol.outcomes import Kind, Outcome
from bridge.routing.errors import PayloadError
from bridge.routing.return_codes import ReturnCode
from bridge.worker.pool.delivery import Delivery, Traced, failed, ignored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridge.app.context import TicketContext
    from bridge.consumer.writer import ApplyUnderWay, OutcomeWriter, UnderWay
    from bridge.routing.effects import Effect

logger = get_logger(__name__)


class RoundWrite:
    """Begins to write the outcomes ``done``. `end` must be called before any of their tickets goes on."""

    __slots__ = ("_apply", "_incarnation", "_refused", "_with_effects", "_write", "_writer")

    def __init__(
        self,
        writer: OutcomeWriter,
        incarnation: str,
        done: Sequence[tuple[Delivery, Outcome]],
        refused: dict[int, Traced],
    ) -> None:
        """``refused``: the failures of messages whose results could not be stored; see `end`."""
        self._writer = writer
        self._incarnation = incarnation
        self._refused = refused
        #: The successes with effects, and the other outcomes; None: there are none.
        self._apply: ApplyUnderWay | None = None
        self._write: UnderWay | None = None
        plain: list[Outcome] = []
        self._with_effects: list[tuple[TicketContext, Outcome, tuple[Effect, ...]]] = []
        for delivery, outcome in done:
            context = delivery.context
            if outcome.kind is Kind.DONE and context is not None:
                if context.written:
                    continue
                effects = context.seal()
                if effects:
                    self._with_effects.append((context, outcome, effects))
                    continue
            plain.append(outcome)
        try:
            if self._with_effects:
                self._apply = writer.begin_apply(incarnation, self._items())
            if plain:
                self._write = writer.begin_write(incarnation, plain)
        except BaseException:
            self.drop()
            raise

    @property
    def has_replies(self) -> bool:
        """Whether `end` would not wait for the server."""
        return all(one is None or one.has_reply for one in (self._apply, self._write))

    def end(self) -> dict[int, Traced]:
        """Waits for the replies. A success whose effects cannot be applied becomes a failure, which is written here.

        Returns these failures: fence -> the result for Celery. No later message of their tickets may start.
        """
        try:
            if self._apply is not None:
                self._take(self._codes(self._apply))
            if self._write is not None:
                self._write.end()
        except BaseException:
            self.drop()
            raise
        return self._refused

    def drop(self) -> None:
        """The bundle ends half way, and nobody waits for the replies. The server may get the write or not."""
        for one in (self._apply, self._write):
            if one is not None:
                one.drop()

    def _take(self, codes: list[tuple[ReturnCode, str]]) -> None:
        failures = []
        for (context, outcome, _), (code, problem) in zip(self._with_effects, codes, strict=True):
            fence = outcome.fence
            if code is ReturnCode.STALE:
                logger.warning("ticket %r: fence %d is stale, its effects were refused", context.id, fence)
                self._refused[fence] = ignored("the effects came under a stale fence")
            elif code is ReturnCode.ERR:
                exc = PayloadError(f"the effects cannot be applied: {problem}")
                self._refused[fence] = failed(exc if context.is_last_attempt else Retry(exc=exc))
                times = (outcome.service_ms, outcome.started_us)
                failures.append(Outcome(outcome.message_id, fence, Kind.FAILED, *times, f"{type(exc).__name__}: {exc}"))
        if failures:
            self._writer.write(self._incarnation, failures)

    def _items(self) -> list[tuple[str, Outcome, tuple[Effect, ...]]]:
        return [(context.id, outcome, effects) for context, outcome, effects in self._with_effects]

    def _codes(self, write: ApplyUnderWay) -> list[tuple[ReturnCode, str]]:
        try:
            return write.codes()
        except ResponseError as exc:
            if is_refusal(exc):
                # It is not about these effects, and none was applied.
                raise
            if len(self._with_effects) == 1:
                # The server refused these effects although they passed all checks. Only their message fails.
                return [(ReturnCode.ERR, str(exc))]
        # The server refused one of several. Try them one by one: an item that was applied before is not applied again.
        return [self._code(item) for item in self._items()]

    def _code(self, item: tuple[str, Outcome, tuple[Effect, ...]]) -> tuple[ReturnCode, str]:
        try:
            [code] = self._writer.apply(self._incarnation, [item])
        except ResponseError as exc:
            if is_refusal(exc):
                raise
            return ReturnCode.ERR, str(exc)
        return code
