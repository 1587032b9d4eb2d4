"""The lanes of a master process that have nothing to do. They cost no thread, and no connection of their own.

In a process that leads many lanes, a lane *sleeps* while it is at rest (`Leader.go_on`): nothing is undone, and nothing
is due later. The process keeps the lead, and renews it with all others. The leader keeps its picture, so a lane is not
read again when it wakes up. One thread has three connections for all lanes that sleep:

- One blocking read of all their streams and outcome streams. It notices at once a new entry, an outcome, an operator's
  order, and a consumer that comes, shuts down, or dies with a notice.
- Every `GROUPS_S` seconds, a look at the groups of their streams. It notices a group that was set back, destroyed, or
  whose entries were acknowledged by hand, and a deleted stream. Where a stream has other groups, it counts as a
  comparison, for which the leaders of other lanes wait (`bridge.leader.stream.held_back`).
- When a delayed message is due, a glance.
- Every `CHECK_S` seconds, for each lane, the checks that a leader that is awake makes each second: leases of consumers,
  drain orders, dead letters, retention by age, changes by hand.

When something happens to a lane, it gets a *glance*: a turn of its loop on this thread, which dispatches a new message.
If something is left to do after it, the lane wakes up: it gets a thread and connections.

When the connection is lost, the server may have lost writes. All lanes wake up then, and are read again.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from celery.utils.log import get_logger
from redis.exceptions import RedisError, ResponseError

from bridge.leader.step.term import ANSWER_S
from bridge.link.connections import Wire, client, is_outage, renew
from bridge.routing.connection import with_raw_replies
from bridge.routing.errors import NotLeading
from bridge.routing.groups import groups_in
from bridge.routing.ids import id_key
from bridge.routing.transitions import all_agreed

if TYPE_CHECKING:
    from bridge.leader.leader import Leader, SleepingPlace
    from bridge.link.health import Health
    from bridge.link.outage import Outage
    from bridge.master.election import Election
    from bridge.routing.keys import LaneKeys

logger = get_logger(__name__)

#: A process that leads at most this many lanes lets none of them sleep.
AWAKE = 4
#: Most lanes that are read at the same time, when a master is elected for many.
STARTING = 8
#: Longest blocking read, in seconds.
BLOCK_S = 5.0
#: Seconds between two looks at the groups.
GROUPS_S = 5.0
#: Seconds between two checks of one lane.
CHECK_S = 300.0
#: Seconds for which new sleepers are gathered before the blocking read begins again with all of them.
GATHER_S = 0.1
#: Seconds between two tries while the server is away.
RETRY_S = 0.2


class Sleeper(Protocol):
    """A lane of this process, as this module needs it: `bridge.master.lane_master.LaneMaster`."""

    @property
    def keys(self) -> LaneKeys: ...
    @property
    def leader(self) -> Leader: ...
    @property
    def election(self) -> Election: ...
    @property
    def outage(self) -> Outage: ...
    @property
    def sleeps_on(self) -> bool: ...
    def named_thread(self) -> AbstractContextManager[None]: ...
    def wake_up(self, *, again: bool) -> None: ...
    def end(self) -> None: ...


class Sleepers:
    """The lanes of one process that sleep, on a thread of their own. ``leading``: number of lanes that it leads."""

    def __init__(self, url: str, outage: Outage, health: Health, leading: Callable[[], int]) -> None:
        self._outage = outage
        self._health = health
        self._leading = leading
        #: Held by a lane while it is read and begins.
        self.starting = threading.BoundedSemaphore(STARTING)
        # Its selector does the waiting. The timeout is for all else.
        self._blocking = Wire(url, timeout_s=ANSWER_S)
        #: Lent to lanes for a glance.
        self._redis = client(url, timeout_s=ANSWER_S, single=True)
        self._wire = Wire(url, timeout_s=ANSWER_S)
        self._lock = threading.Lock()
        self._new: list[Sleeper] = []
        self._closed = False
        #: Lane -> how it was left, and when it is checked next (monotonic seconds).
        self._places: dict[Sleeper, SleepingPlace] = {}
        self._check_at: dict[Sleeper, float] = {}
        #: Lane -> when its next delayed message is due (monotonic seconds), where there is one.
        self._due_at: dict[Sleeper, float] = {}
        self._look_at = 0.0
        #: Whether the server was away.
        self._missed = False
        self._wake_here, self._wake_there = socket.socketpair()
        self._wake_here.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="bridge-sleepers", daemon=True)

    # -- control from other threads --------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def may_rest(self) -> bool:
        """Whether this process leads so many lanes that those at rest should sleep."""
        return self._leading() > AWAKE

    def add(self, lane: Sleeper) -> bool:
        """Takes over a lane that is at rest. False: the thread has ended."""
        with self._lock:
            if self._closed:
                return False
            self._new.append(lane)
        self.poke()
        return True

    def poke(self) -> None:
        """Makes the thread look soon which lanes go on sleeping."""
        with suppress(OSError):
            self._wake_there.send(b"!")

    def stop(self) -> None:
        """Ends the thread when no lane sleeps any more. No lane is taken over from now on."""
        with self._lock:
            self._closed = True
        self.poke()

    def join(self, timeout_s: float) -> bool:
        """Returns whether the thread has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take_in():
                self._health.turn()
                try:
                    self._turn()
                except (RedisError, OSError) as exc:
                    self._lost(exc)
                except Exception:
                    logger.exception("a defect in the thread of the lanes that sleep: they wake up")
                    self._wake_all()
        finally:
            for wire in (self._blocking, self._wire, self._redis):
                wire.close()
            self._wake_here.close()
            self._wake_there.close()

    def _take_in(self) -> bool:
        """Takes in new sleepers, and ends those that do not go on sleeping. Returns whether the thread goes on."""
        with self._lock:
            new, self._new = self._new, []
            closed = self._closed
        now = time.monotonic()
        for lane in new:
            self._note(lane)
            # The checks of the lanes are spread over the interval.
            self._check_at[lane] = now + CHECK_S * (0.2 + 0.8 * (hash(lane.keys.prefix) % 997) / 997)
        if new:
            # The blocking read began without them.
            self._blocking.close()
        for lane in [lane for lane in self._places if closed or not lane.sleeps_on]:
            self._forget(lane)
            lane.end()
        return not (closed and not self._places)

    def _forget(self, lane: Sleeper) -> None:
        del self._places[lane], self._check_at[lane]
        self._due_at.pop(lane, None)

    def _note(self, lane: Sleeper) -> None:
        """The lane sleeps on as it is now."""
        self._places[lane] = lane.leader.sleeping_place
        due_in_s = lane.leader.due_in_s
        if due_in_s is None:
            self._due_at.pop(lane, None)
        else:
            self._due_at[lane] = time.monotonic() + due_in_s

    def _turn(self) -> None:
        if self._missed:
            self._wire.call("PING")
            self._wake_all()
        now = time.monotonic()
        if self._places and not self._blocking.asked:
            self._blocking.ask(*self._question())
        due = min([self._look_at, *self._check_at.values(), *self._due_at.values()]) if self._places else now + BLOCK_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_here, selectors.EVENT_READ)
            if self._blocking.asked:
                selector.register(self._blocking.file, selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select(max(0.0, min(BLOCK_S, due - now)))}
        if self._wake_here in ready:
            # Often several lanes come to rest in the same moment.
            time.sleep(GATHER_S)
            self._wake_here.recv(4096)
        # Nothing was asked on these for a while.
        self._wire.renew()
        renew(self._redis)
        if self._blocking.asked and self._blocking.file in ready:
            for lane in self._named(self._blocking.answer()):
                self._glance(lane)
        self._blocking.expect(BLOCK_S + ANSWER_S)
        now = time.monotonic()
        for lane in [lane for lane, at in self._due_at.items() if now >= at]:
            self._glance(lane)
        if now >= self._look_at and self._places:
            self._look_at = now + GROUPS_S
            for lane in self._changed():
                self._glance(lane, check=True)
        for lane in [lane for lane, at in self._check_at.items() if now >= at]:
            self._check_at[lane] = now + CHECK_S
            self._glance(lane, check=True)

    def _question(self) -> Sequence[Any]:
        """The blocking read. Where several lanes have one stream, it begins at the lane that has read least."""
        since: dict[str, str] = {}
        for place in self._places.values():
            for key, id_ in ((place.keys.stream, place.read_to), (place.keys.outcomes, place.last_outcome)):
                known = since.get(key)
                since[key] = id_ if known is None or id_key(id_) < id_key(known) else known
        return ("XREAD", "COUNT", 1, "BLOCK", int(BLOCK_S * 1000), "STREAMS", *since, *since.values())

    def _named(self, reply: Any) -> list[Sleeper]:
        """The lanes whose streams have new entries, by a reply of the blocking read."""
        found = {key.decode(): id_key(entries[0][0].decode()) for key, entries in reply or ()}
        none = (0, 0)
        return [
            lane
            for lane, place in self._places.items()
            if found.get(place.keys.stream, none) > id_key(place.read_to)
            or found.get(place.keys.outcomes, none) > id_key(place.last_outcome)
        ]

    def _changed(self) -> list[Sleeper]:
        """The lanes whose group was changed since they fell asleep."""
        lanes: dict[str, list[Sleeper]] = defaultdict(list)
        for lane, place in self._places.items():
            lanes[place.keys.stream].append(lane)
        with with_raw_replies(self._redis.pipeline(transaction=False)) as pipe:
            for stream in lanes:
                pipe.execute_command("XINFO", "GROUPS", stream)
            replies = pipe.execute(raise_on_error=False)
        changed = []
        agreed = []
        for stream, reply in zip(lanes, replies, strict=True):
            try:
                groups = groups_in(reply)
            except ResponseError:
                groups = {}
            for lane in lanes[stream]:
                place = self._places[lane]
                group = groups.get(place.keys.group.encode())
                if group is None or group.pending != place.pending or id_key(group.read_to) != id_key(place.read_to):
                    changed.append(lane)
                elif len(groups) > 1:
                    agreed.append(place.leadership)
        all_agreed(self._redis, agreed)
        return changed

    def _glance(self, lane: Sleeper, *, check: bool = False) -> None:
        if not lane.sleeps_on:
            # The next turn ends it.
            return
        with lane.named_thread():
            try:
                rests = lane.leader.glance(self._redis, self._wire, check=check)
                again = False
            except NotLeading:
                lane.election.forfeit()
                return
            except Exception as exc:
                if is_outage(exc):
                    raise
                # The lane's own thread meets the same error, and handles it.
                logger.warning("reading the lane again: %s", exc)
                rests, again = False, True
        if rests:
            self._note(lane)
            return
        self._forget(lane)
        lane.wake_up(again=again)

    # -- outages ---------------------------------------------------------------------------------------------------

    def _lost(self, exc: Exception) -> None:
        """The connection was lost, or the server refuses. All lanes are read again when it is back."""
        self._blocking.close()
        if not self._places:
            # They have all ended meanwhile: nobody here waits for the server, and asking it again has no purpose.
            self._missed = False
            self._outage.over()
            time.sleep(RETRY_S)
            return
        if not is_outage(exc):
            self._wake_all()
            return
        self._missed = True
        self._outage.met(exc)
        time.sleep(RETRY_S)

    def _wake_all(self) -> None:
        self._missed = False
        self._outage.over()
        for lane in list(self._places):
            self._forget(lane)
            lane.outage.noted()
            lane.wake_up(again=True)
