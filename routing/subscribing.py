"""Makes and deletes the group of a lane, and all its keys: what `bridge subscription` changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redis import Redis

from bridge.routing.errors import LaneGone
from bridge.routing.keys import LaneKeys
from bridge.routing.layouts import InLayout, in_layout
from bridge.routing.return_codes import ReturnCode, code_of, text_of
from bridge.routing.scripts import Argument, Script

_MAKE_GROUP = Script("make_group")
_UNSUBSCRIBE = Script("unsubscribe")


def make_group(client: Redis, keys: LaneKeys, position: str, layout: InLayout | None = None) -> bool:
    """Makes the group, which reads the entries after ``position``, and the stream if there is none. ``layout``: what
    the lane's stream belongs to; None: it is a whole stream.

    Returns False when the group is there already. Raises `LaneGone` when the stream was retired or left, redis errors.
    """
    layout = layout or in_layout(keys.stream)
    code = code_of(_MAKE_GROUP.run(client, [keys.stream, layout.key], [keys.group, position, layout.generation])[0])
    if code is ReturnCode.LAYOUT:
        raise LaneGone(f"the stream {keys.stream} was retired or repartitioned")
    return code is ReturnCode.OK


def unsubscribe(
    client: Redis, keys: LaneKeys, registered: Mapping[Argument, tuple[Argument, str]], doomed: Sequence[str]
) -> tuple[ReturnCode, str]:
    """Deletes the group and the keys ``doomed``. ``registered``: consumer -> its registration and its incarnation.

    Returns OK with the number of deleted things, HELD with the token of the leader, ALIVE with the name of a consumer,
    or CHANGED.
    """
    leases = [keys.lease(incarnation) for _, incarnation in registered.values()]
    known = [word for name, (registration, _) in registered.items() for word in (name, registration)]
    reply = _UNSUBSCRIBE.run(
        client,
        [keys.leader, keys.stream, keys.consumers, *leases, *doomed],
        [keys.group, len(registered), *known],
    )
    return code_of(reply[0]), text_of(str(reply[1]) if isinstance(reply[1], int) else reply[1]) if reply[1:] else ""
