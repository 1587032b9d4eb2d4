"""A lane beyond ``bridge_max_lag``, against a server of which only numbers are seen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bridge.leader.duties.lag import Lag
from bridge.protocol.outcomes import Kind
from bridge.settings.lag import LagLimit
from tests.unit.leader.lane_world import LaneWorld

#: Bytes of each message.
SIZE = 100

#: What happens between two looks: so many messages are pushed, the leader may read, and so many of them are handled.
turns = st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.integers(0, 30)), min_size=1, max_size=30)
limits = st.one_of(
    st.builds(lambda count: LagLimit(count=count, then="park"), st.integers(1, 40)),
    st.builds(lambda count: LagLimit(bytes=count * SIZE, then="park"), st.integers(1, 40)),
)


class Server:
    """A lane of which ``unread`` and ``pending`` messages are undone."""

    def __init__(self) -> None:
        self.unread = self.pending = 0

    @property
    def expected(self) -> int:
        """As `PendingList.expected`."""
        return self.pending

    def call(self, *words: Any) -> Any:
        if words[0] == "ZCARD":
            return 0
        if words[0] == "XLEN":
            return self.unread + self.pending
        group = {"name": b"g", "last-delivered-id": b"1-1", "pending": self.pending, "lag": self.unread}
        return [group] if words[:2] == ("XINFO", "GROUPS") else None

    def call_many(self, _commands: Any) -> list[int]:
        length = self.unread + self.pending
        return [length, length * SIZE]


@given(limits, turns)
def test_a_parked_lane_has_little_read_and_stays_parked_whatever_is_handled(
    limit: LagLimit, turns: list[tuple[int, bool, int]]
) -> None:
    server: Any = Server()
    keys = SimpleNamespace(stream="s", group="g", delayed="d")
    term: Any = SimpleNamespace(settings=SimpleNamespace(max_lag=limit), wire=server, keys=keys)
    lane: Any = SimpleNamespace(parked={}, resting=SimpleNamespace(messages=0))
    lag = Lag(term, lane, server)
    most = limit.count or (limit.bytes or 0) // SIZE
    parked = False
    for pushed, reads, handled in turns:
        server.unread += pushed
        if reads and lag.open:
            read = min(lag.room, server.unread)
            server.unread, server.pending = server.unread - read, server.pending + read
            lag.was_read(read)
        server.pending -= min(handled, server.pending)
        lag.look()
        parked = parked or server.unread > most
        assert not (parked and lag.open)
        assert lag.excess == 0
        # Before a size is known, a limit of bytes may let a few more be read.
        assert server.pending <= (max(1, most // 2) if limit.count else max(16, most // 2))


@given(
    *(st.integers(1, 20), st.integers(0, 60), st.integers(0, 60)),
    *(st.sampled_from(["parked", "rests"]), st.sampled_from(["park", "skip"])),
)
def test_what_stands_still_counts_only_beyond_the_limit(
    half: int, standing: int, pushed: int, how: str, then: Any
) -> None:
    """By messages; `half` of the limit may be read ahead. In `tests/integration` it is a limit by age, too."""
    most = 2 * half
    world = LaneWorld(window=500, breaker={"share": 0.0})
    world.join("w1@h")
    # Given a ticket that stands still with so many messages
    if how == "parked":
        world.order(do="park", ticket="S")
    for _ in range(standing):
        world.push("S")
        world.read()
        for parcel, ticket in world.running():
            world.step([world.outcome(parcel, ticket, Kind.FAILED, delay_ms=60_000)])
    server: Any = Server()
    server.pending, server.unread = standing, pushed
    keys = SimpleNamespace(stream="s", group="g", delayed="d")
    term: Any = SimpleNamespace(
        settings=SimpleNamespace(max_lag=LagLimit(count=most, then=then)), wire=server, keys=keys
    )
    lag = Lag(term, world.lane, server)
    # When the leader compares the lane with its limit
    lag.look()
    # Then only what is beyond it takes room from other tickets
    beyond = max(0, standing - most)
    assert lag.room == half - beyond
    if then == "skip":
        assert lag.excess == max(0, pushed + beyond - most)
    else:
        assert (lag.excess, lag.open) == (0, pushed <= most and beyond < half)
    # And a new leader knows it, too
    world.rebuild()
    again = Lag(term, world.lane, server)
    again.look()
    assert again.room == lag.room
