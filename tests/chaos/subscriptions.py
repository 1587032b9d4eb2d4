"""The lanes of a chaos run's app, drawn from the seed, and the evidence of each of them.

An app has one subscription, or three: one that fails as messages are drawn, one that is slow, one that is neither. Some
have a filter. The stream may have partitions, and versions (`tests.chaos.versions`). In the ledger and in the effects a
ticket of a subscription is ``<subscription>/<ticket>``, and a message of a version ``<version>:<id>``. So the evidence
of each lane stands for itself, and is checked as that of a lane alone.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

from bridge.routing.keys import LaneKeys
from bridge.routing.partitions import AT, Layout, partition_of, stream_id, suffix_of
from tests.chaos.facts import Effect, Evidence, Execution, Letter, Message, Notes, Rest

STREAM = "ticket_stream"
#: Version -> its stream, oldest first. "": a run with one version.
OLDER, NEWER = "v1", "v2"
STREAMS = {"": STREAM, OLDER: STREAM, NEWER: f"{STREAM}:v2"}
#: What stands between a version and an id in the ledger and the effects: two streams may have the same id.
OF = ":"
#: The kinds of messages that filters tell apart.
KINDS = ("a", "b", "c")
#: Environment variables of the app: its subscriptions, which of them has the task with a time limit, and how many
#: partitions the stream has.
SUBSCRIPTIONS, LIMITED_IN, PARTITIONS = "CHAOS_SUBSCRIPTIONS", "CHAOS_LIMITED_IN", "CHAOS_PARTITIONS"
#: "0": the tasks of the app keep no state.
STATES = "CHAOS_STATES"

Row = TypeVar("Row", Execution, Effect)


@dataclass(frozen=True)
class Subscription:
    """A subscription on one partition of one version. ``wants``: the kinds that pass its filter; empty: all.
    ``label``: begins its tickets.
    """

    name: str
    wants: tuple[str, ...] = ()
    #: How much longer its tasks work than drawn.
    times: int = 1
    #: Whether messages fail in it as they are drawn. In others they succeed.
    fails: bool = True
    label: str = ""
    partition: int = 0
    #: How many partitions the stream has.
    partitions: int = 1
    version: str = ""
    #: Of the stream's layout: each repartition makes the next one.
    generation: int = 0

    @property
    def keys(self) -> LaneKeys:
        return LaneKeys(
            Layout(self.partitions, self.generation).stream(STREAMS[self.version], self.partition), self.name
        )

    def has(self, ticket: str) -> bool:
        """Whether the ticket is of its partition."""
        return partition_of(ticket, self.partitions) == self.partition

    def wants_fields(self, fields: Sequence[bytes]) -> bool:
        """Whether the entry with these fields passes its filter."""
        payload = json.loads(dict(zip(fields[::2], fields[1::2], strict=True))[b"payload"])
        return not self.wants or payload["kind"] in self.wants

    def wanted(self, messages: Iterable[Message]) -> list[Message]:
        """The messages that are for it, numbered as its own, in the order in which they are to be handled."""
        found = []
        for message in messages:
            of = (message.version, message.generation)
            if of != (self.version, self.generation) or not self.has(message.ticket):
                continue
            if self.wants and message.kind not in self.wants:
                continue
            # What has expired can succeed in none.
            dies = message.expired or (message.dies and self.fails)
            found.append(replace(message, ticket=self.label + message.ticket, dies=dies))
        numbers: dict[str, int] = {}
        places: Counter[str] = Counter()
        for message in sorted(found, key=attrgetter("place")):
            numbers[message.message_id] = places[message.ticket]
            places[message.ticket] += 1
        return [replace(message, n=numbers[message.message_id]) for message in found]

    def own(self, rows: Iterable[Row]) -> list[Row]:
        """Those of its executions or effects. Ids are those of its stream."""
        return [
            replace(row, message_id=id_)
            for row in rows
            if row.ticket.startswith(self.label)
            and self.has(row.ticket.removeprefix(self.label))
            and (id_ := self.own_id(row.message_id))
        ]

    def own_id(self, recorded: str) -> str:
        """The id in its stream of what the ledger and the effects call ``recorded``; "": it is of another version, or
        of another layout.
        """
        version, of, id_ = recorded.rpartition(OF)
        mine = version == self.version and bool(of) == bool(version) and generation_of(id_) == self.generation
        return stream_id(id_) if mine else ""


def generation_of(message_id: str) -> int:
    """The generation of the layout in which the message was pushed."""
    found = re.match(f"{AT}g([0-9]+)p", suffix_of(message_id))
    return int(found[1]) if found else 0


#: The lane of an app that names no subscription.
ONE = (Subscription("concurrency_stream_group"),)


def draw_subscriptions(seed: int) -> tuple[Subscription, ...]:
    """Three subscriptions, of which one or two have a filter."""
    draw = random.Random(f"subscriptions {seed}")

    def wants() -> tuple[str, ...]:
        return tuple(sorted(draw.sample(KINDS, draw.choice((1, 2)))))

    filtered = draw.sample(("failing", "slow", "plain"), draw.choice((1, 2)))
    made = {name: wants() if name in filtered else () for name in ("failing", "slow", "plain")}
    found = [
        Subscription("failing", made["failing"], label="failing/"),
        Subscription("slow", made["slow"], times=4, fails=False, label="slow/"),
        Subscription("plain", made["plain"], fails=False, label="plain/"),
    ]
    # The first one is struck by the faults of a lane.
    draw.shuffle(found)
    return tuple(found)


def split(subscriptions: Sequence[Subscription], partitions: int) -> tuple[Subscription, ...]:
    """The lanes of these subscriptions on a stream of so many partitions."""
    return tuple(
        replace(one, partition=number, partitions=partitions) for one in subscriptions for number in range(partitions)
    )


def draw_partitions(seed: int) -> int:
    """How many partitions the stream has."""
    return random.Random(f"partitions {seed}").choice((1, 2, 3))


def environment(subscriptions: Sequence[Subscription]) -> dict[str, str]:
    """What makes `tests.chaos.app` have these."""
    found = {PARTITIONS: str(subscriptions[0].partitions)} if subscriptions[0].partitions > 1 else {}
    if not _several(subscriptions):
        return found
    options = {
        one.name: {"task": "chaos.work", **({"filter": {"kind": list(one.wants)}} if one.wants else {})}
        for one in subscriptions
    }
    [fails] = {one.name for one in subscriptions if one.fails}
    # Entries shall leave the stream in the run, and not before a feeder that lost a reply has looked for its own.
    return {**found, SUBSCRIPTIONS: json.dumps(options), LIMITED_IN: fails, "CHAOS_RETENTION": "15"}


def _several(subscriptions: Sequence[Subscription]) -> bool:
    return bool(subscriptions[0].label)


def addressed(subscriptions: Sequence[Subscription], payload: dict[str, Any], kind: str) -> dict[str, Any]:
    """The payload with what befalls the message in each subscription."""
    if not _several(subscriptions):
        return payload
    inside = {
        one.name: {"ms": one.times * payload["ms"] + one.times - 1, **({} if one.fails else {"until": 1})}
        for one in subscriptions
    }
    return {**payload, "kind": kind, "in": inside}


def label_of(subscription: str, ticket: str, *, several: bool) -> str:
    """How the ledger and the effects name a ticket."""
    return f"{subscription}/{ticket}" if several else ticket


def evidence_of(
    subscription: Subscription,
    messages: Sequence[Message],
    executions: Sequence[Execution],
    effects: Sequence[Effect],
    letters: Sequence[Letter],
    rest: Rest,
    notes: Notes,
    max_attempts: int,
    *,
    struck: bool,
) -> Evidence:
    """What the checks get for one subscription. ``struck``: its operator gave the orders of the run."""
    wanted = subscription.wanted(messages)
    places = {message.message_id: message.n for message in wanted}
    # Where the stream is split, a letter names the partition, too.
    notes = replace(notes, replayed=set(map(stream_id, notes.replayed)))

    def renumbered(rows: Iterable[Row]) -> list[Row]:
        return [replace(row, n=places.get(row.message_id, -1)) for row in subscription.own(rows)]

    if not struck:
        notes = replace(notes, replayed=set(), replays=0, replays_in_doubt=0)
    return Evidence(
        wanted,
        renumbered(executions),
        renumbered(effects),
        [
            replace(letter, message_id=stream_id(letter.message_id), ticket=subscription.label + letter.ticket)
            for letter in letters
        ],
        rest,
        notes,
        max_attempts,
    )
