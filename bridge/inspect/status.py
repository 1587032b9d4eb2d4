"""Reads the state of a lane for `bridge status`: its leader, counts of messages, consumers.

It makes two round trips, some more while messages are delayed, and one more for a limit of the lag in bytes, whatever
the length of the backlog. The first reads lengths and summaries in one MULTI, so that the numbers belong together. The
second reads lease, report and queue of each consumer, and up to `RECORDS` ticket records: they say which tickets are
parked. While messages hold their tickets, it reads those that await something, and the names of parked messages, some
thousand in a round trip, up to a limit. Nothing else here grows with the number of messages or tickets.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError

from bridge.inspect.advice import NOT_OF_AN_APP
from bridge.inspect.holding import Holding, read_holding
from bridge.inspect.notices import notice_problem
from bridge.inspect.oldest import oldest_ms
from bridge.inspect.reasons import reading_stops
from bridge.inspect.roster import ConsumerState, ConsumerStatus, Pending, consumers, registrations_of, request_consumers
from bridge.inspect.stream_status import SAMPLES
from bridge.link.connections import without_password
from bridge.protocol.agreement import differences, readable_facts
from bridge.protocol.drain_orders import read_drain_order
from bridge.protocol.unreadable import read_all, skipped
from bridge.protocol.unserved import UnservedTask, read_unserved
from bridge.routing.counters import ANY, NO_NUMBER, read_counters, uncounted
from bridge.routing.groups import Group, group_in, pending_summary, unless_missing
from bridge.routing.ids import id_key, younger_than
from bridge.routing.leadership import read_token
from bridge.routing.notices import Notices, notices_in
from bridge.routing.numbers import count, duration
from bridge.routing.records import PARKED
from bridge.routing.return_codes import text_of
from bridge.routing.text import one_line

if TYPE_CHECKING:
    from redis import Redis

    from bridge.inspect.advice import Advice
    from bridge.protocol.registration import Registration
    from bridge.routing.keys import LaneKeys
    from bridge.settings.app import Settings
    from bridge.settings.lane import LaneSettings

#: Unread entries that are counted one by one when the server does not know their number. The bytes are approximate.
COUNTED = 1000
COUNTED_BYTES = 4 * 1024 * 1024
#: Ticket records that are read to count the parked tickets (approximate). A ticket has a record while it is in flight,
#: awaits a retry, or is parked.
RECORDS = 10_000
#: How far, in ms, ids must be ahead of the clock before that is said.
AHEAD_MS = 60_000
#: The record of a parked ticket begins with this.
_PARKED = f"[{PARKED},".encode()
#: Counters of events that should not happen, the most serious first.
TROUBLE = ("lost", "suspect", "rerouted", "stale", "tampered", "stalled", "regrouped", "unknown", "skipped")


@dataclass(frozen=True)
class Leading:
    """Who leads the lane. ``lease_ms``: milliseconds until the leader lease ends."""

    holder: str
    term: int
    lease_ms: int


@dataclass(frozen=True)
class LaneStatus:
    """The state of a lane. Counts are of messages. Ages are in ms by the server's clock."""

    stream: str
    group: str
    url: str
    server: str
    #: Entries in the stream, also those that are handled and not removed yet.
    length: int
    #: The consumer group exists.
    has_group: bool
    leader: Leading | None
    unread: int
    #: Why ``unread`` is an upper bound; empty: it is exact.
    unread_why: str
    waiting: int
    in_flight: int
    awaiting_retry: int
    #: Messages that are not due: those that others overtake, and those for which their tickets wait, or will wait. Of
    #: parked tickets, those for which the ticket would wait are in ``parked_messages``.
    delayed: int
    #: Those of ``delayed`` for which their tickets wait, or will wait.
    holding: int
    #: Milliseconds until the next of them is due; below 0: it is overdue. None: there is none.
    next_due_in_ms: int | None
    dead: int
    #: Tickets, and the messages that wait for their release.
    parked: int
    parked_messages: int
    #: False: there are more records than were read, so more tickets may be parked.
    parked_complete: bool
    #: Age of the oldest message that is neither done nor dead nor delayed; None when there is none.
    oldest_undone_ms: int | None
    #: It reads nothing new, since it is beyond ``bridge_max_lag``.
    stopped: bool
    #: Outcomes that the leader has not settled yet.
    outcomes: int
    counters: dict[str, int]
    consumers: tuple[ConsumerStatus, ...]
    #: The Celery app that uses the lane, and the format of its data (`bridge.protocol.agreement`). None: not recorded
    #: yet.
    app: str | None = None
    format: int | None = None
    #: Version and settings of the last leader.
    master: dict[str, Any] = field(default_factory=dict)
    #: Tasks that messages wait for, because no live consumer can run them.
    unserved: tuple[UnservedTask, ...] = field(default=())
    #: Entries of the app's schedule.
    schedule: int = 0
    #: What was sent to the receiver of dead letters; None: there was none.
    notices: Notices | None = None
    #: Values of the lane that are left out, since they cannot be read: one sentence each. ``problems`` has them, too.
    unreadable: tuple[str, ...] = field(default=())
    #: What keeps the lane from moving, and what to do: one sentence each.
    problems: tuple[str, ...] = field(default=())

    @property
    def undone(self) -> int:
        """Messages that it is not done with, without those that others overtake."""
        read = self.waiting + self.in_flight + self.awaiting_retry + self.parked_messages
        return self.unread + read + self.holding


