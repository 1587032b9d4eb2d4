"""The circuit breaker of a task in a lane whose stream has other versions."""

from __future__ import annotations

import pytest

from bridge.protocol.outcomes import Kind
from tests.unit.leader.chain_world import Chain

BROKEN, OTHER = "short", "long"


@pytest.mark.parametrize("others", [0, 8])
def test_another_message_is_tried_when_the_first_one_waits_for_an_older_version(others: int) -> None:
    # Given a task that is stopped in the newer version, and two tickets that wait for it
    chain = Chain({"v0": [], "v1": ["v0"]}, window=10, page=10, clocked=True)
    older, newer = chain.worlds
    for world in chain.worlds:
        world.join("w@h")
    chain.settle()
    with newer.turn():
        newer.breakers.restore(BROKEN, "its circuit breaker is open")
    newer.push("T", BROKEN)
    newer.push("U", BROKEN)
    chain.settle()
    # And the first one is parked in the older version. There may be so much else that no message of it stays in memory
    older.push("T", OTHER)
    older.order(do="park", ticket="T")
    for n in range(others):
        older.push(f"x{n}", OTHER)
        newer.push(f"x{n}", OTHER)
    chain.settle()
    # Then the second one is tried soon, and closes the circuit
    for _ in range(60):
        if not newer.breakers.why(BROKEN):
            break
        chain.now += 1000
        for world in chain.worlds:
            world.check_at_intervals()
        chain.settle()
        newer.step([newer.outcome(parcel, ticket, Kind.DONE) for parcel, ticket in newer.running() if ticket == "U"])
    assert not newer.breakers.why(BROKEN)
