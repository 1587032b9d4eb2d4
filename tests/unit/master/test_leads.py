"""What a master thinks of lanes that belong to other masters."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from bridge.master.leads import Leads
from bridge.stack.embedded import EmbeddedServer


@dataclass(eq=False)
class LaneDouble:
    keys: Any
    settings: Any
    older: list[Any]
    leading: bool


def lane_of(stream: str, *older: Any, leading: bool = False) -> Any:
    keys = SimpleNamespace(leader=f"{{{stream}}}:leader")
    return LaneDouble(keys, SimpleNamespace(leader_lease=2.0), list(older), leading)


def test_the_owner_of_a_lane_is_not_late_while_this_master_keeps_one_that_the_lane_follows(
    valkey: EmbeddedServer,
) -> None:
    """It was thought to be: then it got none of the rest, and for a minute nobody could lead the lane."""
    kept = lane_of("orders:g1:p0", leading=True)
    newest, free = lane_of("orders:g2:p0", kept), lane_of("bills")
    with valkey.client() as redis:
        nothing: Any = None
        leads = Leads(
            redis, "orders", "m1", [kept, newest, free],
            shared=True, named=False, layouts=nothing, outage=nothing, health=nothing,
        )  # fmt: skip
        leads._watch([newest, free], 10.0)
        assert leads._free_since == {free: 10.0}
        kept.leading = False
        leads._watch([newest, free], 11.0)
        assert leads._free_since == {free: 10.0, newest: 11.0}
