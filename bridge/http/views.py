"""The read-only views: what the commands print with ``--json``, of the lanes of one subscription, by page.

They read as the commands do, without asyncio, on a few threads of their own. What waits for one of them is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import orjson
from fastapi import APIRouter, Path, Query, Response
from pydantic import AfterValidator

from bridge.app.finding import reach_lanes
from bridge.app.lanes import newest_lanes_of, subscriptions_of
from bridge.http.access import Caller, Verb
from bridge.http.bodies import JSON
from bridge.http.consumer_forms import MESSAGE_ID
from bridge.http.problems import Problem, documented, unavailable
from bridge.http.queries import QueryRoute
from bridge.http.site import Reading, Site, SiteOf, chosen
from bridge.inspect.advice import Advice
from bridge.inspect.choice import lane_of_message, lane_of_ticket, lanes_with_ticket
from bridge.inspect.dead_letters import of_message, read_page
from bridge.inspect.delayed import DuePlace, Mode, Selection, count_of, now_ms_of
from bridge.inspect.delayed import read_page as delayed_page
from bridge.inspect.dropped import dropped_problems, read_dropped
from bridge.inspect.lane_problems import lane_problems
from bridge.inspect.partitions import name_letter
from bridge.inspect.pending import PendingState, Wanted
from bridge.inspect.pending_pages import read_pending
from bridge.inspect.subscriptions import read_subscriptions
from bridge.inspect.versions import find_ticket
from bridge.producer.message_bytes import ticket_bytes
from bridge.routing.errors import InputError
from bridge.routing.ids import can_be_id
from bridge.routing.partitions import stream_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.settings.lane import LaneSettings

T = TypeVar("T")

router = APIRouter(tags=["views"], route_class=QueryRoute)

#: Threads of the views, and the most requests that wait for one.
THREADS = 2
WAITING = 32
#: Most rows of one page.
MOST = 1000
#: The latest time that a sorted set keeps exactly.
MOST_MS = 2**53

#: A place among the delayed messages: when one is due, and its id.
DELAYED_PLACE = r"^[0-9]{1,16}:" + MESSAGE_ID.removeprefix("^")

_threads = ThreadPoolExecutor(THREADS, "bridge-http-view")
_waiting = 0


def _id_of_a_server(value: str | None) -> str | None:
    if value is not None and not can_be_id(stream_id(value)):
        raise ValueError("each half of an id has 64 bits at most")
    return value


Subscription = Annotated[
    str | None,
    Query(min_length=1, max_length=512, description="The subscription. Needed when the app has several."),
]
PageEnd = Annotated[
    str | None, Query(pattern=MESSAGE_ID, description="`next` of the page before."), AfterValidator(_id_of_a_server)
]
Limit = Annotated[int, Query(ge=1, le=MOST, description="Most rows of the answer.")]
TicketFilter = Annotated[str | None, Query(min_length=1, max_length=512, description="Only of this ticket.")]
DOCUMENT: dict[str, Any] = {"content": {JSON: {"schema": {"type": "object"}}}}


def _responses(what: str, *statuses: int) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": what, **DOCUMENT}, **documented(*statuses)}


class _Json(Response):
    """JSON of documents that hold JSON texts as they came."""

    media_type = JSON

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)


@router.get(
    "/api/status",
    summary="The state of the subscriptions",
    responses=_responses("`subscriptions` and `problems` (of lanes), as in `bridge status --json`.", 404),
)
async def status(site: SiteOf, caller: Reading, subscription: Subscription = None) -> Response:
    """The counts of each subscription that the token may read, and what needs attention."""

    def read() -> dict[str, Any]:
        commands = _advice(site)
        lanes = {
            name: found
            for name, found in subscriptions_of(site.app).items()
            if (subscription is None and caller.may(Verb.READ, name)) or name == subscription
        }
        if subscription is not None:
            _allowed(site, caller, subscription)
        every = [lane for some in lanes.values() for lane in some]
        with closing(reach_lanes(site.app, every)) as redis:
            found = read_subscriptions(redis, {name: [lane.settings for lane in some] for name, some in lanes.items()})
            problems = lane_problems(redis, site.settings, every, found, commands)
            problems += dropped_problems(redis, read_dropped(redis, every))
        return {
            "subscriptions": [one.document(commands(lanes[one.name][0].settings)) for one in found],
            "problems": problems,
        }

    return _Json(await _off_the_loop(read))


@router.get(
    "/api/tickets/{ticket_id:path}",
    summary="Where a ticket is, and why it does not move",
    responses=_responses("As `bridge ticket show --json`, without what the ticket keeps.", 404),
)
async def ticket(
    site: SiteOf,
    caller: Reading,
    ticket_id: Annotated[str, Path(min_length=1, max_length=512, description="The ticket.")],
    subscription: Subscription = None,
) -> Response:
    """Answers 404 when nothing is known of the ticket."""

    def read(redis: Redis, lanes: Sequence[AppLane]) -> dict[str, Any]:
        found = find_ticket(site.app, redis, lane_of_ticket(lanes, ticket_id), ticket_id, _advice(site))
        if found.state is None:
            raise Problem(404, "nothing is known of this ticket")
        return found.document()

    return await _view(site, caller, subscription, read)


@router.get(
    "/api/pending", summary="The pending messages", responses=_responses("As `bridge pending --json` of a page.", 404)
)
async def pending(
    site: SiteOf,
    caller: Reading,
    subscription: Subscription = None,
    consumer: Annotated[str | None, Query(min_length=1, max_length=512, description="Only under this name.")] = None,
    ticket: TicketFilter = None,
    state: Annotated[PendingState | None, Query(description="Only in this state.")] = None,
    idle: Annotated[float, Query(ge=0, le=2**43, description="Only messages that are idle for so many seconds.")] = 0,
    after: PageEnd = None,
    limit: Limit = 100,
) -> Response:
    """One page, in the order of the ids. `next` says where the next page begins; null: this is the last."""

    def read(redis: Redis, lanes: Sequence[AppLane]) -> dict[str, Any]:
        if after is not None:
            _lane_of(lanes, after)
        some = lanes if ticket is None else lanes_with_ticket(lanes, ticket)
        wanted = Wanted(int(idle * 1000) or None, consumer, ticket, state)
        return read_pending(redis, some, wanted, after=after, limit=limit).document()

    return await _view(site, caller, subscription, read)


@router.get(
    "/api/delayed", summary="The delayed messages", responses=_responses("As `bridge delayed list --json`.", 404)
)
async def delayed(
    site: SiteOf,
    caller: Reading,
    subscription: Subscription = None,
    ticket: TicketFilter = None,
    task: Annotated[str | None, Query(max_length=512, description="Only of this task.")] = None,
    mode: Annotated[Mode | None, Query(description="Only in this mode.")] = None,
    after_ms: Annotated[
        int | None, Query(ge=0, le=MOST_MS, description="Only due at this time (Unix ms) or later.")
    ] = None,
    before_ms: Annotated[int | None, Query(ge=0, le=MOST_MS, description="Only due by this time (Unix ms).")] = None,
    after: Annotated[str | None, Query(pattern=DELAYED_PLACE, description="`next` of the page before.")] = None,
    limit: Limit = 100,
) -> Response:
    """One page; what is due next comes first. `next` says where the next page begins; null: this is the last."""

    def read(redis: Redis, lanes: Sequence[AppLane]) -> dict[str, Any]:
        now_ms = now_ms_of(redis)
        behind = None if after is None else DuePlace.of_text(after)
        page = delayed_page(redis, lanes, Selection(ticket, task, after_ms, before_ms, mode, behind), limit)
        found = [message.summary(now_ms) for message in page.found]
        return {
            "total": count_of(redis, lanes, Selection()),
            "next": page.last and page.last.place.text,
            "messages": found,
        }

    return await _view(site, caller, subscription, read)


@router.get(
    "/api/dead-letters",
    summary="The dead letters",
    responses=_responses("As `bridge dead list --json`, by page.", 404),
)
async def dead_letters(
    site: SiteOf,
    caller: Reading,
    subscription: Subscription = None,
    ticket: TicketFilter = None,
    task: Annotated[str | None, Query(max_length=512, description="Only of this task.")] = None,
    reason: Annotated[
        str | None, Query(min_length=1, max_length=512, description="Only with this text in their reason or error.")
    ] = None,
    before: PageEnd = None,
    limit: Limit = 100,
) -> Response:
    """One page, newest first. `next` says where the next page begins; null: this is the last."""

    def read(redis: Redis, lanes: Sequence[AppLane]) -> dict[str, Any]:
        if before is not None:
            _lane_of(lanes, before)
        if ticket is not None:
            ticket_bytes(ticket)
        page = read_page(redis, lanes, before=before, limit=limit, ticket=ticket, task=task, reason=reason)
        return page.document()

    return await _view(site, caller, subscription, read)


@router.get(
    "/api/dead-letters/{message_id}",
    summary="One dead letter, with its payload and traceback",
    responses=_responses("As `bridge dead show --json`.", 404),
)
async def dead_letter(
    site: SiteOf,
    caller: Reading,
    message_id: Annotated[str, Path(pattern=MESSAGE_ID, description="The id of the message, or of its letter.")],
    subscription: Subscription = None,
) -> Response:
    """The newest letter of the message."""

    def read(redis: Redis, lanes: Sequence[AppLane]) -> dict[str, Any]:
        lane = _lane_of(lanes, message_id)
        letters = of_message(redis, lane.settings.keys, stream_id(message_id))
        if not letters:
            raise Problem(404, "this message has no dead letter")
        return {**name_letter(letters[-1], lane.id_suffix).document(), "letters": len(letters)}

    return await _view(site, caller, subscription, read)


def _advice(site: Site) -> Callable[[LaneSettings], Advice]:
    """How the views name commands about a lane. The port does not know what -A its callers need."""
    subscriptions = subscriptions_of(site.app)
    version_of = {lane.settings.stream: lane.version for lanes in subscriptions.values() for lane in lanes}
    newest = site.settings.lane.stream

    def advice(lane: LaneSettings) -> Advice:
        version = version_of.get(lane.stream, newest)
        return Advice("APP", lane.group if len(subscriptions) > 1 else None, None if version == newest else version)

    return advice


async def _view(
    site: Site,
    caller: Caller,
    subscription: str | None,
    read: Callable[[Redis, Sequence[AppLane]], dict[str, Any]],
) -> Response:
    """The answer with what ``read`` finds in the lanes of a subscription."""

    def run() -> dict[str, Any]:
        lanes = newest_lanes_of(site.app, _allowed(site, caller, subscription))
        with closing(reach_lanes(site.app, lanes)) as redis:
            return read(redis, lanes)

    return _Json(await _off_the_loop(run))


def _allowed(site: Site, caller: Caller, subscription: str | None) -> str:
    return chosen(caller, Verb.READ, subscriptions_of(site.app), subscription)


def _lane_of(lanes: Sequence[AppLane], message_id: str) -> AppLane:
    try:
        return lane_of_message(lanes, message_id)
    except InputError as exc:
        raise Problem(404, str(exc)) from None


async def _off_the_loop(read: Callable[[], T]) -> T:
    """Calls ``read`` on a thread. Raises `Problem` (503) when too many wait for one."""
    global _waiting
    if _waiting >= WAITING:
        raise unavailable("too many views are being read; try again")
    _waiting += 1
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, read)
    finally:
        _waiting -= 1
