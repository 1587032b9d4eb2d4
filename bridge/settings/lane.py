"""The settings of one lane, for its masters, consumers and producers.

`bridge.settings.app` reads them from the ``bridge_…`` settings of an app. The reference page is made from the
descriptions here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator, model_validator

from bridge.routing.filters import Filter
from bridge.routing.keys import LaneKeys
from bridge.routing.policies import PolicyName
from bridge.settings.lag import LagLimit
from bridge.settings.numbers import int_as_float
from bridge.settings.retries import Backoff

#: Stands for an unlimited number of attempts.
MOST_ATTEMPTS = 1_000_000


class BreakerLimits(BaseModel):
    """When a task's circuit breaker opens.

    Within ``seconds``, messages of at least ``tickets`` different tickets failed, and failures are at least the
    ``share`` of the task's outcomes. While it is open, one message is tried every ``probe`` seconds. A ``share`` of 0
    turns breakers off.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    share: float = Field(
        default=0.9, ge=0, le=1, description="Share of the task's outcomes that must be failures. 0 turns breakers off."
    )
    tickets: int = Field(default=20, ge=2, le=100_000, description="Different tickets whose messages must have failed.")
    seconds: float = Field(
        default=60.0,
        ge=1,
        le=86_400,
        description="Length of the time window in which outcomes count, in seconds.",
    )
    probe: float = Field(
        default=5.0,
        ge=1,
        le=86_400,
        description="Seconds between two tries while the breaker is open.",
    )


