"""The Lua scripts of a worker, with a typed function for each: effects that are applied with the
success of a message, and outcomes that a full server would refuse otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redis import Redis

from bridge.routing.keys import LaneKeys
from bridge.routing.layouts import InLayout, in_layout
from bridge.routing.membership import NO_LIFE
from bridge.routing.return_codes import ReturnCode, code_of, text_of
from bridge.routing.scripts import Argument, Script

_APPLY = Script("apply")
_TELL = Script("tell")


class Effect(NamedTuple):
    """One Redis command of a task's effects. ``kind``: the type that its key must have ('' = any), which the command
    itself needs as well; ``check``: 'int' or 'float' when the command adds its last argument to a number, 'gone' when
    it is applied only if there was no such key before the message.
    """

    kind: str
    check: str
    arguments: tuple[Argument, ...]


class Success(NamedTuple):
    """A message that succeeded: its effects and its outcome (JSON)."""

    ticket: str
    fence: int
    outcome: str
    effects: tuple[Effect, ...]


def apply(
    client: Redis, keys: LaneKeys, incarnation: str, successes: Sequence[Success]
) -> list[tuple[ReturnCode, str]]:
    """Applies effects and writes outcomes. Returns a code for each message, and for ERR what cannot be applied."""
    return codes_of(_APPLY.run(client, *_arguments(keys, incarnation, successes)), len(successes))


def application(keys: LaneKeys, incarnation: str, successes: Sequence[Success]) -> tuple[Argument, ...]:
    """The command of `apply`, for a caller who sends it by itself; `codes_of` reads its reply."""
    return _APPLY.call(*_arguments(keys, incarnation, successes))


def codes_of(reply: Any, count: int) -> list[tuple[ReturnCode, str]]:
    """The codes in a reply to `application` with ``count`` successes."""
    if not reply:
        return [(ReturnCode.OK, "")] * count
    return [(code_of(argument), text_of(argument).partition(" ")[2]) for argument in reply]


def _arguments(
    keys: LaneKeys, incarnation: str, successes: Sequence[Success]
) -> tuple[Sequence[Argument], Sequence[Argument]]:
    args: list[Argument] = [incarnation, len(successes), *[success.ticket for success in successes]]
    for _, fence, outcome, effects in successes:
        args += (fence, outcome, len(effects))
        for kind, check, arguments in effects:
            args += (kind, check, len(arguments))
            args += arguments
    return (keys.tickets, keys.applied, keys.outcomes, keys.lease(NO_LIFE)), args


def tell(
    client: Redis, keys: LaneKeys, incarnation: str, outcomes: bytes, layout: InLayout | None = None
) -> ReturnCode:
    """Writes ``outcomes`` (a JSON list), even to a full server. ``layout``: what the lane's stream belongs to; None: it
    is a whole stream.

    LAYOUT: the stream was retired or left; nothing was written.
    """
    layout = layout or in_layout(keys.stream)
    return code_of(_TELL.run(client, [keys.outcomes, layout.key], [incarnation, outcomes, layout.generation]))
