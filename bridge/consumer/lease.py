"""The lease of a worker: how it is taken, renewed and lost.

Contract:

- Redis is authoritative: the worker holds the lease while the key of its incarnation exists. The key expires by Redis's
  clock.
- The worker trusts the lease until a deadline on its own clock: the moment *before* it sent the renewal, plus the
  lease, less a margin. That clock goes on while the machine is suspended. So the deadline always comes before the key
  expires, however long the reply took.
- After the deadline the worker starts no message, kills the pool processes that run tickets, and forgets what it held.
  When Redis answers again, it registers as a new incarnation. Each pool child also checks the deadline before every
  message, and kills itself when the deadline passes during one. The watcher does the same from outside
  (`bridge.worker.guard.fencing`).
- A lease that ended stays ended: a renewal (PEXPIRE) never revives a missing key. PEXPIRE needs no memory, so a full
  server accepts it. Such a server may refuse the list of held runs. That delays repairs, and does no harm.
- A worker whose registration was deleted by hand gives its lease up, and registers as a new incarnation.
- A name has one living incarnation. A worker that registers while the lease of its name holds waits until that lease
  is over. If the lease goes on being renewed, another worker uses the name, and this one stops with an error. Both may
  read the queue of the name until then: a message that the wrong one takes comes again, after a while.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.exceptions import RedisError

from bridge.consumer.deadline import RENEWALS, deadline_after, now_ns
from bridge.consumer.registering import update_registration
from bridge.link.connections import UNAVAILABLE, client, is_full, is_outage
from bridge.link.outage import Outage
from bridge.protocol.agreement import differences, readable_facts
from bridge.protocol.held_runs import HeldRuns
from bridge.protocol.registration import readable_or_none
from bridge.routing.errors import DuplicateConsumer, LaneGone
from bridge.routing.membership import NO_LIFE, goodbye, register
from bridge.routing.return_codes import ReturnCode

if TYPE_CHECKING:
    from bridge.consumer.deadline import Deadline
    from bridge.protocol.registration import ChangingFacts, Profile
    from bridge.routing.layouts import InLayout
    from bridge.settings.lane import LaneSettings

logger = logging.getLogger(__name__)

#: For how many leases a worker waits for the end of the lease of its name. One that is not renewed ends within one.
PATIENCE = 1.5
#: Seconds between two tries while the server is away.
RETRY_S = 0.1
#: Seconds between two tries while nobody serves the lane: `bridge stream retire --undo` brings it back.
GONE_S = 1.0
#: Most tries to register without a reply that are remembered.
UNANSWERED = 16


class Lease:
    """Holds the lease of one worker, on a thread of its own so that no task or event loop can delay it.

    - ``layout`` is what the lane's stream belongs to.
    - ``held`` returns the fences of the runs that the worker holds. Each renewal sends them.
    - ``on_lost`` is called on the lease's thread when the lease ended while the worker lives.
    - ``on_duplicate`` is called on the lease's thread when the worker lost its lease, and another one has its name. It
      may stop the worker. Else the lease goes on to wait for the name.
    - ``is_stopping`` says whether the worker was asked to stop.
    - ``while_waiting`` is called again and again while `begin` waits, on the caller's thread. It may raise: that ends
      the wait.
    - ``on_renewal`` is called on the lease's thread with each renewal.
    - ``changing_facts`` returns the part of the registration that may change. Each renewal compares it with what is
      registered.
    """

    def __init__(
        self,
        url: str,
        lane: LaneSettings,
        name: str,
        profile: Profile,
        deadline: Deadline,
        *,
        layout: InLayout,
        held: Callable[[], list[int]],
        changing_facts: Callable[[], ChangingFacts],
        on_lost: Callable[[], None],
        on_duplicate: Callable[[], None] = lambda: None,
        is_stopping: Callable[[], bool] = lambda: False,
        while_waiting: Callable[[], None] = lambda: None,
        on_renewal: Callable[[], None] = lambda: None,
    ) -> None:
        self._lane = lane
        self._name = name
        self._profile = profile
        self._deadline = deadline
        self._layout = layout
        self._held = held
        self._on_lost = on_lost
        self._on_duplicate = on_duplicate
        self._is_stopping = is_stopping
        self._while_waiting = while_waiting
        self._on_renewal = on_renewal
        self._changing_facts = changing_facts
        self._outage = Outage(logger, "renewing the lease as soon as it is back")
        self._redis: Redis = client(url, timeout_s=max(0.2, lane.lease / (2 * RENEWALS)))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bridge-lease", daemon=True)
        self._reports = 0
        #: Incarnation -> when its registration was sent (`now_ns`), of tries without a reply. One may have succeeded.
        self._unanswered: dict[str, int] = {}
        #: Whether a warning said that nobody serves the lane any more.
        self._is_gone = False
        #: The facts that the leader published about itself (`bridge.protocol.agreement.facts`).
        self._master = b""

    def begin(self) -> None:
        """Registers the first incarnation, and starts the renewals. Waits for the end of an older incarnation's lease.

        Where nobody serves the lane any more it returns without a lease, and says so. Raises `DuplicateConsumer` when
        that lease goes on being renewed, redis errors when the server is away.
        """
        while True:
            try:
                self._register(starting=True)
                break
            except LaneGone as exc:
                self._lane_is_gone(exc)
                break
            except RedisError as exc:
                # A caller that lost the server tries again by itself. One whose server is full or loading does not.
                if isinstance(exc, UNAVAILABLE) or not is_outage(exc):
                    raise
                self._outage.met(exc)
                self._while_waiting()
                self._stop.wait(RETRY_S)
        self._outage.over()
        self._thread.start()

    def end(self) -> None:
        """Gives the lease up. The worker must not run any message any more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * self._lane.lease)
        incarnation = self._deadline.incarnation
        self._deadline.end()
        if incarnation:
            try:
                goodbye(self._redis, self._lane.keys, self._name, incarnation)
            except (RedisError, OSError) as exc:
                logger.warning("cannot end the lease, it will expire by itself: %s", exc)

    def _register(self, *, starting: bool = False) -> None:
        keys = self._lane.keys
        began = time.monotonic()
        waits = False
        while not self._stop.is_set():
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.hget(keys.consumers, self._name)
                pipe.time()
                found_raw, time_ = pipe.execute(raise_on_error=False)
            if isinstance(found_raw, Exception):
                raise found_raw
            self._learn_time(time_)
            other = readable_or_none(found_raw)
            if other is not None and self._adopt(other.incarnation):
                return
            found = (found_raw, other.incarnation if other else NO_LIFE) if found_raw else None
            incarnation = uuid.uuid4().hex
            registration = self._profile.text(incarnation, time.time(), self._lane.lease_ms)
            sent = self._unanswered[incarnation] = now_ns()
            for oldest in list(self._unanswered)[:-UNANSWERED]:
                del self._unanswered[oldest]
            code, left_ms = register(
                self._redis, keys, self._name, incarnation, self._lane.lease_ms, registration, found, self._layout
            )
            del self._unanswered[incarnation]
            if code is ReturnCode.OK:
                self._registered(incarnation, sent)
                return
            if code is ReturnCode.LAYOUT:
                raise LaneGone(
                    f"the stream {self._lane.stream} was retired or repartitioned meanwhile, and nobody serves it any "
                    f"more: {self._name} takes none of its messages until it is started again"
                )
            if code is ReturnCode.HELD:
                assert other is not None
                length_ms = other.lease_ms or self._lane.lease_ms
                if other.lease_ms and left_ms > length_ms:
                    # The server's clock was set back. A worker that lives gives its lease this length again and again.
                    self._redis.pexpire(keys.lease(other.incarnation), length_ms)
                is_own = other.incarnation == self._deadline.incarnation
                if not is_own and time.monotonic() - began > PATIENCE * length_ms / 1000:
                    raise DuplicateConsumer(
                        f"another worker named {self._name} is running and renews its lease; "
                        "give this one a name of its own (celery worker -n NAME@%h)"
                    )
                if not waits:
                    held_by = ("an older" if is_own else "another", self._name)
                    logger.warning("the lease of %s %s holds for %d ms more: waiting", *held_by, left_ms)
                    waits = True
                # A lease that is not renewed ends after the time it has left. Look again just after that, and at
                # least four times a second, since it may be given up earlier.
                self._stop.wait(min(0.25, left_ms / 1000 + 0.01))
                if starting:
                    self._while_waiting()

    def _adopt(self, registered: str) -> bool:
        """Takes the incarnation that is registered, if it is of a try here whose reply was lost. Else its lease would
        be waited out, while the leader sends messages to it that nobody takes.
        """
        sent = self._unanswered.pop(registered, None)
        if sent is None:
            return False
        if deadline_after(sent, self._lane.lease) <= now_ns():
            # Its lease may still hold: the server may have got the try late.
            goodbye(self._redis, self._lane.keys, self._name, registered)
            return False
        self._registered(registered, sent)
        return True

    def _registered(self, incarnation: str, sent: int) -> None:
        """The incarnation is registered, by a try that was sent then."""
        self._unanswered.clear()
        self._deadline.begin(incarnation, deadline_after(sent, self._lane.lease))
        logger.info("registered as %s, incarnation %s", self._name, incarnation)

    def _run(self) -> None:
        period = self._lane.lease / RENEWALS
        wait = period
        if not self._deadline.incarnation and not self._come_back():
            return
        while not self._stop.wait(wait):
            wait = period
            sent = now_ns()
            try:
                renewed = self._renew()
                self._outage.over()
            except Exception as exc:
                if isinstance(exc, (RedisError, OSError)) and is_outage(exc):
                    self._outage.met(exc)
                else:
                    logger.exception("cannot renew the lease")
                if sent < self._deadline.deadline_ns:
                    wait = min(RETRY_S, max(0.0, self._deadline.left_s))
                    continue
                renewed = False
            if renewed:
                self._deadline.extend(deadline_after(sent, self._lane.lease))
                self._quietly(self._report_changes)
                self._quietly(self._on_renewal)
                continue
            what = "it was stopping anyway" if self._is_stopping() else "coming back as a new incarnation"
            logger.error("the lease of %s ended: killing its running tickets; %s", self._name, what)
            self._deadline.end()
            self._quietly(self._on_lost)
            if not self._come_back():
                return

    def _come_back(self) -> bool:
        """Registers as a new incarnation, as soon as it can. False: the worker stops before."""
        while not self._is_stopping():
            again_s = self._register_again()
            if not again_s or self._stop.wait(again_s):
                break
        # The leader would send tickets to a new incarnation, and a worker that stops takes none any more.
        return not self._is_stopping()

    def _renew(self) -> bool:
        incarnation = self._deadline.incarnation
        keys = self._lane.keys
        self._reports += 1
        report = HeldRuns(self._reports, self._held()).text()
        lease_ms = self._lane.lease_ms
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.pexpire(keys.lease(incarnation), lease_ms)
            pipe.set(keys.held(incarnation), report, px=lease_ms)
            pipe.hget(keys.consumers, self._name)
            pipe.hget(keys.about, "master")
            pipe.time()
            there, reported, registered, master, time_ = pipe.execute(raise_on_error=False)
        for reply in (there, reported):
            if isinstance(reply, Exception) and not (reply is reported and is_full(reply)):
                raise reply
        self._learn_time(time_)
        if master != self._master and isinstance(master, bytes):
            self._master = master
            self._quietly(self._warn_of_differences)
        is_own = isinstance(registered, Exception) or incarnation.encode() in (registered or b"")
        if there and not is_own and not self._is_stopping():
            # Somebody deleted it by hand, or gave the key an end. The next leader would not know this worker. Another
            # one may have taken the name since then: both would take from one queue.
            logger.error("the registration of %s is not in %s any more", self._name, keys.consumers)
            return False
        return bool(there)

    def _learn_time(self, reply: Any) -> None:
        """Notes the reply to TIME: a message expires by the server's clock. Without the permission for it, this
        machine's clock counts.
        """
        if not isinstance(reply, Exception):
            seconds, micros = reply
            self._deadline.learn_server_time(seconds * 1000 + micros / 1000)

    def _warn_of_differences(self) -> None:
        """Logs how this worker differs from the leader. Called when the worker sees a new leader."""
        for difference in differences(self._profile.facts, readable_facts(self._lane.keys, self._master)):
            logger.warning("this worker differs from the master that leads: %s", difference)

    def _report_changes(self) -> None:
        """Updates the registration: the pool may have grown or shrunk, and the queues may have changed."""
        if self._is_stopping():
            # The pool is closed, or will be soon.
            return
        before, now = self._profile.changing, self._changing_facts()
        if now == before:
            return
        try:
            update_registration(self._redis, self._lane.keys, self._name, self._deadline.incarnation, now)
        except (RedisError, OSError) as exc:
            logger.debug("cannot update the registration yet: %s", exc)
            return
        if now.slots != before.slots:
            logger.info("the pool runs %d messages at once now; before, %d", now.slots, before.slots)
        if now.runnable.queues != before.runnable.queues:
            logger.info("consumes %s now; before, %s", now.runnable.queues, before.runnable.queues)
        self._profile = replace(self._profile, changing=now)

    @staticmethod
    def _quietly(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            # The renewals must go on, whatever failed.
            logger.exception("%r failed", call)

    def _register_again(self) -> float:
        """Registers as a new incarnation. Returns the seconds until the next try; 0: it is registered."""
        try:
            self._register()
        except LaneGone as exc:
            self._lane_is_gone(exc)
            return GONE_S
        except DuplicateConsumer as exc:
            logger.error("%s", exc)
            self._on_duplicate()
            return RETRY_S
        except (RedisError, OSError) as exc:
            self._outage.met(exc)
            return RETRY_S
        self._outage.over()
        self._is_gone = False
        return 0.0

    def _lane_is_gone(self, exc: LaneGone) -> None:
        # When only the partition was left, the worker leaves the lane soon (`bridge.worker.main.new_layout`).
        if not self._is_gone:
            logger.warning("%s", exc)
        self._is_gone = True
