"""What a master checks of a lane before it changes anything: whether the lane can be its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.link.key_types import refuse_misplaced
from bridge.protocol.agreement import refuse_other
from bridge.routing.versions import check_versions, refuse_left_behind, refuse_unaware_leader

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

    from bridge.app.lanes import AppLane


def refuse_lane(redis: Redis, app: Celery, lane: AppLane) -> None:
    """Raises `ConfigurationError`, one line, when a master of ``app`` cannot lead ``lane``; redis errors."""
    settings, older = lane.settings, [version.stream for version in lane.older]
    refuse_misplaced(redis, settings.keys)
    refuse_other(redis, app, settings)
    check_versions(redis, settings.stream, older)
    versions = [stream for stream in older if stream not in lane.partition_streams]
    if versions:
        refuse_unaware_leader(redis, settings.keys, versions, settings.leader_lease)
    refuse_left_behind(redis, settings.stream, settings.group, older, lane.partition_streams)
