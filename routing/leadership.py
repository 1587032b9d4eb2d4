"""The election of a lane's leader: one typed function for each of its Lua scripts."""

from __future__ import annotations

from typing import NamedTuple

from redis import Redis

from bridge.routing.keys import LaneKeys
from bridge.routing.return_codes import ReturnCode, code_for_leader, code_of, text_of
from bridge.routing.scripts import Script

_LEAD = Script("lead")
_RENEW = Script("renew")
_RESIGN = Script("resign")
_BEGIN_TERM = Script("begin_term")


class LeaderToken(NamedTuple):
    """What the key of the leader holds: ``<term> <holder>``."""

    term: int
    #: ``<host>:<pid>:<random>`` of its master.
    holder: str


def read_token(text: bytes | str) -> LeaderToken:
    """The token in ``text``."""
    term, _, holder = text_of(text).partition(" ")
    return LeaderToken(int(term), holder)


def lead(client: Redis, keys: LaneKeys, holder: str, lease_ms: int) -> tuple[bool, str, int]:
    """Tries to lead the lane. Returns (elected, token of the leader, ms that its leader lease has left)."""
    reply = _LEAD.run(client, [keys.leader, keys.term], [holder, lease_ms])
    if code_of(reply[0]) is ReturnCode.ELECTED:
        return True, text_of(reply[1]), lease_ms
    return False, text_of(reply[1]), int(reply[2])


def renew(client: Redis, keys: LaneKeys, token: str, lease_ms: int) -> bool:
    """Renews the leader lease. Returns False when it is over."""
    return code_of(_RENEW.run(client, [keys.leader], [token, lease_ms])) is ReturnCode.OK


def begin_term(client: Redis, keys: LaneKeys, token: str, holder: str, lease_ms: int) -> str:
    """Begins a new term for the master that leads under ``token``. Returns the new token. Raises `NotLeading`."""
    reply = _BEGIN_TERM.run(client, [keys.leader, keys.term], [token, holder, lease_ms])
    code_for_leader(reply[0], keys)
    return text_of(reply[1])


def resign(client: Redis, keys: LaneKeys, token: str) -> bool:
    """Ends the leadership under ``token``. Returns False when it was over already."""
    return code_of(_RESIGN.run(client, [keys.leader], [token])) is ReturnCode.OK
