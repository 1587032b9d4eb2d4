"""What a master thinks of the lanes that it does not lead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as Lost

import bridge.master.leads
from bridge.link.server_clock import ServerClock
from bridge.master.leads import Leads
from bridge.protocol.standing import Standing, read_standing
from bridge.routing.keys import LaneKeys, masters, masters_stand
from bridge.routing.layouts import in_layout
from bridge.routing.leadership import Candidate, Lead, attend
from bridge.routing.leadership import lead as lead_each
from bridge.stack.embedded import EmbeddedServer
from tests.script_calls import lead


@dataclass(eq=False)
class LaneDouble:
    """A lane as `Leads` knows it."""

    keys: LaneKeys
    settings: Any
    older: list[Any]
    leading: bool
    dropped_leaders: Sequence[str] = ()
    #: What it was told, in order.
    told: list[tuple[str, str]] = field(default_factory=list)
    clock: ServerClock = field(default_factory=lambda: ServerClock(60.0))

    @property
    def title(self) -> str:
        return self.keys.stream

    @property
    def chain(self) -> str:
        return self.keys.stream

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.keys, in_layout(self.keys.stream), 2000)

    def may_stand(self, _now: float) -> bool:
        return True

    def elected(self, token: str, _sent: float) -> None:
        self.leading = True
        self.told.append(("elected", token))

    def hand_over(self, successor: str | None, _until: float) -> None:
        assert successor is None

    def follows(self, _holder: str, token: str) -> None:
        self.told.append(("follows", token))


def lane_of(stream: str, *older: Any, leading: bool = False) -> Any:
    return LaneDouble(LaneKeys(stream, "bridge"), SimpleNamespace(leader_lease=2.0), list(older), leading)


def leads_of(redis: Redis, lanes: Sequence[Any], *, shared: bool = True) -> Leads:
    nothing: Any = None
    return Leads(
        redis, "orders", "m1", lanes, shared=shared, named=False, layouts=nothing, outage=nothing, health=nothing
    )


def test_the_owner_of_a_lane_is_not_late_while_this_master_keeps_one_that_the_lane_follows(
    valkey: EmbeddedServer,
) -> None:
    """It was thought to be: then it got none of the rest, and for a minute nobody could lead the lane."""
    kept = lane_of("orders:g1:p0", leading=True)
    newest, free = lane_of("orders:g2:p0", kept), lane_of("bills")
    with valkey.client() as redis:
        leads = leads_of(redis, [kept, newest, free])
        leads._watch([newest, free], 10.0)
        assert leads._free_since == {free: 10.0}
        kept.leading = False
        leads._watch([newest, free], 11.0)
        assert leads._free_since == {free: 10.0, newest: 11.0}


def test_a_master_that_did_not_learn_that_it_was_elected_does_not_wait_for_itself(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane stood still until the leader lease ended."""
    lost, led = lane_of("orders"), lane_of("bills")

    def stand_without_reply(*args: Any) -> Any:
        lead_each(*args)
        raise Lost("the connection broke before the reply")

    with valkey.client() as redis:
        # Given a lane of another master, and a reply of an election that was lost
        lead(redis, led.keys, "m2", 60_000)
        leads = leads_of(redis, [lost, led], shared=False)
        monkeypatch.setattr(bridge.master.leads, "lead", stand_without_reply)
        with pytest.raises(Lost):
            leads._ask()
        monkeypatch.undo()
        # When the master asks again, then it gives up the term that it did not learn of
        leads._ask_at = 0.0
        leads._ask()
        assert redis.get(lost.keys.leader) is None
        # And it is elected at once in a new one, and the other master leads on
        leads._ask()
        assert lost.told == [("elected", "2 m1")]
        assert led.told == [("follows", "1 m2")] * 2
        assert redis.get(led.keys.leader) == b"1 m2"


def stands_aside_in(redis: Redis) -> frozenset[str]:
    """The chains that the master leaves to others, as they see it."""
    found: Any = redis.hget(masters_stand("orders"), "m1")
    return read_standing(found.partition(b" ")[2]).aside


