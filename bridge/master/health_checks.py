"""Pings the ``healthURL`` of HTTP consumers, as Celery's heartbeats are listened to (`bridge.master.heartbeats`).

The master that leads a lane pings its consumers, on threads of their own. A consumer that fails `MISSING` pings one
after another is one whose heartbeats are missing: the leader looks at its lease sooner. The lease alone decides. A good
answer proves nothing either: a consumer must renew its lease.

A ping is one GET request to an address that was checked (`bridge.protocol.health_url`). Any status from 200 to 299 is
good. Redirects are not followed, the answer's body is not read, and the whole ping has `TIME_S` seconds. As long as no
consumer has a ``healthURL``, there is no thread, and nothing of this is loaded.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from queue import SimpleQueue

from celery.utils.log import get_logger

from bridge.protocol.health_url import HealthTarget, checked_health_url
from bridge.routing.errors import InputError

logger = get_logger(__name__)

#: Seconds from the end of a ping to the next one of the same consumer.
INTERVAL_S = 2.0
#: Longest time of a ping, without the resolution of the name.
TIME_S = 2.0
#: How many pings must fail one after another before the leader looks.
MISSING = 2
#: Pings at the same time.
THREADS = 8
#: Most bytes of an answer that are read: its first line.
ANSWER_BYTES = 4096
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: |\r?\n)")


class HealthChecks:
    """Pings the consumers of the lanes that this process leads. ``look`` gets the names of those that fail.

    ``networks``: where pings may go.
    """

    def __init__(self, networks: Sequence[str], look: Callable[[Collection[str]], None]) -> None:
        self._networks = networks
        self._look = look
        #: The pings that are to be sent. None: a thread ends.
        self._asked: SimpleQueue[tuple[str, str] | None] = SimpleQueue()
        self._threads = 0
        self._stopped = False
        #: (name, URL) -> when to ping it next (monotonic seconds), infinity while it is pinged.
        self._due: dict[tuple[str, str], float] = {}
        self._failed: dict[tuple[str, str], int] = {}

    def turn(self, urls: Mapping[str, str]) -> None:
        """Begins the pings that are due. ``urls``: by name of the consumer. Call it about once a second."""
        now = time.monotonic()
        present = set(urls.items())
        for one in self._due.keys() - present:
            del self._due[one]
            self._failed.pop(one, None)
        for one in present:
            if self._due.setdefault(one, 0.0) <= now:
                self._due[one] = float("inf")
                self._asked.put(one)
        while self._threads < min(THREADS, len(present)):
            self._threads += 1
            # Python waits for the threads of an executor at its end, and the resolution of a name has no bound.
            threading.Thread(target=self._run, name="bridge-health-check", daemon=True).start()

    def stop(self) -> None:
        """Begins no more pings. Nobody waits for those that run."""
        self._stopped = True
        for _ in range(self._threads):
            self._asked.put(None)

    def _run(self) -> None:
        while (one := self._asked.get()) is not None and not self._stopped:
            self._check(one)

    def _check(self, one: tuple[str, str]) -> None:
        name, url = one
        try:
            ping(checked_health_url(url, self._networks))
        except (OSError, InputError, ValueError) as exc:
            self._fails(one, str(exc) or type(exc).__name__)
        except BaseException:
            logger.exception("a ping of consumer %s failed", name)
        else:
            if self._failed.pop(one, 0) >= MISSING:
                logger.info("consumer %s answers pings again", name)
        finally:
            if one in self._due:
                self._due[one] = time.monotonic() + INTERVAL_S

    def _fails(self, one: tuple[str, str], why: str) -> None:
        failed = self._failed[one] = self._failed.get(one, 0) + 1
        if failed == MISSING:
            logger.info("consumer %s does not answer pings (%s): checking its lease", one[0], why)
        if failed % MISSING == 0:
            self._look([one[0]])


def ping(target: HealthTarget, *, time_s: float = TIME_S) -> None:
    """One ping. Raises OSError and ValueError when the answer is not good, or not there in time."""
    until = time.monotonic() + time_s
    with closing(_dial(target, until)) as dialled:
        host = f"[{target.host}]" if ":" in target.host else target.host
        request = (
            f"GET {target.path} HTTP/1.1\r\nHost: {host}:{target.port}\r\nConnection: close\r\nAccept: */*\r\n\r\n"
        )
        dialled.settimeout(_left(until))
        dialled.sendall(request.encode("ascii"))
        read = b""
        while b"\n" not in read and len(read) < ANSWER_BYTES:
            dialled.settimeout(_left(until))
            piece = dialled.recv(ANSWER_BYTES - len(read))
            if not piece:
                break
            read += piece
    status = _STATUS.match(read)
    if status is None:
        raise ValueError("it answered with no HTTP")
    if not 200 <= int(status[1]) < 300:
        raise ValueError(f"it answered with status {int(status[1])}")


def _dial(target: HealthTarget, until: float) -> socket.socket:
    plain = socket.create_connection((target.address, target.port), timeout=_left(until))
    if target.scheme == "http":
        return plain
    try:
        plain.settimeout(_left(until))
        return ssl.create_default_context().wrap_socket(plain, server_hostname=target.host)
    except BaseException:
        plain.close()
        raise


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("it did not answer in time")
    return left
