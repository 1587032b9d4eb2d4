"""A consumer over HTTP, in Python and without Celery: `HttpConsumer`. Standard library only.

The thread of `HttpConsumer.run` receives. Handlers run on threads of their own, as many as ``concurrency``. One more
thread acknowledges, one renews the lease, and one notices its end: a renewal may wait for its answer past that.

**Self-fencing.** The consumer trusts its lease until a deadline on its own clock: the moment *before* it sent the last
renewal that was answered, plus the lease, less a margin. After the deadline it starts nothing and acknowledges nothing.
A handler that still runs then could overlap with another consumer, and Python cannot stop a thread. So the process
ends, with status `LOST_STATUS`, unless ``exit_when_lost`` is false: then the handler continues, `Message.holds` is
false, and its acknowledgement is refused.
"""

from __future__ import annotations

import logging
import os
import queue
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPException
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

from bridge.consumer.deadline import RENEWALS, deadline_after, now_ns
from bridge.consumer.http_calls import Calls, HttpProblem
from bridge.consumer.http_messages import Message, Work, failed, outcome_of
from bridge.consumer.http_outcomes import OVER, Life, Outcomes
from bridge.consumer.stop_flag import StopFlag
from bridge.protocol.outcome_limits import MOST_SLOTS, MOST_WAIT_S
from bridge.routing.numbers import count

logger = logging.getLogger(__name__)

#: Exit status of a process that lost its lease while a handler ran: EX_TEMPFAIL.
LOST_STATUS = 75
#: Seconds between two looks while there is no incarnation.
LOOK_S = 0.05
#: Of these looks, so many come between two checks that the master answers.
ALIVE_LOOKS = 60
#: Seconds between two receives that bring nothing: at first, and at most. It doubles in between.
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.3
#: Longest time in seconds to leave, by whichever master.
LEAVE_S = 10.0


def _check_numbers(concurrency: Any, wait_s: Any) -> None:
    """Raises ValueError and TypeError for what the port would refuse, or what no call can have."""
    if type(concurrency) is not int:
        raise TypeError(f"concurrency must be a whole number, not {concurrency!r:.80}")
    if not 1 <= concurrency <= MOST_SLOTS:
        raise ValueError(f"concurrency must be from 1 to {MOST_SLOTS}, it is {concurrency}")
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float):
        raise TypeError(f"wait_s must be a number of seconds, not {wait_s!r:.80}")
    if not 0 <= wait_s <= MOST_WAIT_S:
        raise ValueError(f"wait_s must be from 0 to {MOST_WAIT_S} seconds, it is {wait_s}")


