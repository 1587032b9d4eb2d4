"""A whole lane in a real Redis: seeded without the scripts, and compared as a whole after one of them ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
from redis.client import Pipeline

from bridge.routing import records
from bridge.routing.batch import Batch, Dispatch
from bridge.routing.ids import id_key, member_of
from bridge.routing.keys import LaneKeys
from bridge.routing.states import State
from bridge.routing.transitions import Leadership

#: (ticket, message ids)
Runs = Sequence[tuple[str, list[str]]]

#: A redis-py client. Its replies are typed as unions over protocols and over its asyncio twin; here they are plain.
Client = Any

MASTER = "master"
TOKEN = "7 master@here"
OPENING = '{"headers":{"bridge_fence":'
LEASE_MS = 60_000
#: A lane that some tests add beside the neighbour.
THIRD = "third"
#: The streams of other versions.
OLDER, NEWER = "tickets:v0", "tickets:v2"

#: Ticket ids that break what is careless with text.
HOSTILE = [
    "T 42",
    "a:b:c",
    "{tag}",
    "line\nbreak\r\n",
    "\"quoted\" 'too' \\",
    "🎫 ünï",
    "$3\r\nfoo",
    "%s %d %",
    "[1,2]",
    "\0nul",
    "x" * 512,
]


def text(value: Any) -> str:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)


def entries_of(client: Client, key: str) -> list[tuple[str, dict[str, str]]]:
    """The entries of a stream."""
    return _entries(client.xrange(key))


def _entries(raw: Any) -> list[tuple[str, dict[str, str]]]:
    return [(text(id_), {text(k): text(v) for k, v in fields.items()}) for id_, fields in raw]


#: Type -> how its whole value is asked for, and how it is shown. Of a stream: its entries; see `_groups`.
_VALUES: dict[str, tuple[Callable[[Client, bytes], object], Callable[[Any], Any]]] = {
    "string": (lambda pipe, key: pipe.get(key), text),
    "hash": (lambda pipe, key: pipe.hgetall(key), lambda value: {text(k): text(v) for k, v in value.items()}),
    "list": (lambda pipe, key: pipe.lrange(key, 0, -1), lambda value: [text(v) for v in value]),
    "set": (lambda pipe, key: pipe.smembers(key), lambda value: sorted(text(v) for v in value)),
    "zset": (
        lambda pipe, key: pipe.zrange(key, 0, -1, withscores=True),
        lambda value: {text(k): float(v) for k, v in value},
    ),
    "stream": (lambda pipe, key: pipe.xrange(key), _entries),
}


def _groups(client: Client, keys: Sequence[bytes | str]) -> dict[str, dict[str, Any]]:
    """The groups of each of these streams."""
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.xinfo_groups(key)
        groups = [(key, group) for key, found in zip(keys, pipe.execute(), strict=True) for group in found]
        for key, group in groups:
            pipe.xinfo_consumers(key, group["name"])
            pipe.xpending_range(key, group["name"], "-", "+", max(1, group["pending"]))
        replies = pipe.execute()
    seen: dict[str, dict[str, Any]] = {text(key): {} for key in keys}
    for (key, group), consumers, pending in zip(groups, replies[::2], replies[1::2], strict=True):
        seen[text(key)][text(group["name"])] = {
            "last": text(group["last-delivered-id"]),
            "consumers": sorted(text(consumer["name"]) for consumer in consumers),
            "pending": {text(row["message_id"]): text(row["consumer"]) for row in pending},
        }
    return seen


def snapshot(client: Client) -> dict[str, Any]:
    """Everything that is on the server: types, ends, contents, groups and pending entries."""
    raw = list(client.scan_iter(count=1000))
    with client.pipeline(transaction=False) as pipe:
        for key in raw:
            pipe.type(key)
            pipe.pttl(key)
        replies = pipe.execute()
        kinds = [text(kind) for kind in replies[::2]]
        for key, kind in zip(raw, kinds, strict=True):
            _VALUES[kind][0](pipe, key)
        values = pipe.execute()
    found: dict[str, Any] = {}
    for key, kind, end, value in zip(raw, kinds, replies[1::2], values, strict=True):
        found[text(key)] = {"type": kind, "expires": int(end) >= 0, "value": _VALUES[kind][1](value)}
    for name, groups in _groups(
        client, [key for key, kind in zip(raw, kinds, strict=True) if kind == "stream"]
    ).items():
        found[name]["value"] = {"entries": found[name]["value"], "groups": groups}
    return found


def changes(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """The keys that differ."""
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def fields_of(world: dict[str, Any], key: str) -> list[dict[str, str]]:
    """The entries of a stream in a snapshot, without their ids."""
    return [fields for _, fields in world[key]["value"]["entries"]] if key in world else []


def states_of(client: Client, keys: LaneKeys, message_id: str, master: str = MASTER) -> set[State]:
    """The states that Redis alone shows for an entry, by the sentences of `bridge.routing.states`; one, if I1 holds."""
    group = _groups(client, [keys.stream])[keys.stream][keys.group]
    owner = group["pending"].get(message_id)
    known = [records.parse(value) for value in client.hgetall(keys.tickets).values()]
    found: set[State] = set()
    if id_key(message_id) > id_key(group["last"]):
        found.add(State.UNREAD)
    if any(record.in_flight and message_id in record.ids for record in known):
        found.add(State.IN_FLIGHT)
    awaits = any(not (r.in_flight or r.parked) and r.ids[0] == message_id for r in known)
    if awaits:
        found.add(State.AWAITING_RETRY)
    delayed_name = keys.delayed_consumer(master)
    if owner == delayed_name and client.zscore(keys.delayed, member_of(message_id)) is not None:
        found.add(State.DELAYED)
    shelves = {
        keys.parked_consumer(master, text(name))
        for name, value in client.hgetall(keys.tickets).items()
        if records.parse(value).parked
    }
    if (owner == master or owner in shelves) and not awaits:
        found.add(State.WAITING)
    if owner not in (None, master, delayed_name) and owner not in shelves and State.IN_FLIGHT not in found:
        raise AssertionError(f"{message_id} is pending under {owner}, and no record says why")
    if owner is None and State.UNREAD not in found:
        dead = any(fields["message_id"] == message_id for _, fields in entries_of(client, keys.dead))
        found.add(State.DEAD if dead else State.DONE)
    return found


def state_of(client: Client, keys: LaneKeys, message_id: str, master: str = MASTER) -> State:
    """The one state of an entry. AssertionError when it is in none, or in two (I1)."""
    found = states_of(client, keys, message_id, master)
    assert len(found) == 1, f"{message_id} is in {len(found)} states: {found}"
    return found.pop()


#: A stream that is repartitioned, and its partitions.
SPLIT = "orders"
PARTITIONS = ("p0", "p1", "g1:p0", "g1:p1", "g1:p2")


class World:
    """A lane with everything in it: tickets in every state, two consumers, a second group, a user's own keys."""

    def __init__(self, client: Client, stream: str = "ticket_stream", group: str = "bridge") -> None:
        self.client = client
        self.keys = LaneKeys(stream, group)
        self.lead = Leadership(self.keys, TOKEN, MASTER)
        self._pushed = 0

    def snapshot(self) -> dict[str, Any]:
        return snapshot(self.client)

    def state(self, message_id: str) -> State:
        return state_of(self.client, self.keys, message_id)

    # -- seeding -----------------------------------------------------------------------------------------------------

    def begin(self) -> World:
        """A group, and a leader."""
        self.client.xgroup_create(self.keys.stream, self.keys.group, "0", mkstream=True)
        self.client.set(self.keys.leader, TOKEN, px=LEASE_MS)
        self.client.set(self.keys.term, 7)
        return self

    @contextmanager
    def at_once(self) -> Iterator[Client]:
        """What the client is told within the block goes to the server at its end, in one round trip, without replies.
        Yields the client of the block.
        """
        if isinstance(self.client, Pipeline):
            yield self.client
            return
        client = self.client
        with client.pipeline(transaction=False) as pipe:
            self.client = pipe
            try:
                yield pipe
                pipe.execute()
            finally:
                self.client = client

    def push(self, ticket: str, payload: str = '{"n": 1}', count: int = 1) -> list[str]:
        """Adds messages of a ticket; their ids are 1-0, 2-0 and so on."""
        with self.at_once() as pipe:
            return [self._add(pipe, ticket, payload) for _ in range(count)]

    def _add(self, pipe: Client, ticket: str, payload: str) -> str:
        self._pushed += 1
        id_ = f"{self._pushed}-0"
        pipe.execute_command("XADD", self.keys.stream, id_, "ticket_id", ticket, "payload", payload)
        return id_

    def read(self, count: int = 100_000) -> None:
        """The master reads."""
        arguments = ("GROUP", self.keys.group, MASTER, "COUNT", count, "STREAMS", self.keys.stream, ">")
        self.client.execute_command("XREADGROUP", *arguments)

    def pushed(self, ticket: str, count: int = 1) -> list[str]:
        """Messages that the master has read."""
        ids = self.push(ticket, count=count)
        self.read()
        return ids

    def in_flight(self, ticket: str, ids: list[str], consumer: str, fence: int, attempt: int = 1) -> str:
        """Puts pending messages in flight, by hand; the record."""
        for id_ in ids:
            self.client.xclaim(self.keys.stream, self.keys.group, consumer, 0, [id_], justid=True)
        text_ = records.record(fence, records.tail(consumer, incarnation(consumer), attempt, ids, 1000))
        self.client.hset(self.keys.tickets, ticket, text_)
        return text_

    def awaiting(self, ticket: str, id_: str, attempt: int = 2, due_ms: int = 5000) -> str:
        """Puts a pending message in its backoff, by hand; the record."""
        text_ = records.record(0, records.tail("", "", attempt, [id_], 1000, "ValueError: no"))
        self.client.hset(self.keys.tickets, ticket, text_)
        self.client.zadd(self.keys.retries, {ticket: due_ms})
        return text_

    def consumer(self, name: str) -> bytes:
        """Registers a consumer by hand; its registration."""
        registration = orjson.dumps({"incarnation": incarnation(name), "queue": self.keys.queue(name), "slots": 2})
        self.client.hset(self.keys.consumers, name, registration)
        self.client.set(self.keys.lease(incarnation(name)), name, px=LEASE_MS)
        self.client.set(self.keys.held(incarnation(name)), '{"n":1,"fences":[]}', px=LEASE_MS)
        return registration

    def populated(self) -> World:
        """Everything at once: what a refusal must leave as it is, and a step must not touch but where it says so."""
        with self.at_once() as client:
            self._populate(client)
        return self

    def _populate(self, client: Client) -> None:
        self.begin()
        keys = self.keys
        self.busy = self.pushed("busy", 4)
        self.other = self.pushed("other", 2)
        self.late = self.pushed("late", 2)
        self.idle = self.pushed("idle", 3)
        self.done = self.pushed("done")
        self.dead = self.pushed("dead")
        self.parked = self.pushed("stands", 2)
        self.delayed = self.pushed("delayed", 2)
        self.unread = self.push("busy", count=2)
        client.xack(keys.stream, keys.group, *self.done, *self.dead)
        shelf = keys.parked_consumer(MASTER, "stands")
        client.xclaim(keys.stream, keys.group, shelf, 0, self.parked, justid=True)
        client.xclaim(keys.stream, keys.group, keys.delayed_consumer(MASTER), 0, self.delayed, justid=True)
        client.zadd(keys.delayed, {member_of(id_): 50 for id_ in self.delayed})
        standing = records.tail("", "", 3, self.parked[:1], 1000, "message 0-9 is dead")
        client.hset(keys.tickets, "stands", records.record(records.PARKED, standing))
        self.registrations = {name: self.consumer(name) for name in ("w1@a", "w2@b")}
        self.busy_record = self.in_flight("busy", self.busy[:2], "w1@a", 100)
        self.other_record = self.in_flight("other", self.other[:1], "w2@b", 200)
        self.late_record = self.awaiting("late", self.late[0])
        client.set(keys.fence, 300)
        client.hset(keys.applied, mapping={"busy": 90, "other": 50})
        client.hset(keys.counts, mapping={"done": 1, "failed": 3})
        client.execute_command("XADD", keys.outcomes, "1-0", "i", incarnation("w2@b"), "o", "[]")
        client.execute_command("XADD", keys.outcomes, "2-0", "i", incarnation("w1@a"), "o", "[]")
        client.execute_command("XADD", keys.dead, "1-0", "message_id", self.dead[0], "reason", "gave up")
        client.lpush(keys.queue("w1@a"), "older message")
        # Neighbours: another group on the stream, another lane, and what belongs to the user.
        client.xgroup_create(keys.stream, "neighbour", "0")
        client.execute_command("XREADGROUP", "GROUP", "neighbour", MASTER, "COUNT", 3, "STREAMS", keys.stream, ">")
        near = LaneKeys(keys.stream, "neighbour")
        client.hset(near.tickets, "busy", self.busy_record)
        client.set(near.leader, TOKEN, px=LEASE_MS)
        client.hset("user:account", mapping={"balance": "10", "name": "ü"})

    # -- what scripts are given --------------------------------------------------------------------------------------

    def dispatch(self, batch: Batch, consumer: str, runs: Runs, attempt: int = 1) -> Dispatch:
        """Adds one Celery message with ``runs`` to the batch, as the planner would."""
        to = batch.dispatches.setdefault(consumer, Dispatch(consumer, self.keys.queue(consumer)))
        for ticket, ids in runs:
            to.ids += ids
            to.runs.append((ticket, batch.fences, records.tail(consumer, incarnation(consumer), attempt, ids, 1000)))
            batch.fences += len(ids)
        to.texts.append(f',"what":{len(runs)}}}}}'.encode())
        return to

    def lane_keys(self) -> list[LaneKeys]:
        versions = [LaneKeys(stream, self.keys.group) for stream in (OLDER, NEWER)]
        split = [LaneKeys(f"{SPLIT}:{part}", group) for part in PARTITIONS for group in ("a", "b", "c")]
        return [self.keys, *(LaneKeys(self.keys.stream, group) for group in ("neighbour", THIRD)), *versions, *split]


def incarnation(consumer: str) -> str:
    """The incarnation under which the seeded world knows a consumer."""
    return f"life-of-{consumer}"
