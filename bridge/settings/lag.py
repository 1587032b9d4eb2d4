"""How far a subscription may fall behind: ``bridge_max_lag``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from bridge.settings.numbers import int_as_float


class LagLimit(BaseModel):
    """How much one lane may have undone, by a number, by bytes or by age, and what happens beyond that.

    `skip` acknowledges its oldest unread messages without a dispatch until it is within the limit: a gap, which the
    counter `skipped` and the history know. `park` stops the lane when so much of it is unread: it handles what it has
    read, and reads nothing new until masters with a larger limit start. Without `count`, `bytes` and `age` there is no
    limit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    count: int | None = Field(
        default=None, ge=1, le=10**12, description="Messages. At most half of them are read ahead."
    )
    bytes: int | None = Field(default=None, ge=1, le=2**50, description="Bytes of the stream, estimated.")
    age: float | None = Field(
        default=None, ge=1, le=100 * 365 * 86_400, description="Seconds since the oldest unread message was added."
    )
    then: Literal["skip", "park"] = Field(default="skip", description="What happens beyond the limit.")

    _whole_seconds = field_validator("age", mode="before")(int_as_float)

    def __bool__(self) -> bool:
        """Whether there is a limit."""
        return any(limit is not None for limit in (self.count, self.bytes, self.age))

    def stops(self, messages: int, used: int | None, oldest_s: float) -> bool:
        """Whether a lane with so much unread reads nothing new: ``messages``, their bytes, the age of the oldest."""
        numbers = ((self.count, messages), (self.bytes, used), (self.age, oldest_s))
        return self.then == "park" and any(
            limit is not None and number is not None and number > limit for limit, number in numbers
        )
