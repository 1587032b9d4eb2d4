"""``POST /api/messages``: pushes one message or many, as `TicketTask.push` does, also in the form of CloudEvents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel, ConfigDict, FailFast, Field, TypeAdapter, ValidationError

from bridge.app.belonging import require_task
from bridge.app.lanes import names_of_subscriptions, unsplit_lanes_of
from bridge.http import cloud_events
from bridge.http.access import Caller, Verb
from bridge.http.bodies import JSON, check_members, media_type_of, pushed_json, require_json
from bridge.http.problems import Problem, documented
from bridge.http.queries import QueryRoute
from bridge.http.site import Pushing, SiteOf
from bridge.producer.options import LONGEST_DELAY_MS, NAMES, NONE, eta_of_text
from bridge.producer.push import apush_each, apush_many
from bridge.routing.errors import ConfigurationError
from bridge.routing.message_options import HIGHEST_PRIORITY, LONGEST_TIMEOUT_MS, MOST_ATTEMPTS
from bridge.routing.messages import MAX_TASK_BYTES

if TYPE_CHECKING:
    from celery import Celery

router = APIRouter(tags=["messages"], route_class=QueryRoute)

#: Most messages of one request.
MOST = 10_000


class NewMessage(BaseModel):
    """A message to push."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ticket_id: str | int = Field(description="The ticket: 1 to 512 bytes of UTF-8. A whole number is taken as text.")
    payload: Any = Field(default=None, description="JSON, at most `bridge_max_payload` bytes.")
    task: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_TASK_BYTES,
        description="The task that handles it. Without it: the default task of the app.",
    )
    delay: float | None = Field(
        default=None, ge=0, le=LONGEST_DELAY_MS / 1000, description="Seconds until the message is due."
    )
    eta: str | None = Field(
        default=None, description="When the message is due, in the form of ISO 8601, with a time zone."
    )
    hold: bool = Field(
        default=False,
        description="Whether later messages of the ticket wait until this one is due. Otherwise they overtake it.",
    )

    max_attempts: int | None = Field(
        default=None, ge=1, le=MOST_ATTEMPTS, description="Attempts before the message becomes a dead letter."
    )
    timeout: float | None = Field(
        default=None, ge=0.001, le=LONGEST_TIMEOUT_MS / 1000, description="Longest time of one attempt, in seconds."
    )
    expires: float | None = Field(
        default=None,
        ge=0,
        le=LONGEST_DELAY_MS / 1000,
        description="Seconds after which the message becomes a dead letter, if it has not begun by then.",
    )
    priority: int = Field(
        default=0, ge=0, le=HIGHEST_PRIORITY, description="Tickets whose next message has a higher one go first."
    )

    def options(self) -> dict[str, Any]:
        """The options, as `TicketTask.push` takes them. Raises `OptionError`."""
        found = {name: getattr(self, name) for name in NAMES}
        return {**found, "eta": None if self.eta is None else eta_of_text(self.eta)}


class Pushed(BaseModel):
    """The messages that are in the stream now."""

    message_ids: list[str] = Field(description="The ids of the messages, in the order in which they were sent.")


#: A body may have two million wrong items. The first one is enough.
_ONE: TypeAdapter[NewMessage] = TypeAdapter(NewMessage)
_MANY: TypeAdapter[list[NewMessage]] = TypeAdapter(Annotated[list[NewMessage], FailFast()])
_MESSAGE = {"$ref": "#/components/schemas/NewMessage"}
_EVENT: dict[str, Any] = {
    "type": "object",
    "required": list(cloud_events.REQUIRED),
    "properties": {
        "specversion": {"const": cloud_events.VERSION},
        **{name: {"type": "string", "pattern": f"^{cloud_events.TEXT}$"} for name in cloud_events.REQUIRED[1:]},
        "data": {},
    },
    "not": {"required": ["data_base64"]},
}
_BODY = {
    "required": True,
    "content": {
        JSON: {"schema": {"oneOf": [_MESSAGE, {"type": "array", "items": _MESSAGE, "minItems": 1, "maxItems": MOST}]}},
        cloud_events.STRUCTURED: {"schema": _EVENT},
        cloud_events.BATCHED: {"schema": {"type": "array", "items": _EVENT, "minItems": 1, "maxItems": MOST}},
    },
}
#: What the description of the interface has for the bodies.
SCHEMAS = {"NewMessage": NewMessage.model_json_schema()}


