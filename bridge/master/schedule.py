"""Pushes the recurring messages of an app (``bridge_schedule``), each tick once, whichever master leads.

A master that leads a lane of the app does this on a thread of its own. One of several such masters pushes: the leader
of the first lane that has one, in the order of subscriptions and partitions. The script that pushes compares that, and
the last tick that is stored (``routing/lua/tick.lua``). So a tick that a master pushed before it died is not pushed
again, and one that it did not push is pushed by the next leader.

- **Time.** The server's clock decides, as for leases. The script refuses a tick that has not come by it.
- **Missed ticks.** Of the ticks that came while no master ran, the newest is pushed, once; none with ``catch_up`` off.
- **A clock that is set back.** A tick that was pushed is not pushed again. When the last tick is further in the future
  than the interval after it, the clock was wrong before: the entry starts again, also while one master leads.
- **Changes.** An entry with new times starts again at the moment of the change. An entry that is gone loses its field.

Between two ticks this costs the server nothing. Without entries, the thread ends when it has led once, and has deleted
what was stored for earlier ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from bridge.app.installed import bridge_of
from bridge.link.connections import client
from bridge.master.schedule_entries import Entry, entries_of
from bridge.protocol.agreement import app_name
from bridge.routing.errors import NotLeading, TicketBridgeError
from bridge.routing.return_codes import ReturnCode
from bridge.routing.ticks import LastTick, Pusher, drop_ticks, field_of, read_ticks, tick

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

    from bridge.master.lane_master import LaneMaster

logger = get_logger(__name__)

#: Longest sleep, in seconds: the server's clock may be set, and this master may become a leader.
SLEEP_S = 1.0
#: Seconds between two tries after an error.
RETRY_S = 1.0
#: A tick that is later than this counts as missed, in ms.
LATE_MS = 60_000


@dataclass
class _Place:
    """An entry. ``stored``: its last tick, as this stream has it. ``last``: as this or an older version of the stream
    has it. ``next_ms``: when it is looked at next (Unix ms).
    """

    entry: Entry
    field: str
    stored: LastTick | None = None
    last: LastTick | None = None
    next_ms: int = 0

    def learn(self, stored: LastTick | None, last: LastTick | None, now_ms: int) -> None:
        """Takes in what is stored."""
        self.stored, self.last, self.next_ms = stored, last, now_ms
        if last is None or last.times != self.entry.times.text:
            return
        following = self.entry.times.after(last.at_ms)
        if last.at_ms - now_ms <= following - last.at_ms:
            self.next_ms = following
        # Else the clock was wrong when it ticked last: it starts again.


class Schedule:
    """The schedule of ``app``. ``lanes``: those of this process. ``leaders``: the leader keys of all lanes of the
    newest version, in the order in which their leaders are asked for.

    Raises `ConfigurationError` for an entry whose messages cannot be pushed.
    """

    def __init__(self, app: Celery, lanes: Sequence[LaneMaster], leaders: Sequence[str]) -> None:
        self._bridge = bridge_of(app)
        self._stream = self._bridge.settings.lane.stream
        self._app = app_name(app)
        self._lanes = {lane.keys.leader: lane for lane in lanes}
        self._leaders = leaders
        self._layout = self._bridge.layout
        self._places = {e.name: _Place(e, field_of(self._app, e.name)) for e in entries_of(app)}
        self._token = ""
        #: The time of the last turn, by the server's clock (Unix ms).
        self._turned_ms = 0
        self._failing = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bridge-schedule", daemon=True)

    # -- control from other threads --------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread. A push that is under way is finished."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with client(self._bridge.settings.redis_url) as redis:
            while not self._stop.is_set():
                try:
                    wait_s = self._turn(redis)
                    self._failing = False
                except NotLeading:
                    self._token, wait_s = "", RETRY_S
                except (RedisError, OSError, TicketBridgeError) as exc:
                    wait_s = self._failed(exc)
                except Exception:
                    logger.exception("a defect in the schedule, trying again")
                    self._token, wait_s = "", RETRY_S
                if self._token and not self._places:
                    return
                self._stop.wait(wait_s)

    def _failed(self, exc: Exception) -> float:
        if not self._failing:
            logger.warning("the schedule cannot go on, trying again: %s", exc)
        # Whether a push was carried out is not known: what is stored says it.
        self._failing, self._token = True, ""
        return RETRY_S

    def _turn(self, redis: Redis) -> float:
        """Pushes what is due. Returns the seconds until the next turn."""
        led = self._first_led()
        if led is None:
            self._token = ""
            return SLEEP_S
        lane, pusher = led
        now_ms = lane.clock.server_ms
        if pusher.token != self._token:
            if not self._read(redis, pusher, now_ms()):
                return RETRY_S
            self._token = pusher.token
        elif now_ms() < self._turned_ms:
            # The clock was set back. The next ticks may be far away now.
            for place in self._places.values():
                place.learn(place.stored, place.last, now_ms())
        self._turned_ms = now_ms()
        for place in self._places.values():
            if place.next_ms <= now_ms() and not self._stop.is_set():
                self._tick(redis, pusher, place, now_ms)
        next_ms = min((place.next_ms for place in self._places.values()), default=now_ms() + 60_000)
        return max(0.0, min(SLEEP_S, (next_ms - now_ms()) / 1000))

    def _first_led(self) -> tuple[LaneMaster, Pusher] | None:
        for number, key in enumerate(self._leaders):
            lane = self._lanes.get(key)
            if lane is not None and lane.leading and lane.election.leads():
                return lane, Pusher(self._stream, self._leaders[: number + 1], lane.election.token)
        return None

    def _read(self, redis: Redis, pusher: Pusher, now_ms: int) -> bool:
        """Reads what is stored, and deletes what belongs to no entry. False: the leader of an earlier lane does that.
        It may have another app, so this master must look again.
        """
        stored = read_ticks(redis, self._stream, self._app)
        gone = [field_of(self._app, name) for name in stored if name not in self._places]
        if (gone or not self._places) and drop_ticks(redis, pusher, gone) is None:
            return False
        missing = [name for name in self._places if name not in stored]
        for version in reversed(self._bridge.follows):
            if missing:
                # A newer version of the stream goes on where the older one is.
                older = read_ticks(redis, version.stream, self._app)
                stored |= {name: older[name] for name in missing if name in older and name not in stored}
        for name, place in self._places.items():
            place.learn(None if name in missing else stored[name], stored.get(name), now_ms)
        return True

    def _tick(self, redis: Redis, pusher: Pusher, place: _Place, now: Callable[[], int]) -> None:
        """Pushes the newest tick of an entry that is due, or notes that the entry begins now."""
        entry, last, now_ms = place.entry, place.last, now()
        at_ms, begins = now_ms, True
        if last is not None and last.times == entry.times.text and last.at_ms <= now_ms:
            due = entry.times.latest(last.at_ms, now_ms)
            if due is None:
                place.next_ms = entry.times.after(last.at_ms)
                return
            at_ms, begins = due, False
        missed = not begins and not entry.catch_up and now_ms - at_ms > LATE_MS
        messages = () if begins or missed else entry.messages(at_ms)
        noted = LastTick(at_ms, entry.times.text)
        found = tick(redis, pusher, place.field, place.stored, noted, self._layout, entry.task, messages)
        if found.code is ReturnCode.OK:
            place.learn(noted, noted, now_ms)
            self._say(entry, found.ids, last, at_ms, now_ms, begins=begins, missed=missed)
        elif found.code is ReturnCode.CHANGED:
            if found.stored is None and place.stored is None:
                logger.warning("what is stored of the entry %s of the schedule is damaged: it starts again", entry.name)
                drop_ticks(redis, pusher, [place.field])
            place.learn(found.stored, found.stored, now_ms)
        elif found.code is ReturnCode.WAIT:
            place.next_ms = now_ms + found.wait_ms
        elif found.code is ReturnCode.LAYOUT:
            self._layout = found.layout or self._layout
            place.next_ms = now_ms + int(RETRY_S * 1000) * (found.layout is None)
        else:
            # Another master pushes it. What that one stored says when the next tick is. It may be late, so this master
            # does not ask again at once.
            stored = read_ticks(redis, self._stream, self._app).get(entry.name)
            place.learn(stored, stored, now_ms)
            place.next_ms = max(place.next_ms, now_ms + int(RETRY_S * 1000))

    @staticmethod
    def _say(
        entry: Entry, ids: Sequence[str], last: LastTick | None, at_ms: int, now_ms: int, *, begins: bool, missed: bool
    ) -> None:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at_ms / 1000))
        if begins:
            if last is not None and last.times == entry.times.text:
                logger.warning(
                    "the server's clock was set back far: the entry %s of the schedule starts again", entry.name
                )
            else:
                logger.info("the entry %s of the schedule begins: %s", entry.name, entry.times.text)
        elif missed:
            logger.warning("the tick of %s at %s UTC was missed, and is left out", entry.name, when)
        elif now_ms - at_ms > LATE_MS:
            logger.warning("the tick of %s at %s UTC is late: no master pushed it in time", entry.name, when)
        else:
            logger.debug("the tick of %s at %s UTC: %s", entry.name, when, " ".join(ids))
