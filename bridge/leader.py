"""The leader of one lane: reads messages and outcomes, and moves the lane on, one script for each batch.

One thread, one loop. It sleeps in two blocking reads at once (the stream, the outcome stream), on two connections that
it polls together, so that it wakes within a round trip of anything that happens and costs nothing while nothing does.
Under load whatever came in while the last script ran makes up the next batch.

Whatever goes wrong between the picture and Redis (a lost reply, a refused record) is answered in one way: the picture
is thrown away and read anew.
"""

from __future__ import annotations

import random
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson
from celery.utils.log import get_logger

from bridge.connect import Wire, client
from bridge.envelope import OPENING, Envelopes
from bridge.lane import Lane
from bridge.names import WorkerWord
from bridge.orderdesk import OrderDesk
from bridge.outcomes import decode
from bridge.picture import Consumer, Ticket, id_key
from bridge.planner import Planner, TaskTraits
from bridge.queues import Queues
from bridge.rebuild import Rebuild
from bridge.recovery import Recovery
from bridge.refill import Refill
from bridge.retention import Retention
from bridge.settling import Settling
from bridge.strays import Strays
from routing.errors import GroupMoved
from routing.messages import EntryParser, Message, Refusal
from routing.transitions import Batch, Dispatch, Leadership, advance, read

if TYPE_CHECKING:
    from celery import Celery

    from bridge.settings import Settings

logger = get_logger(__name__)

#: Entries in one read of the stream, and outcome entries in one read.
READ_COUNT = 500
#: Bytes that one read of the stream should bring at most.
READ_BYTES = 16 * 1024 * 1024
#: Longest sleep, in seconds: how late a timer may be when nothing else happens.
BLOCK_S = 5.0
#: Seconds between two looks at the leases.
LOOK_S = 1.0
#: Longest pause, in seconds, in which outcomes gather before they are read.
GATHER_S = 0.002