class HttpConsumer:
    """Handles the messages that masters give it over HTTP.

    ``urls``: of one master or several, ``http://HOST:PORT``. ``handler`` is called with each `Message`: when it
    returns, the message is done; when it raises, the message has failed, and comes again after its backoff. See also
    `Refuse` and `GiveUp`.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        name: str,
        handler: Callable[[Message], object],
        *,
        concurrency: int = 1,
        tasks: Sequence[str] | None = None,
        subscription: str | None = None,
        health_url: str | None = None,
        token: str | None = None,
        context: ssl.SSLContext | None = None,
        wait_s: float = 20.0,
        exit_when_lost: bool = True,
    ) -> None:
        if not callable(handler):
            raise TypeError(f"the handler must be a function that takes a message, not {handler!r:.80}")
        for given, value in (("name", name), ("subscription", subscription), ("health_url", health_url)):
            if not isinstance(value, str) and not (value is None and given != "name"):
                raise TypeError(f"{given} must be text, not {value!r:.80}")
        if tasks is not None and not (isinstance(tasks, list | tuple) and all(isinstance(one, str) for one in tasks)):
            raise TypeError(f"tasks must be a list of task names, not {tasks!r:.80}")
        _check_numbers(concurrency, wait_s)
        self._calls = Calls([urls] if isinstance(urls, str) else list(urls), token, context)
        self._name = name
        self._handler = handler
        self._concurrency = concurrency
        about = {"tasks": tasks, "subscription": subscription, "healthURL": health_url}
        self._registration = {"name": name, "concurrency": concurrency}
        self._registration |= {key: value for key, value in about.items() if value is not None}
        self._wait_s = wait_s
        self._exit_when_lost = exit_when_lost
        #: Seconds of the last pause between two receives.
        self._pause_s = 0.0
        self._incarnation = ""
        self._lease_ms = 0
        #: By the clock of `now_ns`; 0: the lease is over.
        self._deadline_ns = 0
        self._wants = "go on"
        self._stopping = StopFlag()
        self._over = threading.Event()
        #: Fences of the messages that it was given and has not acknowledged, of this incarnation.
        self._held: set[int] = set()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        #: How many handlers run now.
        self._running = 0
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._outcomes = Outcomes(self._calls, Life(self._holds, self._lose, self._release))
        self._cancel: Callable[[], None] = lambda: None

    # -- for the caller ------------------------------------------------------------------------------------------------

    def __enter__(self) -> HttpConsumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Makes `run` finish its messages, leave, and return. Safe in signal handlers and other threads."""
        self._stopping.set()
        self._cancel()

    @property
    def holds(self) -> bool:
        """Whether the lease holds, as far as this process may trust it."""
        return now_ns() < self._deadline_ns

    def run(self) -> None:
        """Registers, and handles messages until `stop`. Raises `HttpProblem` when the masters refuse it."""
        threads = [threading.Thread(target=self._handle, daemon=True) for _ in range(self._concurrency)]
        roles = (self._outcomes.run, self._beat, self._watch)
        threads += [threading.Thread(target=role, daemon=True) for role in roles]
        try:
            for thread in threads:
                thread.start()
            self._register()
            while not self._stopping.is_set():
                self._receive()
            self._finish()
        finally:
            self._over.set()
            self._leave()
            for _ in range(self._concurrency):
                self._work.put(None)
            self._outcomes.end()
            self._calls.close()

    # -- the lease -----------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        while not self._stopping.is_set():
            try:
                # First whether a master answers: a frozen one would hold the registration up for 60 s.
                self._calls.find(self._goes_on)
                sent = now_ns()
                found = self._calls.call(
                    "POST", "/api/consumers/register", self._registration, goes_on=self._goes_on, wait_s=60
                )
            except (OSError, HTTPException):
                return
            except HttpProblem:
                if self._stopping.is_set():
                    return
                raise
            self._lease_ms = found["lease_ms"]
            deadline_ns = deadline_after(sent, self._lease_ms / 1000)
            if now_ns() >= deadline_ns:
                # The call waited for the end of an older lease.
                deadline_ns = self._renew(found["incarnation"])
            if not deadline_ns:
                continue
            with self._lock:
                self._incarnation, self._deadline_ns = found["incarnation"], deadline_ns
                self._held.clear()
                self._wants = "go on"
            logger.info("registered as %s, incarnation %s", self._name, self._incarnation)
            return

    def _goes_on(self) -> bool:
        return not self._stopping.is_set()

    def _renew(self, incarnation: str) -> int:
        """Renews the lease. Returns the new deadline; 0: the lease is over, or no master answers."""
        sent = now_ns()
        path = f"/api/consumers/{quote(self._name)}/heartbeat"
        try:
            found = self._calls.call(
                "POST",
                path,
                {"incarnation": incarnation},
                goes_on=lambda: False,
                answer_s=self._lease_ms / 1000 / RENEWALS,
            )
        except (OSError, HTTPException):
            return 0
        except HttpProblem as problem:
            if problem.status in OVER:
                self._lose(incarnation)
            return 0
        deadline_ns = deadline_after(sent, self._lease_ms / 1000)
        with self._lock:
            if incarnation == self._incarnation:
                self._deadline_ns = deadline_ns
                if found["wants"] == "leave" and self._wants != "leave":
                    # During a deploy masters know different lanes: one that says `leave` is where to register again.
                    self._calls.stay()
                self._wants = found["wants"]
        return deadline_ns

    def _beat(self) -> None:
        """The thread that renews the lease. During a registration, which may wait for an older lease, it asks whether
        the master still lives: when it does not, the registration goes on to another one.
        """
        looks = 0
        while not self._over.is_set():
            if not self._incarnation:
                looks += 1
                if looks % ALIVE_LOOKS == 0:
                    with suppress(OSError, HTTPException):
                        self._calls.find(lambda: False)
                self._over.wait(LOOK_S)
                continue
            looks = 0
            self._over.wait(self._lease_ms / 1000 / RENEWALS if self._renew(self._incarnation) else 0.1)

    def _watch(self) -> None:
        """The thread that notices the end of the lease."""
        while not self._over.is_set():
            with self._lock:
                incarnation, left_s = self._incarnation, (self._deadline_ns - now_ns()) / 1e9
            if not incarnation:
                self._over.wait(LOOK_S)
            elif left_s > 0:
                self._over.wait(left_s)
            else:
                self._lose(incarnation)

    def _lose(self, incarnation: str) -> None:
        """The lease is over: stops what runs. `_receive` registers again."""
        with self._lock:
            if incarnation != self._incarnation:
                return
            self._incarnation, self._deadline_ns = "", 0
            running = self._running
            self._changed.notify_all()
        logger.error("the lease of %s is over", self._name)
        if running and self._exit_when_lost:
            logger.critical("%d messages were being handled: this process ends", running)
            os._exit(LOST_STATUS)

    def _leave(self) -> None:
        with self._lock:
            # Under the lock: after this nothing begins to run.
            incarnation, self._incarnation, self._deadline_ns = self._incarnation, "", 0
            running = self._running
        if not incarnation:
            return
        if running:
            # After Ctrl-C, or an error. Its tickets would go to others while it still handles their messages.
            logger.warning("%s still handled: the lease will end by itself", count(running, "message"))
            return
        path = f"/api/consumers/{quote(self._name)}/leave"
        try:
            self._calls.call_each("POST", path, {"incarnation": incarnation}, within_s=LEAVE_S)
        except (OSError, HTTPException, HttpProblem) as exc:
            if isinstance(exc, HttpProblem) and exc.status in OVER:
                return
            logger.warning("cannot leave, the lease will end by itself: %s", exc)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Receives messages once."""
        incarnation = self._incarnation
        if not incarnation:
            self._register()
            return
        if self._wants == "leave":
            self._finish()
            self._leave()
            return
        with self._changed:
            free = self._concurrency - len(self._held)
            if not free or self._wants == "quiet":
                self._changed.wait(0.2)
                return
            has = sorted(self._held)
        query: list[tuple[str, Any]] = [("consumer", self._name), ("incarnation", incarnation)]
        query += [("max", free), ("wait", self._wait_s), *(("has", fence) for fence in has)]
        self._cancel = self._calls.canceller()
        if self._stopping.is_set():
            return
        try:
            path = f"/api/messages/next?{urlencode(query)}"
            sent_ns = now_ns()
            found = self._calls.call("GET", path, goes_on=lambda: False, wait_s=self._wait_s)
        except HttpProblem as problem:
            if problem.status in OVER:
                self._lose(incarnation)
            elif not problem.passes:
                raise
            else:
                self._stopping.wait(0.2)
            return
        except (OSError, HTTPException):
            self._stopping.wait(0.2)
            return
        received_ns = now_ns()
        self._pause(bool(found["messages"]), (received_ns - sent_ns) / 1e9)
        for item in found["messages"]:
            # By the clock of Redis, and not by that of this machine.
            answered_ms = item["deadline_ms"] - found["lease_ms"]
            expires_ms = (item.get("options") or {}).get("expires_ms")
            expires_ns = None if expires_ms is None else received_ns + (expires_ms - answered_ms) * 1_000_000
            self._take(Work(incarnation, item, expires_ns))

    def _pause(self, brought_some: bool, took_s: float) -> None:
        """Waits after a receive that brought nothing, and ended soon: with a short ``wait_s``, an idle consumer would
        call its master without a pause. A long poll took longer than the longest pause, so nothing is added to it.
        """
        self._pause_s = 0.0 if brought_some else min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
        if self._pause_s > took_s:
            self._stopping.wait(self._pause_s - took_s)

    def _take(self, work: Work) -> None:
        incarnation, item, _ = work
        fence = item["fence"]
        with self._lock:
            if incarnation != self._incarnation or fence in self._held or self._stopping.is_set():
                return
            self._held.add(fence)
        self._work.put(work)

    def _handle(self) -> None:
        """A thread that runs handlers."""
        while (work := self._work.get()) is not None:
            incarnation = work.incarnation
            with self._lock:
                # Checked under the lock: `_lose` counts what runs under it.
                if incarnation != self._incarnation:
                    continue
                if not self.holds:
                    # An answer to a renewal may still come before `_watch` notices the end. Then it is given again.
                    self._held.discard(work.item["fence"])
                    continue
                self._running += 1
            try:
                outcome = outcome_of(self._handler, work, self._holder(incarnation))
            except BaseException as exc:
                # Whatever it is, the thread goes on: else its fence would be held for ever.
                logger.error("message %s failed beside its handler: %r", work.item["message_id"], type(exc))
                outcome = failed(exc)
            finally:
                with self._lock:
                    self._running -= 1
            said = {"consumer": self._name, "incarnation": incarnation}
            said |= {"message_id": work.item["message_id"], "fence": work.item["fence"]}
            self._outcomes.put(incarnation, {**said, **outcome})

    def _holder(self, incarnation: str) -> Callable[[], bool]:
        return lambda: self._holds(incarnation)

    def _holds(self, incarnation: str) -> bool:
        return incarnation == self._incarnation and self.holds

    def _release(self, incarnation: str, fences: Sequence[int]) -> None:
        with self._changed:
            # A later incarnation has fences of its own.
            if incarnation == self._incarnation:
                self._held.difference_update(fences)
            self._changed.notify_all()

    def _finish(self) -> None:
        """Waits until what was received is acknowledged, or the lease is over."""
        incarnation = self._incarnation
        with self._changed:
            while self._held and incarnation and incarnation == self._incarnation:
                self._changed.wait(0.2)
