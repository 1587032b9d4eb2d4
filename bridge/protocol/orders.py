"""Operators' orders to the leader, as JSON. `bridge.operate.orders` gives them, the leader carries them out.

An order, and the answer to it::

    {"do": "park", "ticket": T, "reason": R}                                  -> {"ok": true, "in_flight": n}
    {"do": "release", "ticket": T}                                            -> {"ok": true, "messages": n}
    {"do": "drain" | "resume", "consumer": NAME}                              -> {"ok": true, "in_flight": n}
    {"do": "transfer", "consumer": NAME, "to": NAME | null, "tickets": [T, …] | null}
                                                                              -> {"ok": true, "moved": n, "running": m}
    {"do": "replay", "letters": [letter id, …]}          -> {"ok": true, "replayed": [id, …], "refused": [[id, why], …]}
    {"do": "delayed", "act": "cancel" | "now", "ids": [id, …]}
                                                          -> {"ok": true, "changed": [id, …], "refused": [[id, why], …]}
    {"do": "delayed", "act": "reschedule", "ids": [id, …], "due_ms": Unix ms}                           -> as above

The answer to a refused order is ``{"error": "one line"}``; nothing was changed. It has ``"nothing_to_do": true`` too
when a ticket that is to be parked is parked already, when one that is to be released is not parked, and when the lane
does not know the consumer that the order is about. An order for several lanes passes over such a lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self

import orjson

from bridge.routing.ids import can_be_id
from bridge.routing.message_options import LATEST_MS
from bridge.routing.messages import MAX_TICKET_BYTES

#: Most characters of a reason that a ticket's record keeps. A command sends at most 200; this bounds other senders.
REASON_CHARS = 500
#: Most messages of one order about delayed ones.
DELAYED_IDS = 500
#: The reason of an order that gives none.
PARKED_BY = "parked by an operator"


class DelayedAct(StrEnum):
    """What becomes of delayed messages."""

    CANCEL = "cancel"
    RESCHEDULE = "reschedule"
    NOW = "now"


@dataclass(frozen=True)
class Park:
    """The ticket is parked: none of its messages is dispatched."""

    do: ClassVar = "park"
    ticket: str
    reason: str = PARKED_BY

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """The order with these fields. Raises ValueError, TypeError or KeyError."""
        return cls(_ticket(fields["ticket"]), str(fields.get("reason") or PARKED_BY)[:REASON_CHARS])


@dataclass(frozen=True)
class Release:
    """The parked ticket goes on."""

    do: ClassVar = "release"
    ticket: str

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """As `Park.of`."""
        return cls(_ticket(fields["ticket"]))


@dataclass(frozen=True)
class Drain:
    """The consumer takes nothing new."""

    do: ClassVar = "drain"
    consumer: str

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """As `Park.of`."""
        return cls(_name(fields["consumer"]))


@dataclass(frozen=True)
class Resume:
    """The drained consumer takes work again."""

    do: ClassVar = "resume"
    consumer: str

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """As `Park.of`."""
        return cls(_name(fields["consumer"]))


@dataclass(frozen=True)
class Transfer:
    """Tickets of the consumer move to another one."""

    do: ClassVar = "transfer"
    consumer: str
    #: The other consumer; None: any.
    to: str | None = None
    #: The tickets; None: all.
    tickets: Sequence[str] | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """As `Park.of`."""
        to, tickets = fields.get("to"), fields.get("tickets")
        return cls(
            _name(fields["consumer"]),
            _name(to) if to else None,
            None if tickets is None else tuple(map(_ticket, tickets)),
        )


@dataclass(frozen=True)
class Replay:
    """The messages of these dead letters take their places in the lane again."""

    do: ClassVar = "replay"
    letters: Sequence[str]

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """As `Park.of`."""
        return cls(tuple(map(_letter, fields["letters"])))


@dataclass(frozen=True)
class ChangeDelayed:
    """Delayed messages are cancelled, or are due at another time."""

    do: ClassVar = "delayed"
    act: DelayedAct
    ids: Sequence[str]
    #: When they are due, Unix ms; only for a rescheduling.
    due_ms: int | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """As `Park.of`."""
        act, ids, due_ms = DelayedAct(fields["act"]), tuple(map(_message, fields["ids"])), fields.get("due_ms")
        if len(ids) > DELAYED_IDS:
            raise ValueError(f"an order has more than {DELAYED_IDS} delayed messages")
        if (act is DelayedAct.RESCHEDULE) != (type(due_ms) is int and 0 <= due_ms <= LATEST_MS):
            raise ValueError("only a rescheduling says when the messages are due")
        return cls(act, ids, due_ms)


Order = Park | Release | Drain | Resume | Transfer | Replay | ChangeDelayed
#: Word of an order -> its form.
ORDERS: dict[str, type[Order]] = {
    form.do: form for form in (Park, Release, Drain, Resume, Transfer, Replay, ChangeDelayed)
}


def order_text(order: Order) -> bytes:
    """The order as JSON."""
    return orjson.dumps({"do": order.do, **asdict(order)})


def read_order(text: bytes) -> Order:
    """The order in ``text``. Raises ValueError, TypeError or KeyError."""
    fields = orjson.loads(text)
    return ORDERS[fields["do"]].of(fields)


def _name(value: Any) -> str:
    if not (isinstance(value, str) and value):
        raise ValueError("the name of a ticket or consumer is not a text")
    return value


def _ticket(value: Any) -> str:
    if len(_name(value).encode()) > MAX_TICKET_BYTES:
        raise ValueError(f"a ticket has more than {MAX_TICKET_BYTES} bytes")
    return str(value)


def _message(value: Any) -> str:
    if not (isinstance(value, str) and can_be_id(value)):
        raise ValueError("the name of a message is not an id")
    return value


def _letter(value: Any) -> str:
    if not (isinstance(value, str) and can_be_id(value)):
        raise ValueError("the name of a dead letter is not an id")
    return value