class Leader:
    """Leads a lane for one term; `run` returns when it was asked to stop, and raises when it cannot go on."""

    def __init__(self, app: Celery, settings: Settings, token: str) -> None:
        self._app = app
        self._settings = settings
        keys = settings.keys
        self._lead = Leadership(keys, token, settings.master)
        self._redis = client(settings.redis_url, timeout_s=10.0, single=True)
        self.lane = Lane(settings, now_ms=lambda: int(time.time() * 1000))
        self.settling = Settling(
            self.lane,
            max_attempts=self._max_attempts,
            delay_ms=lambda attempt: settings.backoff.delay_ms(attempt, random.random()),
            parks=self._parks,
        )
        self._traits: dict[str, TaskTraits] = {}
        self._envelopes = Envelopes(app)
        self._planner = Planner(self.lane, self._envelopes, self._traits_of)
        self.parser = EntryParser(
            default_task=settings.default_task, max_payload=settings.max_payload, known_tasks=app.tasks.keys()
        )
        self._entries = Wire(settings.redis_url)
        self._outcomes = Wire(settings.redis_url)
        self.wire = Wire(settings.redis_url, timeout_s=10.0)
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
        self._average_bytes = 1024.0
        #: Deliveries in one entry of the history, on average.
        self._rows_per_entry = 1.0
        self.queues = Queues(self)
        self.recovery = Recovery(self)
        self.strays = Strays(self)
        self.retention = Retention(self)
        self._refill = Refill(self)
        self._desk = OrderDesk(self)

    # -- what recovery and rebuild share -------------------------------------------------------------------------

    @property
    def redis(self) -> Any:
        return self._redis

    @property
    def leadership(self) -> Leadership:
        return self._lead

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def last_outcome(self) -> str:
        """Id of the last outcome entry that was read and settled."""
        return self._last_outcome

    # -- control from other threads --------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ends `run` soon. Safe in signal handlers and other threads."""
        self._stop = True
        self.wake()

    def look(self) -> None:
        """Looks at the leases now (a heartbeat is missing, a worker said that it goes offline)."""
        self._look_at = 0.0
        self.wake()

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
            Rebuild(self).run()
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
        hungry = not lane.sated
        if hungry and not self._more and not self._entries.asked:
            # Only to be woken: entries are read by a script, which reads for the leader of the current term alone, and
            # only on from where the group has read to. So whatever is newer than that is news.
            read_to = "-".join(map(str, lane.read_to))
            self._entries.ask("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", keys.stream, read_to)
        for wire in (self._entries, self._outcomes):
            if wire.asked and self._registered.get(wire) is not wire.file:
                selector.register(wire.file, selectors.EVENT_READ)
                self._registered[wire] = wire.file
        now = time.time()
        timeout = max(0.0, min(BLOCK_S, self._look_at - time.monotonic()))
        if hungry and self._more:
            timeout = 0.0
        if pause > 0:
            timeout = min(timeout, pause)
        if lane.backoffs:
            timeout = max(0.0, min(timeout, lane.backoffs[0][0] / 1000 - now))
        ready = {key.fileobj for key, _ in selector.select(timeout)}
        if self._wake_here in ready:
            self._wake_here.recv(4096)
        batch = Batch()
        settled = False
        if self._outcomes.asked and self._outcomes.file in ready:
            self.settle_outcomes(self._outcomes.answer(), batch)
            settled = True
        woken = self._entries.asked and self._entries.file in ready and bool(self._entries.answer())
        self._more = self._more or woken
        if hungry and self._more:
            self._read_entries(batch)
        lane.wake(int(time.time() * 1000))
        self.advance(batch)
        if settled:
            pause_s = self._slack_s()
            # A selector sleeps whole milliseconds: what is shorter is no pause.
            self._ask_at = time.monotonic() + pause_s if pause_s >= GATHER_S / 4 else 0.0
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            self.recovery.look()
            self.strays.look()
            self.retention.remove()
            # The group may have been set back by hand, which wakes nobody.
            self._more = True
        if lane.spilled:
            self._refill.run()

    def _slack_s(self) -> float:
        """For how long no worker will want for work, in seconds: outcomes may gather so long, and be settled in fewer,
        larger steps.
        """
        slack_s = GATHER_S
        for consumer in self.lane.consumers.values():
            if not consumer.tickets:
                continue
            if consumer.parcels >= 2 * consumer.slots:
                # Every process has something ahead; half of it is left for what follows.
                slack_s = min(slack_s, consumer.backlog_ms / consumer.slots / 2000 / 2)
                continue
            for ticket in consumer.tickets:
                parcel = ticket.parcel
                if parcel is None or parcel.left < 2:
                    return 0.0
                slack_s = min(slack_s, (parcel.left - 1) * parcel.share_ms / 2000)
        return slack_s

    def _read_entries(self, batch: Batch) -> None:
        count = int(max(8, min(READ_COUNT, READ_BYTES / self._average_bytes)))
        read_to = self.lane.read_to
        try:
            entries = read(self._redis, self._lead, count, f"{read_to[0]}-{read_to[1]}")
        except GroupMoved as exc:
            self.strays.put_group_back(str(exc))
            return
        self._more = len(entries) == count
        if not entries:
            # What woke this was deleted since.
            return
        size = 0
        for id_, fields in entries:
            size += self.ingest(id_.decode(), fields, batch)
        self.lane.read_to = id_key(entries[-1][0].decode())
        self._average_bytes += (size / len(entries) - self._average_bytes) * 0.2

    def ingest(self, id_: str, fields: Any, batch: Batch) -> int:
        """Takes one pending entry into the picture; the bytes that it holds."""
        found = self.parser.parse(id_, fields or ())
        if isinstance(found, Message):
            self.lane.ingest(found, batch)
            return len(found.payload) + 64
        assert isinstance(found, Refusal)
        self.lane.refuse(found, batch)
        return sum(map(len, found.fields))

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
        for id_, fields in entries:
            kind = fields[2]
            if kind == b"o":
                for outcome in decode(fields[3]):
                    self.settling.settle(outcome, batch)
            elif kind == b"leaving":
                self.recovery.close_consumer(fields[1].decode())
            elif kind == b"order":
                batch.orders.append(id_.decode())
                self._desk.take(fields[1].decode(), fields[3], batch)
            elif kind == b"gone":
                # Its pool was done before: nothing of it was cut off.
                self.recovery.given_up[fields[1].decode()] = frozenset()
                self._look_at = 0.0
            elif kind == b"died":
                self.recovery.given_up[fields[1].decode()] = frozenset(orjson.loads(fields[5]))
                self._look_at = 0.0
            elif kind == b"joined":
                self._look_at = 0.0
        self._last_outcome = entries[-1][0].decode()
        ms, _, sequence = self._last_outcome.partition("-")
        batch.keep_outcomes_from = f"{ms}-{int(sequence) + 1}"
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
        dispatched: dict[Ticket, int] = self._planner.plan(batch, int(time.time() * 1000))
        lane.close(batch, set(dispatched))
        if not batch:
            lane.committed({}, 0)
            return
        batch.history_cap = self.learn_history_cap(len(batch.history))
        done = advance(self._redis, self._lead, OPENING, batch)
        lane.committed(dispatched, done.base)
        self.strays.told(done, batch)
        self.retention.settled(batch)
        self._desk.answer()

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

    # -- what tasks say --------------------------------------------------------------------------------------------

    def _max_attempts(self, name: str) -> int:
        task = self._app.tasks.get(name)
        return int(getattr(task, "bridge_max_attempts", None) or self._settings.max_attempts)

    def _parks(self, name: str) -> bool:
        task = self._app.tasks.get(name)
        return (getattr(task, "bridge_on_dead", None) or self._settings.on_dead) == "park"

    def _traits_of(self, name: str) -> TaskTraits:
        found = self._traits.get(name)
        if found is None:
            task = self._app.tasks[name]
            bundled = getattr(task, "bridge_bundle", None) is not False and not task.rate_limit
            # In a bundle a message may have run to its end and be lost with it, and nobody would know to undo it.
            bundled = bundled and getattr(task, "bridge_rollback", None) is None
            found = self._traits[name] = TaskTraits(bundled, (task.time_limit, task.soft_time_limit))
        return found