def read_status(redis: Redis, settings: Settings, commands: Advice = NOT_OF_AN_APP) -> LaneStatus:
    """Reads the state of the lane of ``settings``. ``commands``: how problems name commands. Raises redis errors."""
    return replace(_read(redis, settings.lane, settings.redis_url, commands), schedule=len(settings.schedule))


def reading_stop(redis: Redis, lane: LaneSettings, commands: Advice) -> str:
    """Why ``lane`` reads nothing new; empty: it does. Raises redis errors."""
    status = _read(redis, lane, "", commands)
    return "; ".join(reading_stops(lane, stopped=status.stopped, dead=status.dead, commands=commands))


def _read(redis: Redis, lane: LaneSettings, url: str, commands: Advice) -> LaneStatus:
    keys = lane.keys
    with redis.pipeline(transaction=True) as pipe:
        pipe.time()
        pipe.info("server")
        pipe.get(keys.leader)
        pipe.pttl(keys.leader)
        pipe.zcard(keys.retries)
        pipe.zcard(keys.late)
        pipe.zcard(keys.delayed)
        pipe.execute_command("ZRANGEBYSCORE", keys.delayed, "-inf", "+inf", "WITHSCORES", "LIMIT", 0, 1)
        pipe.zcard(keys.holding)
        pipe.xlen(keys.dead)
        pipe.xlen(keys.outcomes)
        pipe.xlen(keys.stream)
        pipe.hgetall(keys.counts)
        pipe.hgetall(keys.consumers)
        pipe.hgetall(keys.drains)
        pipe.hgetall(keys.unserved)
        pipe.hgetall(keys.about)
        pipe.hgetall(keys.notices)
        pipe.execute_command("XINFO", "STREAM", keys.stream)
        pipe.execute_command("XINFO", "GROUPS", keys.stream)
        pipe.execute_command("XPENDING", keys.stream, keys.group)
        replies = pipe.execute(raise_on_error=False)
    # A missing stream or group is no error.
    pending_raw = unless_missing(replies.pop())
    group = group_in(replies.pop(), keys.group)
    stream = _as_dict(unless_missing(replies.pop()) or [])
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    time_, info, token, leader_left, retries, late, *replies = replies
    overtaking, first, holding, dead, outcomes, length, *hashes = replies
    counts, registered, drains, unserved, about, notices = hashes
    now_ms = time_[0] * 1000 + time_[1] // 1000
    unreadable: list[str] = []

    def skip(key: str, field: bytes, value: bytes) -> None:
        unreadable.append(skipped(key, field, value))

    registrations = registrations_of(keys, registered, skip)
    read_all(keys.drains, drains, lambda _name, text: read_drain_order(text), skip)
    counted = read_counters(counts)
    unreadable += [uncounted(keys.counts, name, NO_NUMBER) for name, number in counted.items() if number == ANY]
    pending = Pending.of(pending_raw, lane, registrations, late)
    last_delivered = group.read_to if group else "0-0"
    with redis.pipeline(transaction=False) as pipe:
        pipe.execute_command("XRANGE", keys.stream, *younger_than(last_delivered), "COUNT", 1)
        pipe.execute_command("HSCAN", keys.tickets, 0, "COUNT", RECORDS)
        request_consumers(pipe, keys, registrations)
        next_unread, (cursor, records), *of_consumers = pipe.execute()

    unread, why = length, ""
    if group is not None:
        # If there is no group, the first master makes it from the stream's beginning: all entries are unread.
        pending_count = pending_summary(pending_raw).total
        unread, why = _unread(redis, keys, group, stream, next_unread, length - pending_count)
    leader = None
    if token is not None:
        term, holder = read_token(token)
        leader = Leading(holder, term, max(0, leader_left))
    oldest = oldest_ms(redis, lane, pending, holding, now_ms)
    oldest_unread = id_key(text_of(next_unread[0][0]))[0] if next_unread else None
    if oldest is None:
        oldest = oldest_unread
    held = read_holding(redis, lane, pending, now_ms) if holding else Holding()
    # Member and score, in a list of their own with RESP 3.
    dues = [int((first[0] if len(first) == 1 else first)[1])] if first else []
    dues += [] if held.next_ms is None else [held.next_ms]
    retrying = max(0, retries - held.tickets)
    waiting = max(0, pending.of_master - retrying - held.messages)
    parked = {name.decode(errors="replace") for name, record in _as_dict(records).items() if record.startswith(_PARKED)}
    status = LaneStatus(
        stream=keys.stream,
        group=keys.group,
        url=without_password(url),
        server=_server(info),
        length=length,
        has_group=group is not None,
        leader=leader,
        unread=unread,
        unread_why=why,
        waiting=waiting,
        in_flight=sum(pending.of_consumers.values()),
        awaiting_retry=retrying,
        delayed=overtaking + held.messages,
        holding=held.messages,
        next_due_in_ms=min(dues) - now_ms if dues else None,
        dead=dead,
        # A parked ticket whose record was not read is known if it has shelved messages.
        parked=len(parked | pending.of_parked.keys() if cursor else parked),
        parked_messages=sum(pending.of_parked.values()),
        parked_complete=not cursor,
        oldest_undone_ms=None if oldest is None else max(0, now_ms - oldest),
        stopped=_stopped(redis, lane, unread, length, 0 if oldest_unread is None else now_ms - oldest_unread),
        outcomes=outcomes,
        counters={name: int(number) for name, number in sorted(counted.items()) if number != ANY},
        consumers=consumers(registrations, of_consumers, drains, pending, now_ms),
        unserved=read_unserved(keys.unserved, unserved, skip),
        app=about[b"app"].decode(errors="replace") if b"app" in about else None,
        format=int(about[b"format"]) if b"format" in about else None,
        master=readable_facts(keys, about.get(b"master"), skip),
        notices=notices_in(notices),
    )
    waits = (_unserved(one, now_ms) for one in status.unserved)
    ahead = _ahead(keys.stream, stream, now_ms)
    problems = (*_problems(status, lane, commands), *ahead, *waits, *_differing(status, registrations), *unreadable)
    return replace(status, unreadable=tuple(unreadable), problems=problems)


