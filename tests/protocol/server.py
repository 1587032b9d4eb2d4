"""The server of a world as the reference has it, and back: ids for positions, records and Celery messages for runs."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from bridge.routing import records
from bridge.routing.keys import LaneKeys
from tests.protocol.guards import Guard
from tests.protocol.world import CODES, DEAD, DONE, IN_FLIGHT, UNREAD, Broken, Lease, Out, Run
from tests.reference.contents import MASTER
from tests.reference.lane import ReferenceLane

KEYS = LaneKeys("stream", "group")


class Server(NamedTuple):
    """What the scripts see of a world, and change; see there."""

    lead: int
    fence: int
    messages: tuple[tuple[int, ...], ...]
    records: tuple[Run | None, ...]
    outcomes: tuple[Out, ...]
    leases: tuple[Lease, ...]
    queues: tuple[tuple[Run, ...], ...]
    applied: tuple[int, ...]


def lane_of(server: Server, dropped: AbstractSet[Guard]) -> ReferenceLane:
    """The reference with what is on the server."""
    lane = ReferenceLane(KEYS, dropped)
    lane.leader = str(server.lead or "")
    lane.fence = server.fence
    lane.stamp = lambda _key, fields: fields["message_id"]
    lane.tickets = {str(ticket): text_of(record) for ticket, record in enumerate(server.records) if record}
    lane.applied = {str(ticket): fence for ticket, fence in enumerate(server.applied) if fence}
    lane.leases = {life_of(w, lease.life): str(w) for w, lease in enumerate(server.leases) if lease.held}
    lane.queues = {str(w): [message_of(run) for run in queue] for w, queue in enumerate(server.queues)}
    lane.outcomes = {f"{i}-1": {"i": life_of(out.worker, out.life)} for i, out in enumerate(server.outcomes, 1)}
    places = ((pos, ticket) for ticket, states in enumerate(server.messages) for pos in range(len(states)))
    for pos, ticket in sorted(places):
        id_, state, record = id_of(ticket, pos), server.messages[ticket][pos], server.records[ticket]
        lane.entries[id_] = None
        lane.delivered += state != UNREAD
        if state == DEAD:
            lane.letters[id_] = {"message_id": id_}
        elif state not in (UNREAD, DONE):
            lane.pending[id_] = str(record.worker) if state == IN_FLIGHT and record else MASTER
    return lane


def server_of(lane: ReferenceLane, before: Server) -> Server:
    """What is on the server now. Raises `Broken` when a message is not in exactly one state (I1)."""
    states: dict[str, int] = {}
    for id_, found in lane.states().items():
        if len(found) != 1:
            raise Broken(f"I1: message {id_} is in {len(found)} states: {found}")
        states[id_] = CODES[found.pop()]
    tickets = range(len(before.messages))
    return before._replace(
        fence=lane.fence,
        messages=tuple(tuple(states[id_of(t, pos)] for pos in range(len(before.messages[t]))) for t in tickets),
        records=tuple(_run(t, lane.tickets.get(str(t))) for t in tickets),
        outcomes=tuple(out for i, out in enumerate(before.outcomes, 1) if f"{i}-1" in lane.outcomes),
        queues=tuple(tuple(map(popped, lane.queues[str(w)])) for w in range(len(before.queues))),
        applied=tuple(lane.applied.get(str(t), 0) for t in tickets),
    )


def id_of(ticket: int, pos: int) -> str:
    """The stream has the first messages of all tickets, then the second ones, and so on."""
    return f"{pos + 1}-{ticket}"


def life_of(worker: int, life: int) -> str:
    """The incarnation."""
    return f"{worker}.{life}"


def ids_of(run: Run) -> list[str]:
    """The ids of its messages."""
    return [id_of(run.ticket, pos) for pos in range(run.first, run.first + run.length)]


def text_of(run: Run | None) -> str:
    """The record of the ticket; '': there is none."""
    return records.record(run.fence, tail_of(run)) if run is not None else ""


def tail_of(run: Run) -> str:
    """The record after the fence."""
    return records.tail(str(run.worker), str(run.life), run.attempt, ids_of(run), 0)


def _run(ticket: int, text: str | None) -> Run | None:
    if text is None:
        return None
    record = records.parse(text)
    first = int(record.ids[0].partition("-")[0]) - 1
    return Run(
        ticket, first, len(record.ids), record.fence, record.attempt, int(record.consumer), int(record.incarnation)
    )


def message_of(run: Run) -> str:
    """A Celery message; the fence comes first."""
    return ",".join(str(int(word)) for word in (run.fence, *run._replace(fence=0)))


def popped(message: str) -> Run:
    """The run of a Celery message."""
    fence, ticket, first, length, _, attempt, worker, life, doubt = map(int, message.split(","))
    return Run(ticket, first, length, fence, attempt, worker, life, bool(doubt))
