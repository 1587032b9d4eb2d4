"""Reads a lane at work in one transaction, and checks that records, pending list, queues and leases agree.

What the design says of every moment (I1, I2, I5, I7, I9), and not only of a lane at rest. Pure, but for `look`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from bridge.routing import records
from bridge.routing.keys import LaneKeys
from tests.keycheck import MUST_EXPIRE

#: An entry is pending under a name that no record gives it, or not pending although a record says so (I1, I7).
STATE = "state"
#: Two records name one entry, or two leases one consumer (I1, I2, I5).
TWICE = "twice"
#: A key that must end by itself has no time to live (I9).
ENDLESS = "endless"


@dataclass(frozen=True)
class Moment:
    """A lane at one moment. ``pending``: message id -> the name that has it; ``leases``: the consumer of each;
    ``endless``: keys that must end by themselves and do not.
    """

    tickets: Mapping[str, str]
    pending: Mapping[str, str]
    master: str
    leases: Iterable[str] = ()
    endless: Iterable[str] = ()
    #: Ids that are in the stream; None: nobody deletes from it.
    parked_prefix: str = field(default="master/parked/")
    delayed_name: str = field(default="master/delayed")


def disagreements(moment: Moment) -> list[tuple[str, str]]:
    """What is wrong with the moment: (what, detail)."""
    found = []
    named: dict[str, str] = {}
    for ticket, text in moment.tickets.items():
        record = records.parse(text)
        for id_ in record.ids:
            if id_ in named:
                found.append((TWICE, f"{id_} is in the records of {named[id_]} and {ticket}"))
            named[id_] = ticket
            owner = moment.pending.get(id_)
            wanted = record.consumer if record.in_flight else moment.master
            if not record.parked and owner != wanted:
                found.append((STATE, f"{id_} of {ticket} should be pending under {wanted}, and is under {owner}"))
    for id_, owner in moment.pending.items():
        if owner in (moment.master, moment.delayed_name) or owner.startswith(moment.parked_prefix):
            continue
        if id_ not in named:
            found.append((STATE, f"{id_} is pending under {owner}, and no record says why"))
    found += [
        (TWICE, f"{count} leases of {name} hold at once") for name, count in Counter(moment.leases).items() if count > 1
    ]
    found += [(ENDLESS, f"{key} has no time to live") for key in moment.endless]
    return found


def look(redis: Redis, keys: LaneKeys, master: str = "master") -> list[tuple[str, str]]:
    """Looks at the lane once, in one step of the server. ``redis`` decodes its replies."""
    ending = [key for key in redis.scan_iter(match=f"{keys.prefix}:*", count=1000) if _must_end(keys, key)]
    leases = [key for key in ending if key.startswith(f"{keys.prefix}:lease:")]
    with redis.pipeline(transaction=True) as pipe:
        pipe.hgetall(keys.tickets)
        pipe.xpending_range(keys.stream, keys.group, "-", "+", 100_000)
        for key in ending:
            pipe.pttl(key)
        for key in leases:
            pipe.get(key)
        tickets, pending, *rest = pipe.execute(raise_on_error=False)
    if isinstance(pending, Exception):  # there is no group yet
        return []
    ttls: list[Any] = rest[: len(ending)]
    return disagreements(
        Moment(
            tickets,
            {row["message_id"]: row["consumer"] for row in pending},
            master,
            [name for name in rest[len(ending) :] if name],
            [key for key, ttl in zip(ending, ttls, strict=True) if ttl == -1],
        )
    )


def _must_end(keys: LaneKeys, key: str) -> bool:
    return key.startswith(tuple(f"{keys.prefix}:{kind}" for kind in MUST_EXPIRE))
