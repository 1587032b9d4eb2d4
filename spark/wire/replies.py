"""A connection on which chunks are sent without waiting for each other's answers.

A reply of the server is one of three things: an answer of a script (``bridge.routing.pushes.Answer``); trouble that
passes, on which the writer waits (the server is away, starts, is full, changes its role); or a refusal, which is an
error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import redis
from redis import Redis

from bridge.routing.connection import client
from bridge.routing.errors import ServerUnavailable, TicketBridgeError
from bridge.routing.pushes import LOADING, Answer
from bridge.routing.server_errors import is_full, is_outage
from bridge.spark.wire.address import ANSWER_TIMEOUT_S, RedisConnection, first_line, unavailable, without_secrets

#: Errors of a login that waiting does not change.
_LOGIN = (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError)


class RefusedByServer(TicketBridgeError):
    """The server answered with an error that waiting does not change. What it took before stays written."""


class Trouble(Exception):
    """Trouble that passes. Its text says what the writer waits for."""

    def __init__(self, why: str, *, full: bool = False) -> None:
        """``full``: the server answers, and is out of memory."""
        super().__init__(why)
        self.full = full


class Link:
    """The connection of one task to the server. After trouble it opens itself again, with no answers pending."""

    def __init__(self, url: str) -> None:
        """Opens nothing yet. Errors show ``url`` without its secrets."""
        self._url = url
        self._client: Redis | None = None
        #: Answers that were not read yet.
        self.pending = 0

    @property
    def idle(self) -> bool:
        """Whether there is a connection, and no answer is pending."""
        return self._client is not None and not self.pending

    def client(self) -> Redis:
        """For commands that are answered one by one. No answer may be pending.

        Raises ``Trouble`` when the server cannot be reached now, ``ServerUnavailable`` when it refuses the login.
        """
        if self._client is None:
            try:
                self._client = client(self._url, timeout_s=ANSWER_TIMEOUT_S, single=True)
                for command in LOADING:
                    self._client.execute_command(*command)
            except (redis.RedisError, OSError) as error:
                raise self.failed(error) from None
        return self._client

    def send(self, opening: bytes, rows: memoryview) -> None:
        """Sends one chunk, without waiting for its answer. Raises as ``client`` does."""
        connection = cast(RedisConnection, self.client().connection)
        try:
            # No health check: its PING would take an answer that is counted here.
            connection.send_packed_command([opening, rows], check_health=False)
        except (redis.RedisError, OSError) as error:
            raise self.failed(error) from None
        self.pending += 1

    def answer(self) -> Answer:
        """Waits for the next answer. Raises as ``client`` does, and ``RefusedByServer``."""
        connection = cast(RedisConnection, self.client().connection)
        try:
            reply = connection.read_response(disable_decoding=True)
        except (redis.RedisError, OSError) as error:
            raise self.failed(error) from None
        finally:
            self.pending = max(0, self.pending - 1)
        return Answer.of(cast("Sequence[bytes | int]", reply))

    def failed(self, error: Exception) -> Exception:
        """What to raise for an error of redis-py. Closes the connection unless its state is certain."""
        if isinstance(error, _LOGIN):
            self.close()
            return unavailable(self._url, error)
        if is_full(error):
            return Trouble("the server is out of memory (OOM, noeviction)", full=True)
        if isinstance(error, redis.exceptions.NoScriptError):
            # The scripts are loaded again when the connection is opened again.
            self.close()
            return Trouble("the server forgot the scripts")
        if is_outage(error):
            self.close()
            return Trouble(f"no answer from {without_secrets(self._url)} ({first_line(error)})")
        return RefusedByServer(f"the server at {without_secrets(self._url)} refused rows: {first_line(error)}")

    def close(self) -> None:
        """Closes. What was sent without an answer may or may not have been done. Never raises."""
        self.pending = 0
        if self._client is not None:
            self._client.close()
            self._client = None


def given_up(url: str, why: str) -> ServerUnavailable:
    """The error for a server that was away for too long."""
    return ServerUnavailable(f"{why}; the server is {without_secrets(url)}")
