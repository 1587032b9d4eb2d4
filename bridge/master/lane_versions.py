"""The other versions of a lane's stream, as one master knows them.

The app names the older versions that the lane follows. Newer ones, and versions that the app does not name any more
(*dropped* ones), are read from the server.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from bridge.leader.picture.chain import chain_of
from bridge.leader.step.dropped_versions import DroppedVersions
from bridge.routing.keys import LaneKeys
from bridge.routing.versions import dropped_versions, newer_versions

if TYPE_CHECKING:
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.leader.picture.chain import Place

logger = get_logger(__name__)

#: Seconds between two notes that another master leads a version that this one does not name.
NOTE_S = 30.0


class LaneVersions:
    """The versions of the stream of ``lane``."""

    def __init__(self, lane: AppLane) -> None:
        self._lane = lane
        self._keys = lane.settings.keys
        #: The lane's place in its chain; None: its stream has no other versions, as far as this process knows.
        self.place: Place | None = None
        #: The dropped versions.
        self._dropped: Sequence[str] = ()
        #: Whether another master leads one of them. This one leaves it all lanes of the chain then.
        self.yields = False
        self._note_at = 0.0
        #: Dropped versions that this user may not look at. Each was said once.
        self._hidden: set[str] = set()

    @property
    def dropped_leaders(self) -> list[str]:
        """The leader keys of the dropped versions."""
        return [LaneKeys(stream, self._keys.group).leader for stream in self._dropped]

    def read_dropped(self, redis: Redis) -> None:
        older = [version.stream for version in self._lane.older]
        partitions = self._lane.partition_streams
        self._dropped = dropped_versions(
            redis, self._keys.stream, self._keys.group, older, partitions, self._say_hidden
        )

    def _say_hidden(self, stream: str) -> None:
        if stream not in self._hidden:
            self._hidden.add(stream)
            logger.warning(
                "this Redis user may not look at %s, an older version of %s that this app does not name: whether all "
                "of its messages are done is not known, and newer ones do not wait for them; retire it (`bridge stream "
                "retire`), or name it in bridge_follows and run `bridge acl master` again",
                stream,
                self._keys.stream,
            )

    def suppose_led(self) -> None:
        """Supposes, until the next look, that another master leads a dropped version, if there is one."""
        self.yields = bool(self._dropped)

    def dropped_is_led(self, led: bool) -> bool:
        """Notes whether another master leads a dropped version. Returns whether this was logged now."""
        self.yields = led
        now = time.monotonic()
        if not led or now < self._note_at:
            return False
        self._note_at = now + NOTE_S
        logger.info("standing by: another master leads %s, which this one does not name", " or ".join(self._dropped))
        return True

    def place_in_chain(self, redis: Redis) -> tuple[Place | None, DroppedVersions | None]:
        """(the lane's place; None: its stream has no other versions; the dropped versions; None: there are none). Asked
        in each term: another master may have led a newer version meanwhile, and may have messages in flight there.
        """
        newer = newer_versions(redis, self._keys.stream)
        self.read_dropped(redis)
        dropped = DroppedVersions(redis, self._keys, self._dropped) if self._dropped else None
        if self.place is None and (newer or dropped is not None):
            [self.place] = chain_of([(self._keys, ())])
        if self.place is not None:
            known = {*newer, *(one.stream for one in self._lane.newer)}
            self.place.newer_keys = tuple(LaneKeys(stream, self._keys.group) for stream in sorted(known))
        return self.place, dropped
