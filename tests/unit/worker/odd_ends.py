"""How the bodies of tasks may end: the exceptions and results that a pool process must cope with, by names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import Ignore, Reject, Retry

from bridge.app.refusing import Dead, Drop, Nack


class CannotPickle(Exception):
    def __init__(self, one: Any, two: Any) -> None:
        super().__init__(f"{one} and {two}")
        self.held = lambda: None


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def _group() -> Exception:
    return ExceptionGroup("several", [ValueError("one"), KeyError("two")])


def _circle() -> Exception:
    one, two = ValueError("one"), TypeError("two")
    one.__cause__, two.__cause__ = two, one
    return one


ERRORS: dict[str, Callable[[], BaseException]] = {
    "value": lambda: ValueError("no"),
    "value of nothing": ValueError,
    "lookup": lambda: KeyError("expected"),
    "unpicklable": lambda: CannotPickle(1, 2),
    "no text": NoText,
    "group": _group,
    "circle": _circle,
    "memory": lambda: MemoryError("much"),
    "recursion": lambda: RecursionError("deep"),
    "soft limit": lambda: SoftTimeLimitExceeded(3),
    "bytes": lambda: ValueError(b"\xff"),
    "long": lambda: ValueError("x" * 20_000),
    "surrogate": lambda: ValueError("\udc80"),
    "connection": lambda: ConnectionError("away"),
    "type": lambda: TypeError("a type"),
    "dead": lambda: Dead("broken"),
    "drop": lambda: Drop("old"),
    "nack": lambda: Nack("busy", delay=3),
    "uncharged": lambda: Nack("busy", charge=False, delay=2),
    "ignore": Ignore,
    "reject": lambda: Reject("bad"),
    "requeue": lambda: Reject("later", requeue=True),
    "own retry": lambda: Retry("again", when=4),
    "retry of a cause": lambda: Retry(exc=ValueError("cause"), when=4),
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
}
#: Those that end a whole Celery message.
FATAL = frozenset({"exit", "interrupt"})


def _circular() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


def _generator() -> Any:
    yield 1


RESULTS: dict[str, Callable[[], Any]] = {
    "object": NoRepr,
    "nan": lambda: float("nan"),
    "generator": _generator,
    "bytes": lambda: b"\xff",
    "huge": lambda: "x" * 100_000,
    "set": lambda: {1},
    "circular": _circular,
    "exception": lambda: ValueError("returned"),
    "surrogate": lambda: "\udc80",
}