@router.post(
    "/api/messages",
    status_code=201,
    summary="Push one message or many",
    responses=documented(408, 409, 415),
    openapi_extra={"requestBody": _BODY},
)
async def push(
    request: Request,
    site: SiteOf,
    caller: Pushing,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=512,
            description="A second push with the same key within a day adds nothing. Not used for CloudEvents.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=MAX_TASK_BYTES,
            description="The task of messages that name none, such as CloudEvents.",
        ),
    ] = None,
) -> Pushed:
    """Adds messages to the stream, in their order, and answers with their ids.

    All are checked before the first is added. The messages of one request are for one task. They go in parts of up to
    500 messages or 1 MiB, each added whole or not at all. On 503 the member `message_ids` names those that are in for
    certain. With an `Idempotency-Key` the same request can be sent again: what is in is not added again, and the answer
    has the same ids. A CloudEvent has its own key, `source` and `id`, and no other: each event of a batch is added on
    its own, and not again if it is in the stream.
    """
    messages, keys = await _read(request)
    name = _task_of(site.app, messages, task)
    _authorise(site.app, caller, name)
    try:
        require_task(site.app, name)
        rows = [(message.ticket_id, message.payload, message.options()) for message in messages]
        if keys:
            found = await apush_each(site.app, name, rows, keys, site.stopping.is_set)
        else:
            found = await apush_many(
                site.app,
                name,
                rows,
                idempotency_key=idempotency_key,
                options=NONE,
                is_stopping=site.stopping.is_set,
            )
    except ConfigurationError as exc:
        raise Problem(400, f"{exc}; nothing was pushed") from None
    return Pushed(message_ids=found)


async def _read(request: Request) -> tuple[Sequence[NewMessage], Sequence[str]]:
    """The messages of a request, and of events the idempotency key of each."""
    media_type = media_type_of(request)
    if media_type in (cloud_events.STRUCTURED, cloud_events.BATCHED):
        found = pushed_json(await request.body())
        events = cloud_events.checked(_few(found) if media_type == cloud_events.BATCHED else [found])
    elif cloud_events.is_binary(request.headers):
        raw = await request.body()
        if raw:
            require_json(request)
        events = cloud_events.checked([cloud_events.binary_event(request.headers, pushed_json(raw) if raw else None)])
    else:
        require_json(request)
        return _messages(pushed_json(await request.body())), ()
    return [_of_event(event) for event in events], [cloud_events.key_of(event) for event in events]


def _few(document: Any) -> Any:
    """``document``, unless it is a list of no or too many messages: before anything is made of each."""
    if isinstance(document, list) and not 0 < len(document) <= MOST:
        raise Problem(400, f"one request must have 1 to {MOST:,} messages, not {len(document):,}; nothing was pushed")
    return document


def _messages(document: Any) -> Sequence[NewMessage]:
    many = isinstance(document, list)
    check_members(_few(document) if many else [document])
    try:
        return _MANY.validate_python(document) if many else [_ONE.validate_python(document)]
    except ValidationError as exc:
        raise _malformed(exc, many=many) from None


def _malformed(exc: ValidationError, *, many: bool) -> Problem:
    error = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    where = [str(part)[:80] for part in error["loc"]]
    place = f"message {where.pop(0)}" if many and where else "the message"
    member = f", {'.'.join(where)}" if where else ""
    return Problem(400, f"{place}{member}: {error['msg'].lower()}; nothing was pushed")


def _of_event(event: Mapping[str, Any]) -> NewMessage:
    return NewMessage(ticket_id=event["partitionkey"], payload=event.get("data"))


def _task_of(app: Celery, messages: Sequence[NewMessage], wanted: str | None) -> str:
    """The name of the task of all messages. Raises `Problem` (400) when there are several, or none."""
    named = {wanted if message.task is None else message.task for message in messages}
    if len(named) > 1:
        raise Problem(400, "the messages of one request must be for one task: send one request for each task")
    [name] = named
    if name is None:
        name = _default_task(app)
    return name


def _default_task(app: Celery) -> str:
    found = {lane.settings.default_task for lane in unsplit_lanes_of(app)} - {None}
    if len(found) != 1:
        raise Problem(400, "name the task of the message: this app has no default task for all its subscriptions")
    return str(found.pop())


def _authorise(app: Celery, caller: Caller, task: str) -> None:
    """Raises `Problem` (403) unless ``caller`` may push for the subscription of ``task``. Its name is not told.

    A task that this app does not know may be one of any subscription.
    """
    if caller.subscriptions is None:
        return
    own = [lane.name for lane in unsplit_lanes_of(app) if task in lane.tasks]
    if not all(caller.may(Verb.PUSH, name) for name in own or names_of_subscriptions(app)):
        raise Problem(403, f"this token may not push for the subscription of the task {task!r:.200}")
