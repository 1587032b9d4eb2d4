"""The election of a lane's leader, and the set of masters that live: one typed function for each Lua script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import RedisError

from bridge.routing.keys import LaneKeys, masters, masters_stand
from bridge.routing.layouts import InLayout
from bridge.routing.return_codes import ReturnCode, code_for_leader, code_of, text_of
from bridge.routing.scripts import Script

_LEAD = Script("lead")
_RENEW = Script("renew")
_RESIGN = Script("resign")
_BEGIN_TERM = Script("begin_term")
_ATTEND = Script("attend")
_DEPART = Script("depart")


class LeaderToken(NamedTuple):
    """What the key of the leader holds: ``<term> <holder>``."""

    term: int
    #: ``<host>:<pid>:<random>`` of its master.
    holder: str


def read_token(text: bytes | str) -> LeaderToken:
    """The token in ``text``. Raises `ValueError` when it is none."""
    term, _, holder = text_of(text).partition(" ")
    return LeaderToken(int(term), holder)


class Candidate(NamedTuple):
    """A master that asks for the lead of one lane. ``layout``: what the lane's stream belongs to."""

    keys: LaneKeys
    layout: InLayout
    lease_ms: int


class Answered(NamedTuple):
    """The answer: whether it was elected, the token of the leader, and the ms that its leader lease has left."""

    elected: bool
    token: str
    left_ms: int


def lead(client: Redis, holder: str, lanes: Sequence[Candidate]) -> list[Answered | RedisError | None]:
    """Tries to lead several lanes, in one round trip.

    Returns for each lane the answer, None when its stream was retired or left, or the error. Raises redis errors that
    are about no single lane.
    """
    calls = [
        (3, one.keys.leader, one.keys.term, one.layout.key, holder, one.lease_ms, one.layout.generation)
        for one in lanes
    ]
    replies = _LEAD.run_each(client, calls)
    return [
        reply if isinstance(reply, RedisError) else _answered(reply, one.lease_ms)
        for one, reply in zip(lanes, replies, strict=True)
    ]


def _answered(reply: Any, lease_ms: int) -> Answered | None:
    code = code_of(reply[0])
    if code is ReturnCode.LAYOUT:
        return None
    if code is ReturnCode.ELECTED:
        return Answered(True, text_of(reply[1]), lease_ms)
    # The key may hold anything that was written by hand: `read_token` refuses what is no token.
    token = reply[1].decode(errors="replace") if isinstance(reply[1], bytes) else reply[1]
    return Answered(False, token, int(reply[2]))


class Lead(NamedTuple):
    """The lead of one lane, as a master has it."""

    keys: LaneKeys
    token: str
    lease_ms: int


def renew(client: Redis, leads: Sequence[Lead]) -> list[bool]:
    """Renews the leader leases of several lanes. Returns for each of them whether it still lasts."""
    keys = [one.keys.leader for one in leads]
    args = [arg for one in leads for arg in (one.token, one.lease_ms)]
    return [code_of(code) is ReturnCode.OK for code in _RENEW.run(client, keys, args)]


def begin_term(client: Redis, keys: LaneKeys, token: str, holder: str, lease_ms: int) -> str:
    """Begins a new term for the master that leads under ``token``. Returns the new token. Raises `NotLeading`."""
    reply = _BEGIN_TERM.run(client, [keys.leader, keys.term], [token, holder, lease_ms])
    code_for_leader(reply[0], keys)
    return text_of(reply[1])


def resign(client: Redis, keys: LaneKeys, token: str) -> bool:
    """Ends the leadership under ``token``. Returns False when it was over already."""
    return code_of(_RESIGN.run(client, [keys.leader], [token])) is ReturnCode.OK


class Attending(NamedTuple):
    """What a master learns when it says that it lives."""

    version: str
    #: Ms until the time of the first other master ends; None: there is no other.
    first_ms: int | None
    #: Holder -> what it stands for; None: as before.
    masters: Mapping[str, str] | None


def attend(client: Redis, stream: str, holder: str, lease_ms: int, stands: str, known: str) -> Attending:
    """Says that ``holder`` lives, for ``lease_ms`` from now on. ``known``: the version that it has seen."""
    reply = _ATTEND.run(client, [masters(stream), masters_stand(stream)], [holder, lease_ms, stands, known])
    version, first_ms, rows = text_of(reply[0]), int(reply[1]), [text_of(value) for value in reply[2]]
    found = dict(zip(rows[::2], rows[1::2], strict=True)) if version != known else None
    return Attending(version, first_ms if first_ms >= 0 else None, found)


def depart(client: Redis, stream: str, holder: str) -> None:
    """Takes ``holder``, which stops, out of the masters that live."""
    _DEPART.run(client, [masters(stream), masters_stand(stream)], [holder])
