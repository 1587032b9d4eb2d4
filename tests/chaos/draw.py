"""What a run does, drawn from a seed alone: its cast, its faults, its messages. The same seed draws the same run.

What comes of a fault depends on the moment, too (which process is busy, who leads): the draw says "the 0.37th of those
that are busy", and the conductor looks who that is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Action -> how often it is drawn, relative to the others.
WORKER_ACTIONS = {
    "kill the worker": 4,
    "kill the worker and its watcher": 2,
    "kill everything of the worker": 2,
    "stop the worker": 4,
    "freeze the worker": 3,
    "freeze the worker past its lease": 3,
    "freeze the main process past its lease": 2,
    "freeze a pool process past the lease": 1,
    "kill a busy pool process": 4,
    "kill an idle pool process": 1,
    "let a worker join and leave": 2,
}
MASTER_ACTIONS = {
    "kill the leader": 3,
    "kill the standby": 1,
    "stop the leader": 2,
    "freeze the leader past its lease": 2,
}
SERVER_ACTIONS = {
    "kill the server": 2,
    "restart the server": 1,
    "freeze the server": 1,
    "cut all connections": 2,
}
NETWORK_ACTIONS = {
    "cut a worker off": 2,
    "cut a worker off past its lease": 2,
    "cut the leader off past its lease": 2,
}
LANE_ACTIONS = {
    "purge a queue": 2,
    "throw a Celery message away": 2,
    "claim a message by hand": 1,
    "change the group by hand": 2,
    "lose the set of masters": 1,
    "lose the layout": 1,
}
HTTP_ACTIONS = {
    "kill an HTTP consumer": 2,
    "stop an HTTP consumer": 1,
    "freeze an HTTP consumer": 1,
    "freeze an HTTP consumer past its lease": 2,
    "kill the processes of a port": 2,
}
OPERATOR_ACTIONS = {
    "deploy the newer version": 1,
    "repartition the stream": 1,
    "park a ticket": 2,
    "drain a worker": 1,
    "transfer a worker's tickets": 2,
    "replay a dead letter": 1,
}
ACTIONS = {
    **WORKER_ACTIONS,
    **MASTER_ACTIONS,
    **SERVER_ACTIONS,
    **NETWORK_ACTIONS,
    **LANE_ACTIONS,
    **HTTP_ACTIONS,
    **OPERATOR_ACTIONS,
}

#: Milliseconds that tasks work. Short ones travel in bundles. With the others all slots are busy, and a backlog stays,
#: at a third of the messages: a fault strikes tasks at work.
SHORT_MS = (0, 0, 0, 1, 3, 10, 30)
VARIED_MS = (0, 3, 10, 30, 100, 200, 400)

#: The share of messages that change the state of their tickets.
KEEP = 0.6
#: The share of messages that carry something beside their orders, and how much at most: 2 ** 19.9 bytes, a little less
#: than `bridge_max_payload`.
FILLED = 0.02
LARGEST_LOG2 = 19.9

#: The share of messages that are delayed, for how many seconds, and for how many of them their tickets wait.
DELAYED, DELAYS_S, HELD = 0.04, (0.05, 2.0), 0.4
#: The task that HTTP consumers can run, too. Of what can befall a message, they can do these ways of failing.
EITHER = "chaos.either"
EITHER_HOWS = ("raise", "nack", "dead")

#: A time limit of a message of its own, in seconds: for what hangs, and one that nothing reaches.
LIMIT_S, FAR_LIMIT_S = 2.0, 300.0


@dataclass(frozen=True)
class Cast:
    """Who takes part: (name, pool) of each worker, and names of the masters."""

    workers: tuple[tuple[str, str], ...]
    masters: tuple[str, ...] = ("m1", "m2")
    #: Names of HTTP consumers. The last one lies.
    http: tuple[str, ...] = ("h1", "h2")
    #: Those of all of them that have a line of their own to the server, which can be cut.
    lined: tuple[str, ...] = ("w1", "w3", "m1", "m2")


PREFORK = Cast((("w1", "prefork"), ("w2", "prefork"), ("w3", "prefork")))
MIXED = Cast((("w1", "prefork"), ("w2", "prefork"), ("w3", "threads"), ("w4", "gevent"), ("w5", "solo")))


@dataclass(frozen=True)
class Step:
    """One fault. ``after_s``: seconds after the one before. ``dice``: numbers in [0, 1) for what is still open."""

    number: int
    action: str
    after_s: float
    dice: tuple[float, float, float, float]

    def __str__(self) -> str:
        return f"{self.number}: {self.action} ({', '.join(f'{one:.3f}' for one in self.dice)})"


def half_of_kinds(seed: int, half: int, *, http: bool) -> list[str]:
    """Half of the kinds of faults, and the other half for 1 and 0. ``http``: with all those of HTTP consumers."""
    others = [name for name in ACTIONS if name not in HTTP_ACTIONS]
    mine = random.Random(f"halves {seed}").sample(others, len(others))[half::2]
    return [*mine, *HTTP_ACTIONS] if http else mine


def script(seed: int, faults: int, pace_s: float, actions: Sequence[str] = (), first: Sequence[str] = ()) -> list[Step]:
    """``faults`` steps, ``pace_s`` seconds apart on average; of ``actions`` only, when some are named. It begins with
    the kinds ``first``.
    """
    draw = random.Random(f"script {seed}")
    weights = {name: weight for name, weight in ACTIONS.items() if not actions or name in actions}
    names = list(weights)
    # Each kind once before any is drawn by its weight: a short run shall not leave one out by chance.
    deck = draw.sample(names, len(names))
    deck.sort(key=lambda name: name not in first)
    steps = []
    for number in range(faults):
        drawn = draw.choices(names, list(weights.values()))[0]
        action = deck[number] if number < len(deck) else drawn
        after_s = pace_s * draw.uniform(0.5, 1.5)
        dice = (draw.random(), draw.random(), draw.random(), draw.random())
        steps.append(Step(number, action, after_s, dice))
    return steps


def spare(faults: int) -> int:
    """How many to draw for so many to be done: some find nobody to strike."""
    return faults + faults // 2 + 10


def keeps_states(seed: int) -> bool:
    """Whether the tasks of a run keep states: those of three runs in four."""
    return random.Random(f"states {seed}").random() < 0.75


class Load:
    """The messages of a run. What befalls a message depends on the seed, its ticket and its place alone."""

    def __init__(
        self,
        seed: int,
        tickets: int,
        *,
        violent: bool,
        culprits: float = 0.0,
        works_ms: Sequence[int] = SHORT_MS,
        longest_ms: int = 2500,
    ) -> None:
        """``violent``: messages may kill or hang their pool process, too; only where a pool has processes to lose.

        ``culprits``: this share of all messages kills its whole worker, each time.
        """
        self._seed = seed
        self._violent = violent
        self._culprits = culprits
        self._works_ms = works_ms
        self._longest_ms = longest_ms
        self._draw = random.Random(f"tickets {seed}")
        self._tickets = [f"T{i}" for i in range(tickets)]
        self._hot = self._tickets[: max(1, tickets // 20)]

    def ticket(self) -> str:
        """Whose message comes next: a fifth of all are of a few hot tickets."""
        return self._draw.choice(self._hot if self._draw.random() < 0.2 else self._tickets)

    def message(self, ticket: str, n: int) -> tuple[str, dict[str, Any], bool]:
        """Task, payload, and whether it can never succeed."""
        draw = random.Random(f"{self._seed}/{ticket}/{n}")
        payload: dict[str, Any] = {"n": n, "ms": draw.choice(self._works_ms)}
        rare = draw.random()
        if rare < 0.001:
            payload["ms"] = self._longest_ms
        elif rare < 0.008:
            payload["ms"] = 300
        task = "chaos.work"
        wrong = draw.random()
        if wrong < 0.04:
            payload["until"] = draw.choice((2, 2, 3))
            payload["how"] = "raise" if wrong < 0.024 else "effect"
            if self._violent and wrong < 0.008:
                payload["how"] = draw.choice(("exit", "kill", "hang"))
                payload["ms"] = min(payload["ms"], 300)
                task = "chaos.limited" if payload["how"] == "hang" else task
        dies = draw.random() < 0.004
        if dies:
            payload["until"] = 1_000_000
            payload["how"] = draw.choice(("raise", "effect"))
        if draw.random() < self._culprits:
            dies = True
            payload = {"n": n, "ms": 5, "until": 1_000_000, "how": draw.choice(("worker", "machine"))}
            task = "chaos.work"
        if draw.random() < FILLED:
            # Of any size, as many of each order of magnitude.
            payload["fill"] = "x" * int(2 ** draw.uniform(1, LARGEST_LOG2))
        dies = self._refuse(draw, payload, dies)
        if draw.random() < 0.1:
            payload["priority"] = draw.randint(1, 9)
        task = self._time(draw, task, payload)
        if draw.random() < KEEP:
            payload["keep"] = True
        elif task == "chaos.work" and payload.get("how", "raise") in EITHER_HOWS:
            task = EITHER
        return task, payload, dies

    @staticmethod
    def _time(draw: random.Random, task: str, payload: dict[str, Any]) -> str:
        """Draws when a message is due and how long it may run. Returns its task."""
        delayed, limited = draw.random(), draw.random()
        # One that expires has expired when it is pushed, and would never be due.
        if delayed < DELAYED and "expires" not in payload:
            least, most = DELAYS_S
            payload["delay"] = round(least * (most / least) ** draw.random(), 3)
            if delayed < DELAYED * HELD:
                payload["hold"] = True
        if payload.get("how") == "hang" and limited < 0.5:
            # Without a limit of its task.
            payload["timeout"] = LIMIT_S
            payload["ms"] = min(payload["ms"], 100)
            return "chaos.work"
        if limited < 0.02 and task != "chaos.limited":
            payload["timeout"] = FAR_LIMIT_S
        return task

    @staticmethod
    def _refuse(draw: random.Random, payload: dict[str, Any], dies: bool) -> bool:
        """Draws how a message is refused by its task, or expires. Returns whether it can never succeed."""
        drawn = draw.random()
        if payload.get("how") == "raise" and drawn < 0.5:
            payload["how"] = "dead" if dies else "nack"
        elif "how" not in payload and drawn < 0.02:
            payload["nacks"] = True
        elif "how" not in payload and drawn < 0.03:
            payload["how"] = "drop"
        elif "how" not in payload and drawn < 0.034:
            payload["expires"] = 0
            return True
        return dies
