"""Consumer groups on an app's streams that the app does not name: subscriptions of other apps, or forgotten ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bridge.inspect.advice import NOT_OF_AN_APP
from bridge.inspect.stream_status import StreamStatus, holds_much, read_streams
from bridge.routing.groups import groups_in
from bridge.routing.numbers import count, data_size
from bridge.routing.text import one_line
from bridge.settings.subscriptions import with_group

if TYPE_CHECKING:
    from redis import Redis

    from bridge.inspect.advice import Advice
    from bridge.settings.lane import LaneSettings


def undeclared_holders(
    redis: Redis, declared: Mapping[str, Sequence[LaneSettings]], commands: Advice = NOT_OF_AN_APP
) -> list[str]:
    """A sentence for each consumer group that the app does not name and that holds messages which all subscriptions of
    the app are done with. It needs no permission for keys of such a group.

    Raises redis errors.
    """
    found = []
    ours = {name.encode() for name in declared}
    names = sorted({lane.stream for lanes in declared.values() for lane in lanes})
    with redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.execute_command("XINFO", "GROUPS", name)
        replies = pipe.execute(raise_on_error=False)
    # Most streams have no others.
    with_others = {name for name, reply in zip(names, replies, strict=True) if groups_in(reply).keys() - ours}
    streams = read_streams(redis, with_others)[1] if with_others else {}
    for stream, status in sorted(streams.items()):
        most = max((status.undone(name) for name in ours), default=0)
        for raw in sorted(status.groups.keys() - ours):
            messages = status.undone(raw, at_least=True) - most
            used = status.bytes_of(messages)
            if not holds_much(messages, used):
                continue
            size = "" if used is None else f", about {data_size(used)}"
            name = raw.decode(errors="backslashreplace")
            found.append(
                f"{one_line(name)}, a subscription that this app does not name, holds {count(messages, 'message')} of "
                f"{one_line(stream)}{size}: all subscriptions of this app are done with them; if no other app needs "
                f"it, {commands.of_app('subscription', 'remove', about=name)}"
            )
    return found


def undeclared_lanes(
    streams: Mapping[str, StreamStatus], declared: Mapping[str, Sequence[LaneSettings]]
) -> dict[str, list[LaneSettings]]:
    """Name -> lanes of the groups on these streams that the app does not name."""
    like = {lane.stream: lane for lanes in declared.values() for lane in lanes}
    found: dict[str, list[LaneSettings]] = {}
    for stream, status in sorted(streams.items()):
        for raw in sorted(status.groups):
            try:
                name = raw.decode()
            except UnicodeDecodeError:
                # The group of another program.
                continue
            if name not in declared:
                found.setdefault(name, []).append(with_group(like[stream], name))
    return found
