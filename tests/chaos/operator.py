"""The operator of a chaos run: gives the leader orders without waiting for answers, and later undoes every order.

An order is written as `bridge.operate.orders` does it, into a lane whose leader may die before it is read, or before it
can answer; so nothing here believes that an order was carried out before it has an answer that says so.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis import Redis

from bridge.routing.keys import LaneKeys
from tests.chaos.facts import Notes
from tests.chaos.feeder import UNAVAILABLE

#: Seconds after which an order that was not answered is given again: its leader may have died with the answer.
AGAIN_S = 4.0

Answer = dict[str, Any]


@dataclass
class _Order:
    """An order that was given, and what is to be done with its answer."""

    order_fields: dict[str, Any]
    answered: Callable[[Answer], None]
    id: str = ""
    given_at: float = 0.0
    insist: bool = False


class Operator:
    """Gives orders, and undoes what it did."""

    def __init__(self, redis: Redis, keys: LaneKeys, notes: Notes) -> None:
        self._redis = redis
        self.keys = keys
        self.notes = notes
        self._open: list[_Order] = []
        #: (when, order) of what undoes an earlier one.
        self._later: list[tuple[float, dict[str, Any]]] = []
        #: What came of the orders: "park: ok", "release: ticket T1 is not parked" …; how often.
        self.answers: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        """Whether something that was held back may not be free yet."""
        return bool(self._open or self._later)

    def park(self, ticket: str, for_s: float) -> bool:
        """Parks a ticket, and releases it later."""
        self._later.append((time.monotonic() + for_s, {"do": "release", "ticket": ticket}))
        return self._give({"do": "park", "ticket": ticket, "reason": "chaos"})

    def drain(self, consumer: str, for_s: float) -> bool:
        """Drains a consumer, and lets it take tickets again later."""
        self._later.append((time.monotonic() + for_s, {"do": "resume", "consumer": consumer}))
        return self._give({"do": "drain", "consumer": consumer})

    def transfer(self, consumer: str) -> bool:
        """Moves a consumer's tickets to the other consumers."""
        return self._give({"do": "transfer", "consumer": consumer, "to": None, "tickets": None})

    def replay(self, letter: str, message_id: str) -> bool:
        """Replays a dead message."""
        # Whatever becomes of the order: from now on it may come later than its place.
        self.notes.replayed.add(message_id)

        def answered(answer: Answer) -> None:
            self.notes.replays += len(answer.get("replayed", ()))

        return self._give({"do": "replay", "letters": [letter]}, answered)

    def undo_all(self) -> None:
        """From now on everything is let go as soon as possible."""
        self._later = [(0.0, order) for _, order in self._later]

    def end(self) -> None:
        """The lane is gone: nobody answers any more."""
        self.notes.replays_in_doubt += sum(order.order_fields["do"] == "replay" for order in self._open)
        self._open, self._later = [], []

    def tick(self) -> None:
        """Gives what is due, and reads what was answered."""
        now = time.monotonic()
        due = [order for at, order in self._later if at <= now]
        self._later = [(at, order) for at, order in self._later if at > now]
        for order_fields in due:
            order = _Order(order_fields, lambda _: None, insist=True)
            self._open.append(order)
            self._send(order)
        for order in list(self._open):
            self._look_for_answer(order, now)

    def _give(self, order_fields: dict[str, Any], answered: Callable[[Answer], None] = lambda _: None) -> bool:
        order = _Order(order_fields, answered)
        self._open.append(order)
        return self._send(order)

    def _send(self, order: _Order) -> bool:
        order.id = uuid.uuid4().hex
        order.given_at = time.monotonic()
        try:
            fields: dict[Any, Any] = {"i": order.id, "order": json.dumps(order.order_fields)}
            self._redis.xadd(self.keys.outcomes, fields)
        except UNAVAILABLE:
            return False
        return True

    def _look_for_answer(self, order: _Order, now: float) -> None:
        try:
            found: Any = self._redis.lpop(self.keys.reply(order.id))
        except UNAVAILABLE:
            return
        if found is not None:
            answer: Answer = json.loads(found)
            self._open.remove(order)
            order.answered(answer)
            came = f"{order.order_fields['do']}: {'ok' if answer.get('ok') else 'refused'}"
            self.answers[came] = self.answers.get(came, 0) + 1
        elif order.insist and now - order.given_at > AGAIN_S:
            # What undoes is given until it is answered; done twice, the second is refused, which is an answer.
            self._send(order)
        elif not order.insist and now - order.given_at > 4 * AGAIN_S:
            self._open.remove(order)
            self.notes.replays_in_doubt += order.order_fields["do"] == "replay"
            came = f"{order.order_fields['do']}: no answer"
            self.answers[came] = self.answers.get(came, 0) + 1
