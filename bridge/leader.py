"""The leader of one lane: reads messages and outcomes, and moves the lane on, one script for each batch.

One thread, one loop. It sleeps in two blocking reads at once (the stream, the outcome stream), on two connections that
it polls together, so that it wakes within a round trip of anything that happens and costs nothing while nothing does.
Under load whatever came in while the last script ran makes up the next batch.

Whatever goes wrong between the picture and Redis (a lost reply, a refused record) is answered in one way: the picture
is thrown away and read anew.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson
from celery.utils.log import get_logger

from bridge.about import arrive, facts
from bridge.breaker import Breakers
from bridge.connect import Wire, client
from bridge.envelope import OPENING, Envelopes
from bridge.faults import MessageAtFault, fault_of
from bridge.giving_up import GivingUp
from bridge.inbox import Inbox
from bridge.intake import Intake
from bridge.lane import Lane
from bridge.names import WorkerWord
from bridge.picture import Consumer, Ticket
from bridge.planner import Planner
from bridge.queues import Queues
from bridge.rebuild import Rebuild
from bridge.recovery import Recovery
from bridge.refill import Refill
from bridge.registration import Registrations
from bridge.retention import Retention
from bridge.rising import Rising
from bridge.routing.errors import GroupMoved, LaneConflict
from bridge.routing.ids import id_key
from bridge.routing.messages import EntryParser, Message, unreadable
from bridge.routing.transitions import READ_BYTES, Batch, Dispatch, Leadership, Read, advance, introduce, read
from bridge.server_clock import ServerClock
from bridge.settling import Settling
from bridge.slack import Slack
from bridge.strays import Strays
from bridge.ticket_tasks import RESERVED, ticket_tasks
from bridge.traits import Traits

if TYPE_CHECKING:
    from celery import Celery

    from bridge.lane_settings import LaneSettings

logger = get_logger(__name__)

#: Entries in one read of the stream, and outcome entries in one read.
READ_COUNT = 500
#: Bytes of fields beside the payload with which an entry is handed over whole.
BESIDE_BYTES = 64 * 1024
#: Bytes of an entry that is handed over whole where only names are wanted.
NAMES_BYTES = 4096
#: Longest sleep, in seconds: how late a timer may be when nothing else happens.
BLOCK_S = 5.0
#: Seconds between two looks at the leases.
LOOK_S = 1.0


class Leader:
    """Leads a lane for one term; `run` returns when it was asked to stop, and raises when it cannot go on."""

    def __init__(self, app: Celery, url: str, settings: LaneSettings, token: str, clock: ServerClock) -> None:
        self._app = app
        self._settings = settings
        self.clock = clock
        keys = settings.keys
        self._lead = Leadership(keys, token, settings.master)
        self._redis = client(url, timeout_s=10.0, single=True)
        self.lane = Lane(settings, now_ms=clock.lane_ms)
        #: What this master says of itself.
        self.facts = facts(app, master=True)
        self.registrations = Registrations()
        self.traits = Traits(app, settings, self.registrations)
        self.breakers = Breakers(self.lane)
        self._intake = Intake(self)
        self.settling = Settling(
            self.lane,
            max_attempts=self.traits.max_attempts,
            delay_ms=settings.backoff.delay_ms,
            parks=self.traits.parks,
            breakers=self.breakers,
            letters_full=lambda: not self._intake.open,
        )
        #: Ticket tasks of this master's own app.
        self.own_tasks = ticket_tasks(app)
        self._envelopes = Envelopes(app, self.traits.ignores_result)
        self._planner = Planner(self.lane, self._envelopes, self.traits.of)
        self._slack = Slack(self.lane)
        self.parser = EntryParser(
            default_task=settings.default_task,
            max_payload=settings.max_payload,
            known_tasks=self.own_tasks,
            # Of a name that this app has for something else no message is meant.
            foreign=lambda name: name not in app.tasks and not name.startswith(RESERVED),
        )
        self._entries = Wire(url)
        self._outcomes = Wire(url)
        self.wire = Wire(url, timeout_s=10.0)
        self._registered: dict[Wire, Any] = {}
        self._last_outcome = "0-0"
        self._wake_here, self._wake_there = socket.socketpair()
        self._wake_here.setblocking(False)
        self._stop = False
        self._look_at = 0.0
        #: Whether there may be more to read without being woken.
        self._more = True
        #: When the outcome stream is read next (monotonic).
        self._ask_at = 0.0
        #: Bytes of the largest entry of the last read; until then nothing is known.
        self._largest = READ_BYTES
        #: Deliveries in one entry of the history, on average.
        self._rows_per_entry = 1.0
        self.queues = Queues(self)
        self.recovery = Recovery(self)
        self.strays = Strays(self)
        self.retention = Retention(self)
        self._giving_up = GivingUp(self)
        self._rebuild = Rebuild(self)
        self._refill = Refill(self)
        self._rising = Rising(self)
        self._inbox = Inbox(self)

    # -- what recovery and rebuild share -------------------------------------------------------------------------

    @property
    def redis(self) -> Any:
        return self._redis

    @property
    def leadership(self) -> Leadership:
        return self._lead

    @property
    def settings(self) -> LaneSettings:
        return self._settings

    @property
    def last_outcome(self) -> str:
        """Id of the last outcome entry that was read and settled."""
        return self._last_outcome

    @property
    def behind(self) -> bool:
        """Whether what leaders before this one had read is not all in the picture yet."""
        return self._rebuild.behind

    # -- control from other threads --------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ends `run` soon. Safe in signal handlers and other threads."""
        self._stop = True
        self.wake()

    def look(self) -> None:
        """Looks at the leases now (a heartbeat is missing, a worker said that it goes offline)."""
        self._look_at = 0.0
        self.wake()

    def look_within(self, seconds: float) -> None:
        """Looks at the leases after so long at the latest. For the leader's own thread."""
        self._look_at = min(self._look_at, time.monotonic() + seconds)

    def wake(self) -> None:
        with suppress(OSError):
            self._wake_there.send(b"!")

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self, led: Callable[[], bool]) -> None:
        """Leads until `stop`, or until ``led`` says that the leader's lease is over.

        Raises `NotLeading`, `LaneConflict`, redis errors: the caller starts over with a new `Leader`.
        """
        try:
            self._look_around()
            self._giving_up.recall()
            self._intake.look()
            self._rebuild.run()
            with selectors.DefaultSelector() as selector:
                selector.register(self._wake_here, selectors.EVENT_READ)
                while not self._stop and led():
                    self._turn(selector)
        finally:
            self._entries.close()
            self._outcomes.close()
            self.wire.close()
            self._redis.close()
            self._wake_here.close()
            self._wake_there.close()

    def _look_around(self) -> None:
        settings = self._settings
        # A newer version may have had the lane meanwhile.
        arrive(self._redis, self._app)
        introduce(self._redis, self._lead, orjson.dumps(self.facts))
        uptime_s = int(self._redis.info("server").get("uptime_in_seconds", 0))
        if uptime_s < settings.lease:
            # Everything starts at once: the workers could not renew while the server was away.
            self.recovery.grant_amnesty()
        self.queues.know_server(uptime_s)
        if not settings.history:
            # A history with a hole in it would look like one of a lane that lost messages.
            self.wire.call("DEL", settings.keys.history)

    def _turn(self, selector: selectors.BaseSelector) -> None:
        keys = self._settings.keys
        lane = self.lane
        block_ms = int(BLOCK_S * 1000)
        pause = self._ask_at - time.monotonic()
        if not self._outcomes.asked and pause <= 0:
            self._outcomes.ask(
                "XREAD", "COUNT", READ_COUNT, "BLOCK", block_ms, "STREAMS", keys.outcomes, self._last_outcome
            )
        hungry = self._intake.open and not self.behind and not lane.sated
        if hungry and not self._more and not self._entries.asked:
            # Only to be woken: entries are read by a script, which reads for the leader of the current term alone, and
            # only on from where the group has read to. So whatever is newer than that is news.
            read_to = "-".join(map(str, lane.read_to))
            self._entries.ask("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", keys.stream, read_to)
        for wire in (self._entries, self._outcomes):
            if wire.asked and self._registered.get(wire) is not wire.file:
                selector.register(wire.file, selectors.EVENT_READ)
                self._registered[wire] = wire.file
        now_ms = self.clock.lane_ms()
        timeout = max(0.0, min(BLOCK_S, self._look_at - time.monotonic()))
        waits = self._planner.left_some or self._rising.waits or self._refill.waits
        if waits or self.behind or (hungry and self._more):
            timeout = 0.0
        if pause > 0:
            timeout = min(timeout, pause)
        if lane.backoffs:
            timeout = max(0.0, min(timeout, (lane.backoffs[0][0] - now_ms) / 1000))
        ready = {key.fileobj for key, _ in selector.select(timeout)}
        if self._wake_here in ready:
            self._wake_here.recv(4096)
        batch = Batch()
        settled = False
        if self._outcomes.asked and self._outcomes.file in ready:
            self.settle_outcomes(self._outcomes.answer(), batch)
            settled = True
        lane.wake(self.clock.lane_ms())
        self._rising.run(batch)
        woken = self._entries.asked and self._entries.file in ready and bool(self._entries.answer())
        self._more = self._more or woken
        if hungry and self._more:
            self._read_entries(batch)
        self.advance(batch)
        if settled:
            pause_s = self._slack.seconds()
            self._ask_at = time.monotonic() + pause_s if pause_s else 0.0
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            self._intake.look()
            self.recovery.look()
            self.breakers.look()
            self._giving_up.look()
            self.strays.look()
            self.retention.remove()
            # The group may have been set back by hand, which wakes nobody.
            self._more = True
        if self.behind:
            self._rebuild.read_on()
        self.refill()

    def refill(self) -> None:
        """Reads messages again that are not in memory, if somebody wants them."""
        self._refill.run()

    def _read_entries(self, batch: Batch) -> None:
        read_to = self.lane.read_to
        try:
            found = self.read_on(f"{read_to[0]}-{read_to[1]}")
        except GroupMoved as exc:
            self.strays.put_group_back(str(exc))
            return
        self._more = found.more
        if not found.entries:
            # What woke this was deleted since.
            return
        self.strays.was_read(len(found.entries))
        for entry in found.entries:
            self.ingest(entry, batch)
        self.lane.read_to = id_key(found.entries[-1][0].decode())

    def read_on(self, read_to: str = "", *, after: str = ">", names: bool = False) -> Read:
        """Reads as `bridge.routing.transitions.read` does, as many as it can be after what the last read brought.
        ``names``: of what is large only the beginnings are wanted.
        """
        first = 16 if self._largest <= BESIDE_BYTES else 1
        limit = NAMES_BYTES if names else self._settings.max_payload + BESIDE_BYTES
        found = read(self._redis, self._lead, READ_COUNT, read_to, after=after, limit=limit, first=first)
        if found.entries:
            self._largest = found.largest
        return found

    def ingest(self, entry: Any, batch: Batch) -> None:
        """Takes one pending entry, as a read brings it, into the picture."""
        id_ = entry[0].decode()
        fault = fault_of(id_)
        try:
            found = self.parser.parse_entry(entry) if fault is None else unreadable(entry, fault)
            if isinstance(found, Message):
                self.lane.ingest(found, batch)
            else:
                self.lane.refuse(found, batch)
        except LaneConflict:
            raise
        except Exception as exc:
            logger.exception("cannot take in message %s", id_)
            raise MessageAtFault(id_, exc) from exc

    def settle_outcomes(self, reply: Any, batch: Batch) -> int:
        """Settles what a read of the outcome stream brought; the number of entries."""
        if not reply:
            return 0
        entries = reply[0][1]
        # Another read may have brought these before, while this one was waiting.
        if id_key(entries[0][0].decode()) <= id_key(self._last_outcome):
            known = id_key(self._last_outcome)
            entries = [entry for entry in entries if id_key(entry[0].decode()) > known]
            if not entries:
                return 0
        self._last_outcome = self._inbox.take(entries, batch)
        return len(entries)

    def settle_all(self) -> None:
        """Reads the outcome stream to its end: before anything is judged lost."""
        while True:
            reply = self.wire.call(
                "XREAD", "COUNT", READ_COUNT, "STREAMS", self._settings.keys.outcomes, self._last_outcome
            )
            batch = Batch()
            count = self.settle_outcomes(reply, batch)
            self.advance(batch)
            if count < READ_COUNT:
                return

    def advance(self, batch: Batch) -> None:
        """Plans what can be dispatched, sends the batch, and takes the result into the picture."""
        lane = self.lane
        dispatched: dict[Ticket, int] = self._planner.plan(batch, self.clock.lane_ms())
        lane.close(batch, set(dispatched))
        if not batch:
            lane.committed({}, 0)
            return
        batch.history_cap = self.learn_history_cap(len(batch.history))
        done = advance(self._redis, self._lead, OPENING, batch)
        lane.committed(dispatched, done.base)
        self.strays.told(done, batch)
        self.retention.settled(batch)
        self._intake.settled(batch)
        self._inbox.answer()

    def learn_history_cap(self, rows: int) -> int:
        """Learns from a batch with so many rows how many an entry of the history has on average (none: nothing to
        learn); the entries that it may have, so that it holds about ``bridge_history`` deliveries.
        """
        if rows:
            self._rows_per_entry += (rows - self._rows_per_entry) * 0.02
        return max(1, int(self._settings.history / self._rows_per_entry))

    def text_again(self, ticket: Ticket, consumer: Consumer) -> bytes:
        """The Celery message of a run in flight, once more: with the fences that it has, and marked as in doubt."""
        return self._planner.text_again(ticket, consumer)

    def say(self, consumer: Consumer, word: WorkerWord, batch: Batch) -> None:
        """Sends a word to a worker, through its queue."""
        to = batch.dispatches.setdefault(consumer.name, Dispatch(consumer.name, consumer.queue))
        # The script puts a fence into every text; no message has this one.
        batch.fences += 1
        to.texts.append(self._envelopes.word(consumer.incarnation, consumer.queue, word))