class LaneSettings(BaseModel):
    """The settings of one lane, without their prefix, with default and unit."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    stream: str = Field(
        default="ticket_stream",
        min_length=1,
        max_length=512,
        description="The Redis stream that messages come from. It must not end in `:p` or `:g` and a number, as the "
        "partitions of a stream do.",
    )
    group: str = Field(
        default="concurrency_stream_group",
        min_length=1,
        max_length=512,
        description="The consumer group on the stream. Each group on a stream is a lane of its own.",
    )
    master: str = Field(
        default="master",
        min_length=1,
        max_length=512,
        description="The master's consumer name in the group. Waiting messages are pending under it.",
    )
    default_task: str | None = Field(
        default=None, description="The task of messages that name none. None: such a message is dead."
    )
    filter: Filter | None = Field(
        default=None,
        description="Which messages this consumer group wants, as a dict: field of the message, or member of its "
        "payload, and the values that are wanted. The others are acknowledged without a dispatch, and counted. None: "
        "all.",
    )
    policy: PolicyName = Field(
        default=PolicyName.LEAST_LOADED,
        description="How the consumer of a ticket that has none is chosen: least_loaded, rendezvous (by consistent "
        "hashing of the ticket), round_robin or random.",
    )
    lease: float = Field(
        default=6.0,
        ge=0.5,
        le=3600,
        description="Length of a worker's lease, in seconds. Its tickets move after the lease is over. Equal in "
        "masters and workers.",
    )
    leader_lease: float = Field(
        default=5.0,
        ge=0.5,
        le=3600,
        description="Length of the leader lease, in seconds. A standby takes over when it is over.",
    )
    max_attempts: int = Field(
        default=5,
        ge=1,
        le=MOST_ATTEMPTS,
        description="Attempts before a message becomes a dead letter. A task may have its own.",
    )
    max_deliveries: int | None = Field(
        default=1000,
        ge=2,
        le=1_000_000_000,
        description="Deliveries, as XPENDING counts them, beyond which a message becomes a dead letter when another "
        "program has taken it from the bridge. None: never.",
    )
    backoff: Backoff = Field(default=Backoff(), description="How long a failed message waits before its next attempt.")
    breaker: BreakerLimits = Field(
        default=BreakerLimits(), description="When messages of a task that fails for every ticket are held back."
    )
    dead_max: int = Field(
        default=100_000,
        ge=1,
        le=1_000_000_000,
        description="Dead letters at which the leader reads nothing new, until some are replayed or dropped.",
    )
    on_dead: Literal["skip", "park"] = Field(
        default="skip",
        description="What becomes of the ticket of a dead message. skip: it goes on with the next message; park: it "
        "stands still until an operator releases it. A task may have its own.",
    )
    unknown_after: float = Field(
        default=600.0,
        ge=0,
        le=365 * 86_400,
        description="Seconds after which a message becomes a dead letter if no consumer has had its task lately "
        "(within the last week).",
    )
    max_payload: int = Field(
        default=1024 * 1024,
        ge=2,
        le=256 * 1024 * 1024,
        description="Bytes of a message's payload, as JSON. A larger message becomes a dead letter at once.",
    )
    max_state: int = Field(
        default=1024 * 1024,
        ge=2,
        le=256 * 1024 * 1024,
        description="Bytes of a ticket's state: its names, and its values as JSON. A message that would make it larger "
        "fails.",
    )
    state_ttl: float | None = Field(
        default=None,
        ge=0.001,
        le=100 * 365 * 86_400,
        description="Seconds after the last change of a ticket's state after which the state is deleted. None: it is "
        "kept. A task may set it for one ticket: state.ttl(seconds).",
    )
    bundle_ms: float = Field(
        default=10.0,
        ge=0,
        le=10_000,
        description="About how long a bundle of short tasks lasts, in ms. 0 turns bundles off.",
    )
    history: int = Field(
        default=100_000,
        ge=0,
        le=100_000_000,
        description="Fewest results of deliveries that the history keeps; it has little more. Each takes some 130 "
        "bytes. 0 turns the history off.",
    )
    retention: float | None = Field(
        default=0.0,
        ge=0,
        le=100 * 365 * 86_400,
        description="Minimum seconds that an entry stays in the stream after it was added, even if it is acknowledged. "
        "None: for ever. An entry with a dead letter stays.",
    )
    window: int = Field(
        default=50_000,
        ge=100,
        le=10_000_000,
        description="Messages that the leader keeps in memory. The rest waits in Redis.",
    )
    window_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=1024 * 1024,
        le=64 * 1024**3,
        description="About how many bytes of messages the leader keeps in memory. Half may be in flight.",
    )

    max_lag: LagLimit = Field(
        default=LagLimit(), description="How much one lane may have undone, and what happens beyond that."
    )

    @field_validator("max_lag", mode="before")
    @classmethod
    def _lag_of_mapping(cls, value: object) -> object:
        return dict(value) if isinstance(value, Mapping) else value

    @field_validator("policy", mode="before")
    @classmethod
    def _policy_by_value(cls, value: object) -> object:
        if isinstance(value, str):
            try:
                return PolicyName(value)
            except ValueError:
                names = ", ".join(p.value for p in PolicyName)
                raise ValueError(f"must be one of {names}") from None
        return value

    @field_validator("filter", mode="before")
    @classmethod
    def _filter_of_mapping(cls, value: object) -> object:
        return None if value is None else Filter.read(value)

    @field_serializer("filter", when_used="json")
    def _filter_in_one_order(self, value: Filter | None) -> object:
        return None if value is None else value.in_one_order()

    _whole_seconds = field_validator(
        "lease", "leader_lease", "bundle_ms", "retention", "state_ttl", "unknown_after", mode="before"
    )(int_as_float)

    @field_validator("backoff", "breaker", mode="before")
    @classmethod
    def _of_mapping(cls, value: object) -> object:
        if isinstance(value, Mapping):
            return {k: v if k == "tickets" else int_as_float(v) for k, v in value.items()}
        return value

    @field_validator("stream")
    @classmethod
    def _no_hash_tag_of_its_own(cls, value: str) -> str:
        # The lane's keys begin with {stream}: a brace in it would change their slot, or make them another lane's.
        if "{" in value or "}" in value:
            raise ValueError("must not contain { or }; the lane's keys put it in braces themselves")
        return value

    @model_validator(mode="after")
    def _consumers_differ_from_master(self) -> LaneSettings:
        if "@" in self.master:
            raise ValueError("bridge_master must not contain '@', or it could be a worker's node name")
        return self

    def on_stream(self, stream: str) -> LaneSettings:
        """The same settings for a lane on another stream."""
        found = self.model_copy(update={"stream": stream})
        vars(found).pop("keys", None)
        return found

    @cached_property
    def keys(self) -> LaneKeys:
        """The keys of the lane."""
        return LaneKeys(self.stream, self.group)

    @property
    def lease_ms(self) -> int:
        """The lease of a consumer, in ms."""
        return int(self.lease * 1000)

    @property
    def leader_lease_ms(self) -> int:
        """The lease of a leader, in ms."""
        return int(self.leader_lease * 1000)


#: Settings of a lane that are dicts -> the model of their members.
DICTS: dict[str, type[BaseModel]] = {"backoff": Backoff, "breaker": BreakerLimits, "max_lag": LagLimit}
