"""Pushes the messages of a chaos run, and knows exactly which ones are in the stream, also after faults of the server.

A push whose reply was lost may have been done or not. So after an error the feeder reads the stream's end and takes
the entries there as pushed. The numbers of a ticket continue after them, without a gap.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from celery import Celery
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

import bridge
from bridge.routing.errors import ConfigurationError, ServerUnavailable
from bridge.routing.layouts import find_layout
from bridge.routing.partitions import AT, Layout, partition_of, stream_id, suffix_of
from tests.chaos.facts import Message
from tests.chaos.recording import place_of
from tests.chaos.subscriptions import STREAM, STREAMS, generation_of
from tests.chaos.ticks import is_tick

UNAVAILABLE = (RedisConnectionError, RedisTimeoutError)
#: (ticket, task or '', payload or its JSON, whether it can never succeed).
Planned = tuple[str, str, dict[str, Any] | str, bool]
#: Names in a payload that are options of its message.
OPTIONS = ("priority", "expires", "timeout", "delay", "hold")
#: The next message, given how many of each ticket were pushed; None when there is none.
Source = Callable[[dict[str, int]], Planned | None]


class Feeder:
    """One producer. ``versions``: those that the payloads name with ``v``."""

    def __init__(self, redis: Redis, source: Source, partitions: int = 1, versions: Sequence[str] = ("",)) -> None:
        self._redis = redis
        #: Version -> the stream of each partition.
        self._of_version = {version: Layout(partitions).streams(STREAMS[version]) for version in versions}
        self._streams = [stream for streams in self._of_version.values() for stream in streams]
        self._source = source
        self._planned: dict[tuple[str, int], Planned] = {}
        self._again: list[Planned] = []
        #: Stream -> its last entry.
        self._last_ids = dict.fromkeys(self._streams, "0-0")
        self._in_doubt = False
        #: How many of each ticket are in the stream.
        self.counts: dict[str, int] = {}
        #: What is in the stream, in its order.
        self.messages: list[Message] = []
        #: (Stream, id of an entry that was pushed with a delay) -> its due time (Unix ms).
        self._due_ms: dict[tuple[str, str], int] = {}

    def push(self, count: int) -> int:
        """Pushes up to ``count`` more; how many are certainly there now. Raises nothing for a server that is away."""
        before = len(self.messages)
        try:
            if self._in_doubt:
                self._resync()
            batch = list(self._next(count))
            if not batch:
                return 0
            self._in_doubt = True
            ids = self._add(batch)
            self._in_doubt = False
        except UNAVAILABLE:
            return len(self.messages) - before
        for planned, id_ in zip(batch, ids, strict=True):
            self._note(id_, planned)
        return len(self.messages) - before

    def _add(self, batch: Sequence[Planned]) -> list[str]:
        """Adds messages. Returns their ids. After an error some of the first ones may be in."""
        due_ms: list[tuple[str, int]] = []
        with self._redis.pipeline(transaction=False) as pipe:
            for ticket, task, payload, _ in batch:
                text = payload if isinstance(payload, str) else json.dumps(payload)
                fields: dict[Any, Any] = {"ticket_id": ticket, "payload": text}
                options = options_of(payload)
                delay_s = options.pop("delay", 0)
                stream = self._stream_of(ticket, version_of(payload))
                # The feeder's clock is the server's.
                due_ms.append((stream, int((time.time() + delay_s) * 1000) if delay_s else 0))
                if delay_s:
                    fields["due"] = due_ms[-1][1]
                if "timeout" in options:
                    options["timeout"] = int(options["timeout"] * 1000)
                fields |= {name: int(value) for name, value in options.items()}
                pipe.xadd(stream, {**fields, "task": task} if task else fields)
            ids: list[str] = pipe.execute()
        self._due_ms.update(((stream, id_), due) for id_, (stream, due) in zip(ids, due_ms, strict=True) if due)
        return ids

    def close(self) -> None:
        """Closes what was opened for it."""

    def forget_lost(self) -> int:
        """After a crash of a server that may lose its last writes: what is not there any more was never pushed.

        Returns how many those are. Their numbers are given out again.
        """
        if self._in_doubt:
            self._resync()
        kept = []
        last: dict[str, str] = {}
        for stream in self._streams:
            info: Any = self._redis.xinfo_stream(stream) if self._redis.exists(stream) else {}
            last[stream] = info.get("last-generated-id", "0-0")
        self._last_ids = dict.fromkeys(self._streams, "0-0")
        for message in self.messages:
            stream = self._stream_of(message.ticket, message.version)
            if _order(message.message_id) > _order(last[stream]):
                self.counts[message.ticket] -= 1
                continue
            kept.append(message)
            self._last_ids[stream] = message.message_id
        lost = len(self.messages) - len(kept)
        self.messages = kept
        return lost

    def settle(self) -> bool:
        """Clears up what is in doubt; whether nothing is any more."""
        try:
            if self._in_doubt:
                self._resync()
        except UNAVAILABLE:
            return False
        return True

    def _next(self, count: int) -> Iterator[Planned]:
        ahead = dict(self.counts)
        self._planned = {}
        # What was planned and did not arrive comes first, in its order: a log cannot be drawn a second time.
        again, self._again = self._again, []
        for number in range(count):
            planned = again[number] if number < len(again) else self._source(ahead)
            if planned is None:
                break
            ticket = planned[0]
            self._planned[ticket, ahead.get(ticket, 0)] = planned
            ahead[ticket] = ahead.get(ticket, 0) + 1
            yield planned
        self._again = again[count:]

    def _resync(self) -> None:
        arrived = []
        for stream, suffix in self.where():
            found: Any = self._redis.xrange(stream, f"({self._last_ids.get(stream, '0-0')}", "+")
            found = [entry for entry in found if not is_tick(entry[1])]
            arrived += [
                (fields["ticket_id"], place_of(json.loads(fields["payload"])), id_ + suffix) for id_, fields in found
            ]
            self._due_ms.update(((stream, id_), int(fields["due"])) for id_, fields in found if "due" in fields)
        # In the order in which they were pushed: the messages of a ticket may be in the streams of several versions.
        pushed = {planned: place for place, planned in enumerate(self._planned)}
        for ticket, n, id_ in sorted(arrived, key=lambda one: pushed[one[:2]]):
            self._note(id_, self._planned.pop((ticket, n)))
        self._again = [*self._planned.values(), *self._again]
        self._planned = {}
        self._in_doubt = False

    def where(self) -> list[tuple[str, str]]:
        """The streams to which messages may have been pushed, each with what follows the ids of its messages."""
        return [(stream, "") for stream in self._streams]

    def _stream_of(self, ticket: str, version: str, _id: str = "") -> str:
        streams = self._of_version[version]
        return streams[partition_of(ticket, len(streams))]

    def _note(self, id_: str, planned: Planned) -> None:
        ticket, _, payload, dies = planned
        n = self.counts.get(ticket, 0)
        self.counts[ticket] = n + 1
        version = version_of(payload)
        kind = "" if isinstance(payload, str) else payload.get("kind", "")
        options = options_of(payload)
        stream = self._stream_of(ticket, version, id_)
        self._last_ids[stream] = stream_id(id_)
        due_ms = self._due_ms.pop((stream, stream_id(id_)), 0)
        self.messages.append(
            Message(
                *(stream_id(id_), ticket, n, dies, time.time_ns(), kind, version, generation_of(id_)),
                expired="expires" in options,
                # An entry that was due when it arrived is not delayed.
                due_ms=due_ms if due_ms > _order(stream_id(id_))[0] else 0,
                hold="hold" in options,
            )
        )


class FollowingFeeder(Feeder):
    """A producer that pushes as an app does, through the bridge: it goes by the layout of the stream."""

    def __init__(self, redis: Redis, source: Source, url: str, partitions: int) -> None:
        super().__init__(redis, source, partitions)
        app = Celery("feeder", broker=url, set_as_current=False)
        bridge.install(app)
        app.conf.bridge_partitions = partitions
        self._app = app
        self._tasks: dict[str, Any] = {}
        #: Generation -> how many partitions its layout has.
        self._generations = {0: partitions}

    def close(self) -> None:
        """Closes its connections."""
        vars(self._app)["bridge"].client.close()

    def _add(self, batch: Sequence[Planned]) -> list[str]:
        ids: list[str] = []
        try:
            for task, planned in groupby(batch, key=itemgetter(1)):
                some = list(planned)
                found = self._task(task).push_many([(ticket, sent, options_of(sent)) for ticket, _, sent, _ in some])
                for id_, (ticket, _, sent, _) in zip(found, some, strict=True):
                    if "delay" in options_of(sent):
                        # The server has added the delay to its time.
                        stream, own = self._stream_of(ticket, "", id_), stream_id(id_)
                        entry: Any = self._redis.xrange(stream, own, own)
                        self._due_ms[stream, own] = int(entry[0][1]["due"])
                ids += found
        except ServerUnavailable as exc:
            raise RedisConnectionError(str(exc)) from None
        return ids

    def _task(self, name: str) -> Any:
        if name not in self._tasks:

            def pushed(self: Any, ticket_id: str, payload: Any) -> None:
                del self, ticket_id, payload

            self._tasks[name] = self._app.task(bind=True, name=name, lazy=False, shared=False)(pushed)
        return self._tasks[name]

    def where(self) -> list[tuple[str, str]]:
        try:
            layout = find_layout(self._redis, STREAM, self._generations[0])
        except ConfigurationError as exc:
            # It is lost for the moment.
            raise RedisConnectionError(str(exc)) from None
        self._generations[layout.generation] = layout.partitions
        known = [Layout(count, generation) for generation, count in self._generations.items()]
        return [(one.stream(STREAM, number), one.suffix(number)) for one in known for number in range(one.partitions)]

    def _stream_of(self, _ticket: str, _version: str, id_: str = "") -> str:
        # An id that ends with @g1p3 is of the stream that ends with :g1:p3.
        partition = suffix_of(id_).replace(AT, ":").replace("p", ":p" if generation_of(id_) else "p")
        return f"{STREAM}{partition}"


def version_of(payload: dict[str, Any] | str) -> str:
    """The version of a planned message. A payload that is JSON already names none."""
    return "" if isinstance(payload, str) else payload.get("v", "")


def options_of(payload: dict[str, Any] | str) -> dict[str, Any]:
    """The options of a planned message, as ``push`` takes them. One that expires has expired when it is pushed."""
    if isinstance(payload, str):
        return {}
    return {name: payload[name] for name in OPTIONS if name in payload}


def _order(id_: str) -> tuple[int, int]:
    ms, _, number = id_.partition("-")
    return int(ms), int(number)