def test_a_defect_in_a_lane_while_the_master_names_its_lanes_is_told_next(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other masters learned of it with the next renewal, so for that time nobody led the lane."""
    with valkey.client() as redis:
        leads = leads_of(redis, [lane_of("orders"), lane_of("bills")])
        share = leads._share
        assert share is not None

        def attend_meanwhile(*args: Any) -> Any:
            leads.stand_aside("bills")
            return attend(*args)

        # Given a defect on a lane's thread while the command is under way
        monkeypatch.setattr(bridge.master.leads, "attend", attend_meanwhile)
        leads._attend(share)
        assert stands_aside_in(redis) == set()
        monkeypatch.undo()
        # When the thread turns again, then the others are told
        leads._attend(share)
        assert stands_aside_in(redis) == {"bills"}


def test_two_lanes_may_have_a_defect_at_one_moment(valkey: EmbeddedServer) -> None:
    """The set of lanes changed while it was looked at: that was a defect of all lanes, which were not renewed."""
    with valkey.client() as redis:
        leads = leads_of(redis, [lane_of("orders"), lane_of("bills")])
        share = leads._share
        assert share is not None

        class Until(float):
            """A time that another thread's defect meets."""

            def __gt__(self, other: float) -> bool:
                leads.stand_aside("bills")
                return super().__gt__(other)

        leads.stand_aside("orders")
        leads._aside["orders"] = Until(leads._aside["orders"])
        leads._attend(share)
        assert stands_aside_in(redis) == {"orders"}
        leads._attend(share)
        assert stands_aside_in(redis) == {"orders", "bills"}


def test_a_place_among_the_masters_that_got_no_answer_is_asked_for_again(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with valkey.client() as redis:
        leads = leads_of(redis, [lane_of("orders"), lane_of("bills")])
        share = leads._share
        assert share is not None
        leads._attend(share)
        leads.stand_aside("bills")

        def no_answer(*_args: Any) -> Any:
            raise Lost("the connection broke")

        monkeypatch.setattr(bridge.master.leads, "attend", no_answer)
        with pytest.raises(Lost):
            leads._attend(share)
        monkeypatch.undo()
        leads._attend(share)
        assert stands_aside_in(redis) == {"bills"}


class Away:
    """A server that refuses each connection."""

    def __getattr__(self, _name: str) -> Any:
        def refuse(*_args: Any, **_options: Any) -> Any:
            raise Lost("refused")

        return refuse


@pytest.mark.parametrize("standing", [True, False])
def test_the_server_is_not_back_because_nothing_was_asked_for(standing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log said that it was, and a tenth of a second later it was away again."""
    said: list[str] = []
    lane = lane_of("orders", leading=not standing)
    lane.outage = SimpleNamespace(noted=lambda: None)
    lane.election = SimpleNamespace(renewing=Lock(), lead=Lead(lane.keys, "1 m1", 2000), is_overdue=False)
    leads = leads_of(cast("Any", Away()), [lane], shared=False)
    leads._outage = cast("Any", SimpleNamespace(met=lambda _exc: said.append("away"), over=lambda: said.append("back")))
    leads._layouts = cast("Any", SimpleNamespace(look=lambda: None, look_at=float("inf")))
    # The first turn finds it out. In the next ones nothing is due
    leads._try_turn()
    monkeypatch.setattr(leads, "_renew", lambda: None)
    leads._try_turn()
    leads._try_turn()
    assert said == ["away"] * 3


def wrong_set(redis: Redis, _url: str) -> Redis:
    redis.set(masters("orders"), "a note")
    return redis


def wrong_hash(redis: Redis, _url: str) -> Redis:
    redis.set(masters_stand("orders"), "a note")
    return redis


def no_permission(redis: Redis, url: str) -> Redis:
    redis.execute_command("ACL", "SETUSER", "limited", "on", "nopass", "+@all", "~{orders}[:/][bl]*", "~{bills*")
    return Redis.from_url(url.replace("redis://", "redis://limited:any@"))


@pytest.mark.parametrize("deed", [wrong_set, wrong_hash, no_permission])
def test_lanes_are_led_although_the_server_refuses_the_set_of_masters(
    valkey: EmbeddedServer, caplog: pytest.LogCaptureFixture, deed: Callable[[Redis, str], Redis]
) -> None:
    """No master led anything, and the log did not name the key."""
    with valkey.client() as redis:
        # Given a master that knows of another one, which should lead some of the lanes
        lanes = [lane_of("orders"), *(lane_of(f"bills{n}") for n in range(8))]
        leads = leads_of(redis, lanes)
        leads._layouts = cast("Any", SimpleNamespace(look=lambda: None, look_at=float("inf")))
        leads._outage = cast("Any", SimpleNamespace(over=lambda: None))
        leads._renew_at = float("inf")
        stands = Standing(frozenset(lane.chain for lane in lanes), named=False, aside=frozenset()).text()
        attend(redis, "orders", "m2", 60_000, stands, "")
        leads._try_turn()
        assert 0 < sum(lane.leading for lane in lanes) < len(lanes)
        # When the set cannot be used
        redis.delete(masters("orders"), masters_stand("orders"))
        leads._redis = deed(redis, valkey.url)
        for _ in range(3):
            leads._attend_at = leads._ask_at = 0.0
            assert leads._try_turn() > 0.1, "it does not try without a pause"
        # Then it asks for all lanes, which it says once, with the key
        assert all(lane.leading for lane in lanes)
        [line] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert masters("orders") in line
        # And they are shared again when it can
        redis.delete(masters("orders"), masters_stand("orders"))
        leads._redis = redis
        attend(redis, "orders", "m2", 60_000, stands, "")
        leads._attend_at = 0.0
        leads._try_turn()
        assert leads._share is not None
        assert leads._share.others == 1