def _unread(
    redis: Redis, keys: LaneKeys, group: Group, stream: dict[bytes, Any], next_unread: Any, at_most: int
) -> tuple[int, str]:
    """(messages that the group has not read, why there may be fewer). The reason is empty if the number is exact."""
    if not next_unread:
        return 0, ""
    # At least 1, since one was seen. The numbers come from several commands, between which the lane may change.
    known = group.unread(int(stream[b"length"]))
    if known is not None:
        return max(1, known), ""
    read, added = group.entries_read, stream.get(b"entries-added")
    last, deleted = group.read_to, stream.get(b"max-deleted-entry-id", b"").decode()
    if read is not None and added is not None and id_key(deleted) <= id_key(last):
        # The server gives no lag after a deletion. Here all deleted entries had been read, so the difference is exact.
        return max(1, int(added) - read), ""
    size = sum(map(len, next_unread[0][1])) + 1
    count = max(1, min(COUNTED, COUNTED_BYTES // size))
    found = redis.execute_command("XRANGE", keys.stream, *younger_than(last), "COUNT", count)
    if len(found) < count:
        return max(1, len(found)), ""
    return max(count, at_most), "an upper bound: some of them may be done and not removed yet"


def _stopped(redis: Redis, lane: LaneSettings, unread: int, length: int, oldest_ms: int) -> bool:
    """Whether the lane reads nothing new. ``unread``: of ``length`` entries; ``oldest_ms``: the age of the oldest."""
    limit, used = lane.max_lag, None
    if limit.then == "park" and limit.bytes is not None and length:
        # A user who may not ask gets no answer about the bytes.
        with suppress(NoPermissionError):
            used = redis.execute_command("MEMORY", "USAGE", lane.keys.stream, "SAMPLES", SAMPLES)
    return limit.stops(unread, None if used is None else round(used * min(unread, length) / length), oldest_ms / 1000)


def _problems(status: LaneStatus, lane: LaneSettings, commands: Advice) -> list[str]:
    problems = []
    if status.leader is None:
        problems.append(f"no master leads: nothing is dispatched or settled; start one with {commands.master}")
    alive = [consumer for consumer in status.consumers if consumer.alive]
    if not alive:
        problems.append(f"no consumer is alive: nothing can run; start a worker with {commands.worker}")
    elif not any(consumer.state is ConsumerState.OPEN for consumer in alive):
        drained = next((consumer.name for consumer in alive if consumer.draining), None)
        resume = "" if drained is None else f", or {commands.bridge('consumer', 'resume', about=drained)}"
        problems.append(f"no consumer takes anything new: start another worker{resume}")
    if not status.has_group:
        problems.append("the consumer group does not exist yet: the first master to lead makes it")
    lost = [c.name for c in status.consumers if not c.alive and c.in_flight]
    if lost:
        problems.append(f"gone with messages in flight: {', '.join(lost)}; the leader moves them to others")
    stalled = [c.name for c in alive if c.state is ConsumerState.STALLED]
    if stalled:
        problems.append(f"alive, and taking nothing from the queue: {', '.join(stalled)}; look at the log, restart it")
    empty = [c.name for c in alive if c.slots == 0]
    if empty:
        problems.append(
            f"alive, without a pool process that takes messages: {', '.join(empty)}; their pools were shrunk to "
            "nothing, or the processes hang while they start: look at the log"
        )
    problems += reading_stops(lane, stopped=status.stopped, dead=status.dead, commands=commands)
    if problem := notice_problem(status.notices):
        problems.append(problem)
    if status.parked:
        held = f", with {count(status.parked_messages, 'message')} waiting" if status.parked_messages else ""
        problems.append(
            f"{count(status.parked, 'ticket')} parked{held}: {commands.bridge('ticket', 'list', '--parked')} says why"
        )
    return problems


def _ahead(name: str, stream: dict[bytes, Any], now_ms: int) -> list[str]:
    """Says that new entries get ids ahead of the server's clock: of a producer's own, or the clock was set back."""
    ahead_ms = id_key(text_of(stream.get(b"last-generated-id", b"0-0")))[0] - now_ms
    if ahead_ms < AHEAD_MS:
        return []
    return [
        f"the ids of {name} are {duration(ahead_ms)} ahead of the server's clock: until it reaches them, messages that "
        "are due before that are not delayed, and ages are too small"
    ]


def _unserved(one: UnservedTask, now_ms: int) -> str:
    waits = f"{count(one.messages, 'message')} of {count(one.tickets, 'ticket')}"
    verb = "waits" if one.messages == 1 else "wait"
    what = f"{waits} {verb} for {one_line(one.task)} since {duration(max(0, now_ms - one.since_ms))}: {one.why}"
    if one.breaker:
        return f"{what}; when one that is tried succeeds, they go on"
    if one.dead_in_ms is None:
        return f"{what}; start a worker that runs it"
    return f"{what}; start a worker that runs it, or the first is a dead letter in {duration(one.dead_in_ms)}"


def _differing(status: LaneStatus, registrations: dict[str, Registration]) -> list[str]:
    """Sentences about consumers whose version or settings differ from the leader's."""
    differ: dict[str, list[str]] = {}
    for one in status.consumers:
        if one.alive:
            for difference in differences(registrations[one.name].facts, status.master):
                differ.setdefault(difference, []).append(one.name)
    found = []
    for difference, names in differ.items():
        who = ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")
        found.append(f"{who}: {difference.replace('there', 'the master:', 1)}; start all members with the same")
    return found


def _server(info: dict[str, Any]) -> str:
    if info.get("server_name") == "valkey":
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version', 'of an unknown version')}"


def _as_dict(flat: Any) -> dict[bytes, Any]:
    if isinstance(flat, dict):
        return {key if isinstance(key, bytes) else key.encode(): value for key, value in flat.items()}
    return {flat[i]: flat[i + 1] for i in range(0, len(flat), 2)}
