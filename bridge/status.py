"""One look at a lane: who leads, who works, how much is where. For `bridge status`.

Two round trips, whatever the backlog: what the lane's keys say of themselves (lengths and summaries, never their
members), in one MULTI so that the numbers belong together; then one lease, one report and one queue length for each
consumer. Nothing here grows with the number of messages or tickets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from redis.exceptions import ResponseError

from bridge.connect import without_password

if TYPE_CHECKING:
    from redis import Redis

    from bridge.settings import Settings

#: The version from which on a server knows how much of a stream a group has not read.
TELLS_LAG = (7, 0)


@dataclass(frozen=True)
class Leading:
    """Who leads the lane. ``lease_ms``: what is left of the lead, in ms."""

    holder: str
    term: int
    lease_ms: int


@dataclass(frozen=True)
class ConsumerStatus:
    """One consumer of the lane. None stands for what is not known."""

    name: str
    #: Its lease holds.
    alive: bool
    #: It is registered; False: only its name is left in the group, with what it had in flight.
    registered: bool
    #: Pool processes.
    slots: int | None
    pool: str | None
    pid: int | None
    incarnation: str | None
    #: Messages pending under its name.
    in_flight: int
    #: Tickets that it held when it last renewed its lease; None before the first renewal.
    tickets: int | None
    #: Celery messages that it has not fetched yet.
    queued: int
    #: What is left of its lease, in ms.
    lease_ms: int
    #: How long it has been here, in ms.
    up_ms: int | None


@dataclass(frozen=True)
class LaneStatus:
    """What `look` saw. Counts are of messages; ages in ms by the server's clock."""

    stream: str
    group: str
    url: str
    server: str
    #: Entries in the stream, handled ones too.
    length: int
    #: The consumer group exists.
    has_group: bool
    leader: Leading | None
    #: None: not known, and ``unread_why`` says why.
    unread: int | None
    unread_why: str
    waiting: int
    in_flight: int
    awaiting_retry: int
    dead: int
    parked: int
    #: Age of the oldest message that is neither done nor dead; None when there is none.
    oldest_undone_ms: int | None
    #: Outcomes that the leader has not settled yet.
    outcomes: int
    counters: dict[str, int]
    consumers: tuple[ConsumerStatus, ...]
    #: What keeps the lane from moving, a sentence each, with what to do.
    problems: tuple[str, ...] = field(default=())


def look(redis: Redis, settings: Settings) -> LaneStatus:
    """Looks at the lane of ``settings``. Raises redis errors."""
    keys = settings.keys
    with redis.pipeline(transaction=True) as pipe:
        pipe.time()
        pipe.info("server")
        pipe.get(keys.leader)
        pipe.pttl(keys.leader)
        pipe.zcard(keys.retries)
        pipe.xlen(keys.dead)
        pipe.xlen(keys.outcomes)
        pipe.xlen(keys.stream)
        pipe.hgetall(keys.counts)
        pipe.hgetall(keys.consumers)
        pipe.execute_command("XINFO", "GROUPS", keys.stream)
        pipe.execute_command("XPENDING", keys.stream, keys.group)
        replies = pipe.execute(raise_on_error=False)
    # A stream or a group that nobody has made yet is a state, not an error.
    pending_raw = _unless_missing(replies.pop())
    groups_raw = _unless_missing(replies.pop()) or []
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    time_, info, token, leader_left, retries, dead, outcomes, length, counts, registered = replies
    now_ms = time_[0] * 1000 + time_[1] // 1000
    group = next((g for g in map(_as_dict, groups_raw) if g[b"name"] == keys.group.encode()), None)
    pending = _Pending.of(pending_raw, settings.master)
    registrations = {name.decode(): orjson.loads(text) for name, text in registered.items()}

    last_delivered = group[b"last-delivered-id"].decode() if group else "0-0"
    with redis.pipeline(transaction=False) as pipe:
        pipe.execute_command("XRANGE", keys.stream, f"({last_delivered}", "+", "COUNT", 1)
        for name, told in registrations.items():
            pipe.pttl(keys.lease(told["incarnation"]))
            pipe.get(keys.held(told["incarnation"]))
            pipe.llen(keys.queue(name))
        next_unread, *of_consumers = pipe.execute()

    consumers = _consumers(registrations, of_consumers, pending, now_ms)
    unread, why = _unread(group, next_unread, length, str(info["redis_version"]))
    leader = None
    if token is not None:
        term, _, holder = token.decode().partition(" ")
        leader = Leading(holder, int(term), max(0, leader_left))
    oldest = pending.first_ms
    if oldest is None and next_unread:
        oldest = _ms_of(next_unread[0][0])
    seen = LaneStatus(
        stream=keys.stream,
        group=keys.group,
        url=without_password(settings.redis_url),
        server=_server(info),
        length=length,
        has_group=group is not None,
        leader=leader,
        unread=unread,
        unread_why=why,
        waiting=max(0, pending.of_master - retries),
        in_flight=sum(pending.of_others.values()),
        awaiting_retry=retries,
        dead=dead,
        parked=0,
        oldest_undone_ms=None if oldest is None else max(0, now_ms - oldest),
        outcomes=outcomes,
        counters={name.decode(): int(value) for name, value in sorted(counts.items())},
        consumers=consumers,
    )
    return _with_problems(seen)


