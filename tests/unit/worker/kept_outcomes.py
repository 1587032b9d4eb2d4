"""Writers that keep what a pool process would write, for tests of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge.protocol.headers import RunHead
from bridge.protocol.outcomes import Outcome
from bridge.routing.return_codes import ReturnCode

LIFE = "1" * 32


class Sent:
    """A write that was begun: it takes effect when its reply is read. ``take``: what it does, and its reply."""

    has_reply = True

    def __init__(self, take: Callable[[], Any]) -> None:
        self._take = take

    def end(self) -> Any:
        return self._take()

    codes = end

    def drop(self) -> None:
        pass


class Writer:
    """Keeps what was applied."""

    def begin_apply(self, incarnation: str, items: Any) -> Sent:
        return Sent(lambda: self.apply(incarnation, items))

    def begin_write(self: Any, incarnation: str, outcomes: Any) -> Sent:
        return Sent(lambda: self.write(incarnation, outcomes))

    def __init__(self) -> None:
        self.applied: list[Outcome] = []

    def apply(self, incarnation: str, items: Any) -> list[tuple[ReturnCode, str]]:
        assert incarnation == LIFE
        self.applied += [outcome for _, outcome, _ in items]
        return [(ReturnCode.OK, "")] * len(items)


def heads(runs: list[Any]) -> list[RunHead]:
    """The headers' rows of a bundle whose body is ``runs``."""
    return [RunHead(ticket, offset, len(messages), attempt, 0) for ticket, offset, attempt, messages in runs]


class KeepingWriter(Writer):
    """Keeps what was written, too."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Outcome] = []

    def write(self, incarnation: str, outcomes: Any) -> bool:
        assert incarnation == LIFE
        self.written.extend(outcomes)
        return True
