"""The incarnations of HTTP consumers, as any master finds them: each has a record in Redis.

The record says which lanes an incarnation serves. It never changes, so a master keeps it. Whether the leases hold is
not in it: the scripts look, in the same step as what they do.

During a deploy, masters of two versions of an app listen. They know different versions of the stream, and at least one
in common. So each version that an incarnation serves has a copy of the record, and a master looks at all that it knows.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

from bridge.http.problems import Problem
from bridge.routing.keys import LaneKeys, http_consumer

if TYPE_CHECKING:
    from bridge.http.site import Site

#: How long a record outlives the leases, in ms. Until then a late call is told that its lease is over.
RECORD_MS = 3_600_000
#: Most records that a master keeps in memory.
KEPT = 10_000
_INCARNATION = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Incarnation:
    """One life of an HTTP consumer."""

    id: str
    name: str
    #: The name of its subscription.
    subscription: str
    #: Version of the stream -> the streams of its lanes there. Oldest version first.
    streams: Mapping[str, Sequence[str]]
    #: How many messages it takes at once.
    slots: int
    lease_ms: int
    #: When it registered, Unix time in seconds.
    started: float

    @cached_property
    def lanes(self) -> tuple[LaneKeys, ...]:
        """The keys of its lanes."""
        return tuple(LaneKeys(stream, self.subscription) for streams in self.streams.values() for stream in streams)

    @cached_property
    def records(self) -> tuple[str, ...]:
        """The keys of the copies of its record."""
        return tuple(http_consumer(version, self.id) for version in self.streams)

    def text(self) -> bytes:
        """The record."""
        fields = (self.name, self.subscription, self.streams, self.slots, self.lease_ms, self.started)
        return orjson.dumps(dict(zip(_FIELDS, fields, strict=True)))

    @property
    def record_ms(self) -> int:
        """Lifetime of the record from now on."""
        return self.lease_ms + RECORD_MS


_FIELDS = ("name", "subscription", "streams", "slots", "lease_ms", "started")


class Incarnations:
    """The incarnations that a server knows. For its event loop."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._known: OrderedDict[str, Incarnation] = OrderedDict()

    def add(self, incarnation: Incarnation) -> None:
        """Keeps it."""
        self._known[incarnation.id] = incarnation
        if len(self._known) > KEPT:
            self._known.popitem(last=False)

    async def find(self, name: str, id_: str) -> Incarnation:
        """The incarnation of consumer ``name``. Raises `Problem` (404), and redis errors."""
        found = self._known.get(id_)
        if found is None and _INCARNATION.fullmatch(id_):
            redis = await self._site.redis()
            settings = self._site.settings
            known = (settings.lane.stream, *settings.older_streams)
            copies: Any = await redis.mget([http_consumer(version, id_) for version in known])
            if (text := next(filter(None, copies), None)) is not None:
                fields = orjson.loads(text)
                found = Incarnation(id_, *(fields[name] for name in _FIELDS))
                self.add(found)
        if found is None or found.name != name:
            raise Problem(404, "there is no such incarnation of a consumer of this name: register first")
        return found


def lease_over() -> Problem:
    """The answer to a call of an incarnation whose lease is over."""
    return Problem(
        410, "the lease of this incarnation is over, and its tickets go to others: stop what runs, and register again"
    )
