"""Updates a consumer's registration: its slots, its tasks or its queues changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridge.protocol.outcome_entries import EntryKind, notice_fields
from bridge.protocol.registration import changed, read_registration

if TYPE_CHECKING:
    from redis import Redis

    from bridge.protocol.registration import ChangingFacts
    from bridge.routing.keys import LaneKeys


def update_registration(redis: Redis, keys: LaneKeys, name: str, incarnation: str, facts: ChangingFacts) -> None:
    """Writes ``facts`` into the registration, if it is still this incarnation's, and wakes the leader.

    Raises ``WatchError`` when another process changed a registration meanwhile: then try again.
    """
    with redis.pipeline(transaction=True) as pipe:
        pipe.watch(keys.consumers)
        found: Any = pipe.hget(keys.consumers, name)
        registration = read_registration(found) if found else None
        if registration is None or registration.incarnation != incarnation:
            return
        pipe.multi()
        pipe.hset(keys.consumers, name, changed(registration, **facts.fields()))
        pipe.execute_command("XADD", keys.outcomes, "*", *notice_fields(EntryKind.JOINED, incarnation, name))
        pipe.execute()
