"""Tells a receiver of dead letters by HTTP (``bridge_on_dead_notify``): signed, gathered, at least once.

A thread of the master looks after all lanes that it leads. One blocking read of their dead letters wakes it. Each lane
keeps in Redis up to which letter it has told (``routing/lua/notified.lua``): a request that a receiver has answered
with 2xx moves that. So after a failover the next leader goes on there, and may tell the last letters again.

Requests are at least a time apart (``rate``). What died meanwhile is in the next one: a storm becomes one notice with
the number, and the first few letters of each lane. A request that fails is tried again, later each time. A receiver
that is away for long gets one notice with all that died. One for which a notice is too large (413) gets a smaller one:
what is described is halved, down to the mere numbers. The leaders' loops do not wait for any of this.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from redis.exceptions import RedisError

from bridge.app.installed import bridge_of
from bridge.link.connections import client
from bridge.link.webhook import Webhook, WebhookFailed
from bridge.protocol.agreement import app_name
from bridge.protocol.dead_letters import read_letter
from bridge.protocol.dead_notices import LaneNews, described, notice_id, notice_text
from bridge.routing.connection import with_raw_replies
from bridge.routing.errors import NotLeading
from bridge.routing.notices import note_failed, note_told
from bridge.routing.retention import letters

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

    from bridge.master.lane_master import LaneMaster

logger = get_logger(__name__)

#: Letters of one lane that a notice describes. It counts the others.
DESCRIBED = 20
#: Bytes of the letters that a notice describes. The lanes in it have equal shares.
DESCRIBED_BYTES = 256 * 1024
#: Letters of one lane that a notice counts. The next notice counts the rest.
COUNTED = 10_000
#: Letters that are counted at once.
PAGE = 100
#: Lanes in one notice.
LANES = 50
#: Longest blocking read, in seconds: a lane that is led from now on is looked at after it.
BLOCK_S = 2.0
#: Seconds after which a request that failed is tried again: the first time, and at most.
RETRY_S = 1.0
LONGEST_RETRY_S = 300.0
#: The status of a receiver for which a request has too many bytes.
TOO_LARGE = 413
#: Characters of an error that are kept.
ERROR_CHARS = 200


@dataclass
class _Lane:
    """A lane that is led. ``told``: the last letter that the receiver was told. ``more``: there may be further ones."""

    keys: Any
    token: str
    name: str
    suffix: str
    told: str
    more: bool = True


class DeadNotices:
    """The notices of one process. ``lanes``: those of this process."""

    def __init__(self, app: Celery, lanes: Sequence[LaneMaster]) -> None:
        settings = bridge_of(app).settings
        self._url = settings.redis_url
        self._notify = settings.on_dead_notify
        self._app = app_name(app)
        self._lane_masters = lanes
        self._webhook = Webhook(self._notify) if self._notify else None
        #: The lane that was told last is the last one.
        self._lanes: dict[str, _Lane] = {}
        #: When the next request may be sent (monotonic seconds).
        self._send_at = 0.0
        self._failures = 0
        #: The error that the log has named last.
        self._said = ""
        #: Bytes that a notice may describe. Fewer after the receiver found one too large, as long as this process runs.
        self._most_bytes = DESCRIBED_BYTES
        self._failing = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bridge-dead-notices", daemon=True)

    # -- control from other threads --------------------------------------------------------------------------------

    def start(self) -> None:
        if self._webhook is not None:
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread soon. A request that is under way need not be finished: the next leader sends it again."""
        self._stop.set()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with with_raw_replies(client(self._url, timeout_s=BLOCK_S + 10)) as redis:
            while not self._stop.is_set():
                try:
                    wait_s = self._turn(redis)
                    self._failing = False
                except (RedisError, OSError) as exc:
                    if not self._failing:
                        logger.warning("notices about dead letters cannot go on, trying again: %s", exc)
                    self._failing, wait_s = True, RETRY_S
                    self._lanes.clear()
                except Exception:
                    logger.exception("a defect in the notices about dead letters, trying again")
                    wait_s = 10 * RETRY_S
                    self._lanes.clear()
                self._stop.wait(wait_s)

    def _turn(self, redis: Redis) -> float:
        """Waits for letters, or sends a notice of those that there are. Returns the seconds until the next turn."""
        self._learn(redis)
        if not self._lanes:
            return 1.0
        if not any(lane.more for lane in self._lanes.values()):
            self._wait(redis)
            return 0.0
        wait_s = self._send_at - time.monotonic()
        if wait_s > 0:
            return min(1.0, wait_s)
        news = self._gather(redis)
        if news:
            self._tell(redis, news)
        return 0.0

    def _learn(self, redis: Redis) -> None:
        """Learns which lanes are led."""
        led = {one.keys.prefix: one for one in self._lane_masters if one.leading and one.election.leads()}
        for prefix in list(self._lanes):
            if prefix not in led or self._lanes[prefix].token != led[prefix].election.token:
                del self._lanes[prefix]
        for prefix, master in led.items():
            if prefix not in self._lanes:
                token = master.election.token
                try:
                    told = note_told(redis, master.keys, token, _now_ms())
                except NotLeading:
                    continue
                self._lanes[prefix] = _Lane(master.keys, token, master.name, master.id_suffix, told)

    def _wait(self, redis: Redis) -> None:
        lanes = {lane.keys.dead: lane for lane in self._lanes.values()}
        since = [lane.told for lane in lanes.values()]
        reply: Any = redis.execute_command("XREAD", "COUNT", 1, "BLOCK", int(BLOCK_S * 1000), "STREAMS", *lanes, *since)
        for key, _ in reply or ():
            lanes[key.decode()].more = True

    def _gather(self, redis: Redis) -> list[tuple[_Lane, LaneNews]]:
        found: list[tuple[_Lane, LaneNews]] = []
        room = self._most_bytes // min(LANES, sum(lane.more for lane in self._lanes.values()) or 1)
        for lane in self._lanes.values():
            if not lane.more or len(found) == LANES:
                continue
            page: Any = redis.execute_command("XRANGE", lane.keys.dead, f"({lane.told}", "+", "COUNT", DESCRIBED)
            if not page:
                lane.more = False
                continue
            some = [read_letter(id_, flat) for id_, flat in page]
            last, number = some[-1].id, len(some)
            while len(page) == DESCRIBED and number < COUNTED:
                _, end, more = letters(redis, lane.keys.dead, last, PAGE)
                number, last = number + more, end or last
                if more < PAGE:
                    break
            documents = described(some, lane.suffix, with_payload=self._notify.payload, room=room)
            found.append((lane, LaneNews(lane.keys.stream, lane.name, lane.told, last, number, documents)))
        return found

    def _tell(self, redis: Redis, news: Sequence[tuple[_Lane, LaneNews]]) -> None:
        assert self._webhook is not None
        now_ms = _now_ms()
        told = [one for _, one in news]
        text = notice_text(self._app, now_ms, told)
        error = ""
        try:
            self._webhook.send(notice_id(told), now_ms // 1000, text)
        except WebhookFailed as exc:
            error = str(exc)[:ERROR_CHARS]
            if exc.status == TOO_LARGE:
                # Else no later letter would be told either.
                self._most_bytes = min(self._most_bytes, len(text)) // 2
        # Before the notes, which fail while Redis is away: the receiver got this request all the same.
        self._send_at = time.monotonic() + self._pause_s(error)
        for lane, one in news:
            try:
                if error:
                    note_failed(redis, lane.keys, lane.token, _now_ms(), error)
                else:
                    lane.told = note_told(redis, lane.keys, lane.token, _now_ms(), to=one.last, letters=one.number)
            except NotLeading:
                self._lanes.pop(lane.keys.prefix, None)
            else:
                if not error:
                    # The next notice begins with the lanes that this one had no room for.
                    self._lanes[lane.keys.prefix] = self._lanes.pop(lane.keys.prefix)

    def _pause_s(self, error: str) -> float:
        """Seconds until the next request may be sent. ``error``: why this one failed; empty: it did not."""
        if not error:
            if self._failures:
                logger.warning("notices about dead letters arrive again")
            self._failures, self._said = 0, ""
            return 60 / self._notify.rate
        if error != self._said:
            self._said = error
            logger.warning("a notice about dead letters failed, trying again: %s", error)
        self._failures += 1
        longest = min(LONGEST_RETRY_S, RETRY_S * 2.0 ** min(self._failures - 1, 20))
        return longest * random.uniform(0.5, 1)


def _now_ms() -> int:
    return int(time.time() * 1000)
