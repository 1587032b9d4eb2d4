"""A lane on a real server beside the reference: each call is made to both, and then both must be the same."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any
from unittest.mock import patch

from bridge.routing import delaying, effects, leadership, membership, transitions
from bridge.routing.batch import Batch
from bridge.routing.errors import DispatchRefused, LaneConflict, NotLeading
from bridge.routing.ids import member_of
from bridge.routing.keys import LaneKeys
from bridge.routing.transitions import Leadership
from tests.protocol.guards import Guard
from tests.reference.contents import Fields
from tests.reference.lane import OtherVersion, ReferenceLane
from tests.script_calls import lead
from tests.scripts.world import LEASE_MS, OPENING, Client, snapshot, text

#: Bytes after which a read brings no more.
READ_BYTES = 40_000


#: Script -> its function, called with a client, the keys, and the arguments that the reference takes.
SCRIPTS: dict[str, Callable[..., object]] = {
    "reroute": lambda c, _, *args: transitions.reroute(c, *args),
    "adopt": lambda c, _, *args: transitions.adopt(c, *args),
    "resend": lambda c, _, *args: transitions.resend(c, *args),
    "recall": lambda c, _, *args: [text(message) for message in transitions.recall(c, *args)],
    "forget": lambda c, _, *args: transitions.forget(c, *args),
    "lead": lambda c, keys, holder: lead(c, keys, holder, LEASE_MS)[:2],
    "renew": lambda c, keys, token: leadership.renew(c, [leadership.Lead(keys, token, LEASE_MS)])[0],
    "resign": leadership.resign,
    "begin_term": lambda c, keys, token, holder: leadership.begin_term(c, keys, token, holder, LEASE_MS),
    "register": lambda c, k, name, life, *args: membership.register(c, k, name, life, LEASE_MS, *args)[0],
    "goodbye": membership.goodbye,
    "died": membership.died,
    "apply": lambda c, keys, *args: [code for code, _ in effects.apply(c, keys, *args)],
}


class Differs(AssertionError):
    """A script is not what the reference says."""


class Beside:
    """A server with nothing but this lane, and the reference."""

    def __init__(self, client: Client, dropped: AbstractSet[Guard] = frozenset()) -> None:
        self.client = client
        self.keys = LaneKeys("ticket_stream", "bridge")
        self.reference = ReferenceLane(self.keys, dropped)
        # Ids and fences are those that the server gave: the script runs first.
        self.reference.stamp = self._next_id
        self.reference.now_us = lambda: self._base
        self._base = 0
        #: Key of a stream -> the last id in it that the reference knows.
        self._last: dict[str, str] = {}
        #: The lanes of an older version of the stream, and of a newer one.
        self.older, self.newer = LaneKeys("stream:v0", "bridge"), LaneKeys("stream:v2", "bridge")
        self.reference.versions = {keys.stream: OtherVersion() for keys in (self.older, self.newer)}
        client.xgroup_create(self.keys.stream, self.keys.group, "0", mkstream=True)

    def both(self, script: str, *args: Any) -> Any:
        """Makes a call to the server, then to the reference; what came of it: a value, or the type of the error."""
        found = _result(lambda: SCRIPTS[script](self.client, self.keys, *args))
        _same(script, found, _result(lambda: getattr(self.reference, script)(*args)))
        return found

    def check(self) -> None:
        """Compares all keys."""
        found = snapshot(self.client)
        wanted = contents(self.reference)
        there = {}
        for key, value in ((key, shown["value"]) for key, shown in found.items()):
            if key == self.keys.stream:
                group = value["groups"][self.keys.group]
                there[key] = {"last": group["last"], "pending": group["pending"]}
            else:
                there[key] = value["entries"] if isinstance(value, dict) and "groups" in value else value
        for key in sorted({key for key, value in there.items() if value} | wanted.keys()):
            _same(key, there.get(key), wanted.get(key))
        ending = {key for key, shown in found.items() if shown["expires"]}
        leaders = (self.keys.leader, self.older.leader)
        _same("keys that expire", ending, {key for key in wanted if ":lease:" in key or key in leaders})

    def _next_id(self, key: str, _: Fields) -> str:
        found = self.client.xrange(key, f"({self._last.get(key, '0-0')}", count=1)
        self._last[key] = text(found[0][0]) if found else "nothing was added"
        return self._last[key]

    # -- what is called in a way of its own --------------------------------------------------------------------------

    def push(self, id_: str, ticket: str, payload: str) -> None:
        words = ("ticket_id", ticket, "payload", payload)
        self.client.execute_command("XADD", self.keys.stream, id_, *words)
        self.reference.entries[id_] = [word.encode() for word in words]

    def read(self, lead: Leadership, count: int, after: str = ">") -> None:
        """One read, of as many entries as the server brings: those that come first, and not too many bytes."""
        with patch.object(transitions, "READ_BYTES", READ_BYTES):
            found = _result(lambda: transitions.read(self.client, lead, count, after=after, first=4))
        if isinstance(found, type):
            _same("read", found, _result(lambda: self.reference.read(lead, 0, after)))
            return
        assert isinstance(found, transitions.Read)
        ids = [text(entry[0]) for entry in found.entries]
        size = sum(len(word) for entry in found.entries for word in entry[1])
        brought = max(1, len(ids)) if found.more else count
        _same("read", ids, _result(lambda: self.reference.read(lead, brought, after)))
        _same("bytes that were read are too many", size > READ_BYTES + found.largest, False)

    def advance(self, lead: Leadership, batch: Batch) -> None:
        seconds, us = self.client.time()
        found = _result(lambda: transitions.advance(self.client, lead, OPENING, batch))
        self._base = found.base if isinstance(found, transitions.Advanced) else 0
        if self._base:
            _same("a fence is behind the clock", self._base < seconds * 1_000_000 + us, False)
        _same("advance", found, _result(lambda: self.reference.advance(lead, OPENING, batch)))

    def move_due(self, lead: Leadership, count: int, read_to: str, before_ms: int) -> None:
        """``before_ms``: a time that is over."""
        found = _result(lambda: delaying.move_due(self.client, lead, count, read_to, before_ms=before_ms))
        with patch.object(self.reference, "now_us", lambda: before_ms * 1000):
            _same("move_due", found, _result(lambda: self.reference.move_due(lead, count, read_to)))

    def push_older(self, ticket: str) -> None:
        """An old producer adds a message."""
        id_ = text(self.client.xadd(self.older.stream, {"ticket_id": ticket}))
        self.reference.versions[self.older.stream].entries[id_] = ticket

    def lead_older(self, token: str) -> None:
        self.client.set(self.older.leader, token, px=LEASE_MS)
        self.reference.versions[self.older.stream].leader = token

    def note_version(self, keys: LaneKeys, ticket: str, record: str, fence: int) -> None:
        """Another version dispatched, or settled."""
        there = self.reference.versions[keys.stream]
        self.client.hset(keys.tickets, ticket, record)
        self.client.set(keys.fence, fence)
        there.tickets[ticket], there.fence = record, fence

    def lease_expires(self, life: str) -> None:
        self.client.delete(self.keys.lease(life))
        self.reference.leases.pop(life, None)

    def lead_expires(self) -> None:
        self.client.delete(self.keys.leader)
        self.reference.leader = ""


def contents(lane: ReferenceLane) -> dict[str, object]:
    """The keys that must be on the server, each with what is in it."""
    keys = lane.keys
    last = list(lane.entries)[lane.delivered - 1] if lane.delivered else "0-0"
    found: dict[str, object] = {
        keys.stream: {"last": last, "pending": lane.pending},
        keys.leader: lane.leader,
        keys.term: str(lane.term or ""),
        keys.fence: str(lane.fence or ""),
        keys.tickets: lane.tickets,
        keys.applied: {ticket: str(fence) for ticket, fence in lane.applied.items()},
        keys.retries: lane.retries,
        keys.delayed: {member_of(id_): due for id_, due in lane.delayed.items()},
        keys.late: {member_of(id_): due for id_, due in lane.late.items()},
        keys.holding: {member_of(id_): due for id_, due in lane.holding.items()},
        keys.outcomes: list(lane.outcomes.items()),
        keys.dead: list(lane.letters.items()),
        keys.history: list(lane.history.items()),
        keys.counts: {name: str(amount) for name, amount in lane.counts.items()},
        keys.drains: lane.drains,
        keys.consumers: lane.consumers,
        **{keys.queue(name): queue[::-1] for name, queue in lane.queues.items()},
        **{keys.lease(life): name for life, name in lane.leases.items()},
        **lane.effects,
    }
    for stream, there in lane.versions.items():
        of = LaneKeys(stream, keys.group)
        found |= {of.leader: there.leader, of.fence: str(there.fence or ""), of.tickets: there.tickets}
        found[stream] = [(id_, {"ticket_id": ticket}) for id_, ticket in there.entries.items()]
    return {key: value for key, value in found.items() if value}


def _result(call: Callable[[], object]) -> object:
    try:
        return call()
    except DispatchRefused as exc:
        return exc.behind, set(exc.tickets)
    except (NotLeading, LaneConflict) as exc:
        return type(exc)


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Differs(f"{what}: {found!r}; by the reference: {wanted!r}")
