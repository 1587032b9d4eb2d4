"""The routes of HTTP consumers: register, heartbeat, leave, next, acknowledge, extend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, Depends, Query, Request, Response
from pydantic import Discriminator, Field, Tag

from bridge.http.access import Verb
from bridge.http.acknowledging import Acknowledging, problem_of, result_of
from bridge.http.bodies import JsonRoute
from bridge.http.cloud_events import BATCHED, wants_events
from bridge.http.consumer_forms import (
    Acknowledged,
    Acknowledgement,
    Delivery,
    Extended,
    Left,
    Life,
    Messages,
    Name,
    Registered,
    Registering,
    Renewed,
    Results,
)
from bridge.http.incarnations import Incarnation, Incarnations
from bridge.http.problems import Problem, documented
from bridge.http.receiving import Receiving
from bridge.http.registering import Registry
from bridge.http.site import Consuming, chosen, require
from bridge.http.wakes import Wakes
from bridge.protocol.outcome_limits import MOST_ITEMS, MOST_SLOTS, MOST_WAIT_S
from bridge.protocol.outcomes import LARGEST

if TYPE_CHECKING:
    from bridge.http.access import Caller
    from bridge.http.site import Site

router = APIRouter(tags=["consumers"], route_class=JsonRoute)


class Consumers:
    """What the routes use. One for each server."""

    def __init__(self, site: Site) -> None:
        self.incarnations = Incarnations(site)
        self.registry = Registry(site, self.incarnations)
        self.receiving = Receiving(site, Wakes(site))
        self.acknowledging = Acknowledging(site, self.incarnations, self.registry)

    async def find(self, caller: Caller, name: str, id_: str) -> Incarnation:
        """The incarnation, when ``caller`` may use it. Raises `Problem`: 403 or 404."""
        found = await self.incarnations.find(name, id_)
        require(caller, Verb.CONSUME, found.subscription)
        return found


def _consumers(request: Request) -> Consumers:
    found: Consumers = request.app.state.consumers
    return found


#: The form is chosen before it is checked: else an error would be said of both. A tag with a bracket is no part of the
#: place that an error names.
OneOrMany = Annotated[
    Annotated[Acknowledgement, Tag("[one]")]
    | Annotated[list[Acknowledgement], Field(min_length=1, max_length=MOST_ITEMS), Tag("[many]")],
    Discriminator(lambda body: "[many]" if isinstance(body, list) else "[one]"),
]
ConsumersOf = Annotated[Consumers, Depends(_consumers)]


@router.post(
    "/api/consumers/register", summary="Begin an incarnation of a consumer", responses=documented(404, 409, 415)
)
async def register(request: Request, consumers: ConsumersOf, caller: Consuming, asked: Registering) -> Registered:
    """Takes a lease in all lanes of the subscription. While another incarnation of this name holds its lease, the call
    waits for its end. When the client closes its connection meanwhile, the name stays free.
    """
    known = consumers.registry.subscriptions()
    lanes = known[chosen(caller, Verb.CONSUME, known, asked.subscription)]
    found = await consumers.registry.register(asked, lanes, request.is_disconnected)
    return Registered(incarnation=found.id, lease_ms=found.lease_ms)


@router.post("/api/consumers/{name}/heartbeat", summary="Renew the lease", responses=documented(404, 410, 415))
async def heartbeat(consumers: ConsumersOf, caller: Consuming, name: Name, life: Life) -> Renewed:
    """Renews the lease. Send three in the time of a lease, so that two may be lost."""
    found = await consumers.find(caller, name, life.incarnation)
    beat = await consumers.registry.heartbeat(found)
    return Renewed(wants=consumers.registry.wants(found, beat), lease_ms=found.lease_ms)  # type: ignore[arg-type]


@router.post("/api/consumers/{name}/leave", summary="End the lease", responses=documented(404, 410, 415))
async def leave(consumers: ConsumersOf, caller: Consuming, name: Name, life: Life) -> Left:
    """Ends the lease, so that the consumer's tickets move at once. Nothing may run there any more."""
    found = await consumers.find(caller, name, life.incarnation)
    await consumers.registry.leave(found)
    return Left()


