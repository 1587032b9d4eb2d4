"""The bodies and answers of the calls of HTTP consumers."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from bridge.protocol.outcome_limits import ERROR_CHARS, MOST_DELAY_S, MOST_ERROR_CHARS, MOST_SLOTS
from bridge.protocol.outcomes import LARGEST

_DIGITS = re.compile(r"[0-9]{1,19}")


def _plain(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must have printable characters only")
    return text


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value


#: The form of a message id, in all layouts of a stream.
MESSAGE_ID = r"^[0-9]{1,20}-[0-9]{1,20}(@(g[0-9]{1,10})?p[0-9]{1,4})?$"
#: A consumer's name is a part of key names and of paths.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@:+-]{0,199}$")]
Incarnation = Annotated[str, StringConstraints(min_length=1, max_length=64)]
MessageId = Annotated[str, StringConstraints(pattern=MESSAGE_ID)]
#: In a CloudEvent the fence is text, which comes back as it was received.
Fence = Annotated[int, BeforeValidator(_number), Field(strict=True, ge=1, lt=LARGEST)]
Task = Annotated[str, StringConstraints(min_length=1, max_length=255), AfterValidator(_plain)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Registering(_Form):
    """What a consumer registers with."""

    name: Name = Field(description="Its name. One incarnation of a name lives at a time.", examples=["billing-1"])
    concurrency: int = Field(
        strict=True, ge=1, le=MOST_SLOTS, description="How many messages it may have unacknowledged at once."
    )
    tasks: list[Task] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="The tasks that it can run; by default all that the app has in the subscription.",
    )
    subscription: str | None = Field(
        default=None, max_length=100, description="The subscription; by default the only one of the app."
    )
    health_url: Annotated[str, StringConstraints(min_length=8, max_length=2000)] | None = Field(
        default=None, alias="healthURL", description="What the masters may ask whether the consumer lives."
    )


class Registered(BaseModel):
    """The answer to a registration."""

    incarnation: str = Field(description="Names this life of the consumer in all further calls.")
    lease_ms: int = Field(description="How long the lease lasts without a heartbeat, in ms.")


class Life(_Form):
    """Which life of a consumer a call is for."""

    incarnation: Incarnation


class Renewed(BaseModel):
    """The answer to a heartbeat."""

    wants: Literal["go on", "quiet", "leave"] = Field(
        description="quiet: take nothing new until this changes. leave: finish, leave and register again."
    )
    lease_ms: int = Field(description="How long the lease lasts from now on without a heartbeat, in ms.")


class Left(BaseModel):
    """The answer to a good-bye."""

    status: Literal["left"] = "left"


class Lost(BaseModel):
    """An attempt that was cut off half way. What it began may have to be rolled back."""

    attempt: int
    fence: int
    consumer: str
    cause: str
    first_fence: int = Field(
        description="Of several attempts in a row that were cut off, the fence of the first one. Else the same fence."
    )


class OwnOptions(BaseModel):
    """Options that a message has of its own. The consumer goes by them: see the page on consumers."""

    max_attempts: int | None = None
    timeout_ms: int | None = Field(default=None, description="For how long the message may run.")
    expires_ms: int | None = Field(
        default=None, description="Unix time in ms. A message that has not begun by then must not begin."
    )


class Message(BaseModel):
    """A message that a consumer was given."""

    ticket_id: str
    message_id: str
    fence: int = Field(description="Grows with every delivery of the ticket. Stores can compare it.")
    attempt: int = Field(description="1, 2, 3 …")
    task: str
    payload: Any = Field(description="The payload as it was pushed.")
    deadline_ms: int = Field(
        description="When the lease ends unless it is renewed: Unix time in ms, by the clock of Redis."
    )
    lost: Lost | None = Field(default=None, description="There when the last attempt was cut off.")
    options: OwnOptions | None = Field(default=None, description="There when the message has options of its own.")


class Messages(BaseModel):
    """The answer to a receive."""

    messages: list[Message]
    lease_ms: int = Field(description="How long the lease lasts from now on without a heartbeat, in ms.")


class Delivery(_Form):
    """One delivery of a message to an incarnation."""

    consumer: Name
    incarnation: Incarnation
    message_id: MessageId
    fence: Fence


class Acknowledgement(Delivery):
    """What became of a delivery."""

    outcome: Literal["done", "failed", "refused", "dead"] = Field(
        description="failed: an attempt is used up. refused: it comes again, and no attempt is used up. dead: it never "
        "comes again."
    )
    error: str | None = Field(
        default=None,
        max_length=MOST_ERROR_CHARS,
        description=f"Why, unless it is done. The first {ERROR_CHARS:,} characters are kept.",
    )
    delay: float | None = Field(
        default=None,
        ge=0,
        le=MOST_DELAY_S,
        allow_inf_nan=False,
        strict=True,
        description="After how many seconds a failed or refused message comes again; by default after its backoff.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Acknowledgement:
        if self.delay is not None and self.outcome not in ("failed", "refused"):
            raise ValueError("delay is for failed and refused messages")
        if self.error is not None and self.outcome == "done":
            raise ValueError("error is for messages that are not done")
        return self


class Result(BaseModel):
    """The answer for one message."""

    message_id: str
    status: int = Field(description="200, or as a single call would be answered: 404, 409, 410 …")
    detail: str | None = None


class Results(BaseModel):
    """The answer to a list: one for each message, in the same order."""

    results: list[Result]


class Acknowledged(BaseModel):
    """The answer to a single acknowledgement."""

    message_id: str
    status: Literal[200] = 200


class Extended(BaseModel):
    """The answer to a call for more time."""

    message_id: str
    deadline_ms: int = Field(description="When the lease ends unless it is renewed: Unix time in ms.")
    lease_ms: int
