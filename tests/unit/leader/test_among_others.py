"""A consumer that ends while messages of other lanes run there: which message of this lane is charged for it."""

from __future__ import annotations

import pytest

from bridge.leader.consumers.reroute import SURE_AFTER
from bridge.leader.picture.pieces import SUSPECT_AFTER, Ticket
from bridge.protocol.outcome_entries import GivenUp
from tests.unit.leader.test_lost_together import lane_of


def died(beside: int, losses: int = 0) -> tuple[Ticket, int]:
    """A message with so many losses, alone in its lane, whose consumer died beside so many of others. And in how
    many ms it is due again.
    """
    world, (dead,) = lane_of(1)
    [(_, name), *_] = world.running()
    ticket = world.lane.tickets[name]
    ticket.losses = losses
    world.lease_watch.gave_up(dead, GivenUp(frozenset({ticket.fence}), beside=beside))
    now_ms = world.lane.now_ms()
    world.look({dead: 0})
    return ticket, max(0, ticket.due_ms - now_ms)


def test_alone_on_its_consumer_it_is_charged() -> None:
    ticket, _ = died(beside=0)
    assert (ticket.attempt, ticket.losses) == (2, 0)


@pytest.mark.parametrize("losses", range(SURE_AFTER))
def test_beside_messages_of_other_lanes_it_gets_a_loss_and_no_attempt(losses: int) -> None:
    ticket, _ = died(beside=1, losses=losses)
    assert (ticket.attempt, ticket.losses) == (1, losses + 1)


def test_with_so_many_losses_it_is_charged_all_the_same() -> None:
    ticket, _ = died(beside=3, losses=SURE_AFTER)
    assert (ticket.attempt, ticket.losses) == (2, SURE_AFTER)


def test_a_suspect_waits_for_a_time_that_is_drawn() -> None:
    assert {died(beside=1, losses=SUSPECT_AFTER - 2)[1] for _ in range(5)} == {0}
    assert len({died(beside=1, losses=SURE_AFTER)[1] for _ in range(9)}) > 1