@router.get(
    "/api/messages/next",
    summary="Receive messages",
    response_model=Messages,
    responses={**documented(404, 410), 200: {"content": {BATCHED: {"schema": {"type": "array"}}}}},
)
async def receive(
    request: Request,
    consumers: ConsumersOf,
    caller: Consuming,
    consumer: Annotated[Name, Query(description="The name of the consumer.")],
    incarnation: Annotated[str, Query(min_length=1, max_length=64)],
    most: Annotated[int, Query(alias="max", ge=1, le=MOST_SLOTS, description="Most messages to return.")] = 1,
    wait: Annotated[
        float, Query(ge=0, le=MOST_WAIT_S, allow_inf_nan=False, description="Longest wait, in seconds.")
    ] = 0,
    has: Annotated[
        list[Annotated[int, Field(ge=1, lt=LARGEST)]] | None,
        Query(
            max_length=MOST_SLOTS,
            description="Fences of the messages that the consumer has and works on: they are not returned again.",
        ),
    ] = None,
) -> Response:
    """Returns the messages that this incarnation was given and has not acknowledged, without those that it ``has``, and
    then new ones, until it has as many as its concurrency. When there is none, it waits. With `Accept:
    application/cloudevents-batch+json` the messages are CloudEvents.
    """
    found = await consumers.find(caller, consumer, incarnation)
    events = wants_events(request.headers.get("accept", ""))
    body = await consumers.receiving.receive(found, most, wait, has or (), events=events)
    return Response(body, media_type=BATCHED) if events else _json(body)


@router.post(
    "/api/messages/acknowledge",
    summary="Say what became of messages",
    response_model=Acknowledged | Results,
    responses=documented(404, 409, 410, 415),
)
async def acknowledge(
    consumers: ConsumersOf,
    caller: Consuming,
    asked: Annotated[OneOrMany, Body()],
) -> Any:
    """Records outcomes, each under its fence. A call may be repeated. In the answer to a list, each message has a
    status of its own.
    """
    items = asked if isinstance(asked, list) else [asked]
    answers: dict[int, Problem | None] = {}
    for places in _by_life(items).values():
        first = items[places[0]]
        try:
            found = await consumers.find(caller, first.consumer, first.incarnation)
        except Problem as problem:
            answers.update(dict.fromkeys(places, problem))
            continue
        codes = await consumers.acknowledging.acknowledge(found, [items[place] for place in places])
        answers.update(zip(places, map(problem_of, codes), strict=True))
    if isinstance(asked, list):
        return {"results": [result_of(item.message_id, answers[place]) for place, item in enumerate(items)]}
    refused = answers[0]
    if refused is not None:
        raise refused
    return Acknowledged(message_id=asked.message_id)


@router.post("/api/messages/extend", summary="Ask for more time", responses=documented(404, 409, 410, 415))
async def extend(consumers: ConsumersOf, caller: Consuming, asked: Delivery) -> Extended:
    """Renews the lease as a heartbeat does, and says whether the message is still the consumer's."""
    found = await consumers.find(caller, asked.consumer, asked.incarnation)
    deadline_ms, own = await consumers.acknowledging.extend(found, [(asked.message_id, asked.fence)])
    if not own[0]:
        raise Problem(409, "the fence is stale: this delivery of the message does not count any more")
    return Extended(message_id=asked.message_id, deadline_ms=deadline_ms, lease_ms=found.lease_ms)


def _by_life(items: list[Acknowledgement]) -> dict[tuple[str, str], list[int]]:
    """(consumer, incarnation) -> the places of its items."""
    found: dict[tuple[str, str], list[int]] = {}
    for place, item in enumerate(items):
        found.setdefault((item.consumer, item.incarnation), []).append(place)
    return found


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
