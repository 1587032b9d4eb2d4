"""The membership of consumers in a lane: one typed function for each of its Lua scripts."""

from __future__ import annotations

from collections.abc import Sequence

from redis import Redis

from bridge.routing.keys import LaneKeys
from bridge.routing.layouts import InLayout, in_layout
from bridge.routing.return_codes import ReturnCode, code_of, text_of
from bridge.routing.scripts import Argument, Script

_REGISTER = Script("register")
_GOODBYE = Script("goodbye")
_DIED = Script("died")
_MEET = Script("meet")


#: Stands for the incarnation of a consumer that has none: no lease has this name.
NO_LIFE = "none"


def register(
    client: Redis,
    keys: LaneKeys,
    consumer: str,
    incarnation: str,
    lease_ms: int,
    registration: Argument,
    found: tuple[Argument, str] | None,
    layout: InLayout | None = None,
) -> tuple[ReturnCode, int]:
    """Begins an incarnation. ``found``: the current registration and its incarnation; None: there is none.
    ``layout``: what the lane's stream belongs to; None: it is a whole stream.

    Returns OK, HELD with the ms that the other lease has left, CHANGED, or LAYOUT: the lane's stream was retired or
    left.
    """
    old_registration, old_incarnation = found or ("", NO_LIFE)
    layout = layout or in_layout(keys.stream)
    leases = [keys.lease(incarnation), keys.lease(old_incarnation)]
    reply = _REGISTER.run(
        client,
        [keys.consumers, *leases, keys.queue(consumer), keys.outcomes, layout.key],
        [consumer, incarnation, lease_ms, registration, old_registration, layout.generation],
    )
    code = code_of(reply[0])
    return code, int(reply[1]) if code is ReturnCode.HELD else 0


def meet(
    client: Redis, keys: LaneKeys, format_: int, app: str, layout: InLayout | None = None
) -> tuple[ReturnCode, str]:
    """Checks that the lane has this app and format. The first member of a lane sets both. ``layout``: as for
    `register`.

    Returns OK, NEWER with the lane's format, OTHER with the name of the lane's app, or LAYOUT: the lane's stream was
    retired or left.
    """
    layout = layout or in_layout(keys.stream)
    reply = _MEET.run(client, [keys.about, layout.key], [format_, app, layout.generation])
    return code_of(reply[0]), text_of(reply[1]) if len(reply) > 1 else ""


def goodbye(client: Redis, keys: LaneKeys, consumer: str, incarnation: str) -> None:
    """Ends the lease of an incarnation that shuts down. Writes nothing when it is over already."""
    _GOODBYE.run(client, [keys.lease(incarnation), keys.held(incarnation), keys.outcomes], [consumer, incarnation])


def died(
    client: Redis,
    keys: LaneKeys,
    consumer: str,
    incarnation: str,
    ran: Sequence[int],
    *,
    asked: bool = False,
    beside: int = 0,
) -> ReturnCode:
    """Ends the lease of an incarnation that is certainly gone. ``ran``: fences of the messages that it was running.
    ``asked``: it was told to end at once, so that none of these messages is to blame. ``beside``: how many messages of
    other lanes it was running.

    LATE: the lease was over already; nothing was written.
    """
    return code_of(
        _DIED.run(
            client,
            [keys.lease(incarnation), keys.held(incarnation), keys.outcomes],
            [consumer, incarnation, f"[{','.join(map(str, ran))}]", int(asked), beside],
        )
    )