@dataclass(frozen=True)
class _Pending:
    """The group's pending entries, by whose name they are under."""

    first_ms: int | None
    of_master: int
    of_others: dict[str, int]

    @classmethod
    def of(cls, summary: Any, master: str) -> _Pending:
        if not summary or not summary[0]:
            return cls(None, 0, {})
        counts = {name.decode(errors="replace"): int(number) for name, number in summary[3] or ()}
        return cls(_ms_of(summary[1]), counts.pop(master, 0), counts)


def _consumers(
    registrations: dict[str, Any], replies: list[Any], pending: _Pending, now_ms: int
) -> tuple[ConsumerStatus, ...]:
    found = []
    for i, (name, told) in enumerate(registrations.items()):
        lease_ms, held, queued = replies[3 * i : 3 * i + 3]
        since = told.get("since")
        found.append(
            ConsumerStatus(
                name=name,
                alive=lease_ms > 0,
                registered=True,
                slots=told.get("slots"),
                pool=told.get("pool"),
                pid=told.get("pid"),
                incarnation=told["incarnation"],
                in_flight=pending.of_others.get(name, 0),
                tickets=len(orjson.loads(held)["fences"]) if held else None,
                queued=queued,
                lease_ms=max(0, lease_ms),
                up_ms=None if since is None else max(0, now_ms - int(since * 1000)),
            )
        )
    for name, number in pending.of_others.items():
        if name not in registrations and number:
            found.append(ConsumerStatus(name, False, False, None, None, None, None, number, None, 0, 0, None))
    return tuple(sorted(found, key=lambda consumer: consumer.name))


def _unread(group: dict[bytes, Any] | None, next_unread: Any, length: int, version: str) -> tuple[int | None, str]:
    """(messages that the group has not read, why this is not known)."""
    if group is None:
        # Its first master will make the group from the stream's beginning.
        return length, ""
    if not next_unread:
        return 0, ""
    lag = group.get(b"lag")
    if lag is not None:
        # Never below what is seen: the two were asked one after the other.
        return max(1, int(lag)), ""
    if tuple(int(part) for part in version.split(".")[:2]) < TELLS_LAG:
        return None, "unknown (server before 7.0)"
    return None, "unknown (entries were deleted from the stream)"


def _with_problems(seen: LaneStatus) -> LaneStatus:
    from dataclasses import replace

    problems = []
    if seen.leader is None:
        problems.append("no master leads: nothing is dispatched or settled; start one with `bridge run`")
    if not any(consumer.alive for consumer in seen.consumers):
        problems.append("no consumer is alive: nothing can run; start a worker with `celery -A APP worker -n w1@%h`")
    if not seen.has_group:
        problems.append("the consumer group does not exist yet: the first master to lead makes it")
    lost = [c.name for c in seen.consumers if not c.alive and c.in_flight]
    if lost:
        problems.append(f"gone with messages in flight: {', '.join(lost)}; the leader moves them to others")
    return replace(seen, problems=tuple(problems))


def _server(info: dict[str, Any]) -> str:
    if info.get("server_name") == "valkey":
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}"


def _unless_missing(reply: Any) -> Any:
    """A reply; None when it is the error that the stream or the group is not there."""
    if isinstance(reply, ResponseError) and ("no such key" in str(reply) or "NOGROUP" in str(reply)):
        return None
    if isinstance(reply, Exception):
        raise reply
    return reply


def _as_dict(flat: Any) -> dict[bytes, Any]:
    if isinstance(flat, dict):
        return {key if isinstance(key, bytes) else key.encode(): value for key, value in flat.items()}
    return {flat[i]: flat[i + 1] for i in range(0, len(flat), 2)}


def _ms_of(id_: bytes | str) -> int:
    text = id_.decode() if isinstance(id_, bytes) else id_
    return int(text.partition("-")[0])
