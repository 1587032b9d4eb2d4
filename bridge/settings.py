"""The ``bridge_…`` settings of a Celery app: one frozen, validated object, made once at start."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from bridge.address import address_of, database_of, normalised, parsed
from bridge.given import PREFIX, given_settings
from bridge.retries import Backoff
from bridge.routing.connection import check_options
from bridge.routing.errors import ConfigurationError
from bridge.routing.keys import LaneKeys
from bridge.routing.policies import PolicyName

if TYPE_CHECKING:
    from celery import Celery

#: Of URLs that name one server.
SCHEMES = ("redis", "rediss", "redis+socket", "unix")


class BreakerLimits(BaseModel):
    """A task's circuit breaker opens when within ``seconds`` messages of at least ``tickets`` different tickets failed,
    and they are at least this ``share`` of all outcomes of the task; then one message is tried every ``probe`` seconds.
    A ``share`` of 0 turns breakers off.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    share: float = Field(default=0.9, ge=0, le=1)
    tickets: int = Field(default=20, ge=2, le=100_000)
    seconds: float = Field(default=60.0, ge=1, le=86_400)
    probe: float = Field(default=5.0, ge=1, le=86_400)


class Settings(BaseModel):
    """Every setting, without its prefix, with default and unit. Documented in ``celeryconfig.py``."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    #: The Redis that holds the stream; must be the broker's, since dispatching pushes to Celery queues atomically.
    redis_url: str
    stream: str = Field("ticket_stream", min_length=1, max_length=512)
    group: str = Field("concurrency_stream_group", min_length=1, max_length=512)
    #: The consumer name under which the master reads and keeps what waits.
    master: str = Field("master", min_length=1, max_length=512)
    #: The name under which the app takes part in the lane; None: its own (``Celery("name")``).
    app: str | None = Field(None, min_length=1, max_length=512)
    #: Task of messages that name none.
    default_task: str | None = None
    policy: PolicyName = PolicyName.LEAST_LOADED
    #: Seconds that a worker may go unheard before its tickets move.
    lease: float = Field(6.0, ge=0.5, le=3600)
    #: Seconds that a leader may go unheard before a standby takes over.
    leader_lease: float = Field(5.0, ge=0.5, le=3600)
    #: Attempts before a message is given up.
    max_attempts: int = Field(5, ge=1, le=1_000_000)
    backoff: Backoff = Backoff()
    #: When dispatching of a task that fails for everybody pauses.
    breaker: BreakerLimits = BreakerLimits()
    #: Dead letters at which nothing new is read.
    dead_max: int = Field(100_000, ge=1, le=1_000_000_000)
    #: Whether the ticket of a dead message goes on, or stands still until an operator releases it.
    on_dead: Literal["skip", "park"] = "skip"
    #: Seconds that a message waits for a consumer that has its task, when none has had it so far.
    unknown_after: float = Field(600.0, ge=0, le=365 * 86_400)
    #: Bytes of JSON.
    max_payload: int = Field(1024 * 1024, ge=2, le=256 * 1024 * 1024)
    #: About how long a bundle lasts, in ms; 0 turns bundles off.
    bundle_ms: float = Field(10.0, ge=0, le=10_000)
    #: Deliveries that the history keeps, about; 0 turns it off.
    history: int = Field(100_000, ge=0, le=100_000_000)
    #: Seconds that an entry stays in the stream, once all groups have acknowledged it; None: it stays for ever.
    retention: float | None = Field(0.0, ge=0, le=100 * 365 * 86_400)
    #: Messages that the master keeps in memory at most; the rest waits in Redis.
    window: int = Field(50_000, ge=100, le=10_000_000)
    #: Bytes that these may have, about.
    window_bytes: int = Field(128 * 1024 * 1024, ge=1024 * 1024, le=64 * 1024**3)

    #: A file that a master's and a worker's loop touches as it turns, for a supervisor to look at its age.
    health_file: str | None = Field(None, min_length=1)

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

    @field_validator("lease", "leader_lease", "bundle_ms", "retention", "unknown_after", mode="before")
    @classmethod
    def _whole_seconds(cls, value: object) -> object:
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("backoff", "breaker", mode="before")
    @classmethod
    def _of_mapping(cls, value: object) -> object:
        if isinstance(value, Mapping):
            return {
                k: float(v) if isinstance(v, int) and not isinstance(v, bool) and k != "tickets" else v
                for k, v in value.items()
            }
        return value

    @field_validator("stream")
    @classmethod
    def _no_hash_tag_of_its_own(cls, value: str) -> str:
        # The lane's keys begin with {stream}: a brace in it would change their slot, or make them another lane's.
        if "{" in value or "}" in value:
            raise ValueError("must not contain { or }; the lane's keys put it in braces themselves")
        return value

    @model_validator(mode="after")
    def _consumers_differ_from_master(self) -> Settings:
        if "@" in self.master:
            raise ValueError("bridge_master must not contain '@', or it could be a worker's node name")
        return self

    @cached_property
    def keys(self) -> LaneKeys:
        return LaneKeys(self.stream, self.group)

    @property
    def lease_ms(self) -> int:
        return int(self.lease * 1000)

    @property
    def leader_lease_ms(self) -> int:
        return int(self.leader_lease * 1000)


def read_settings(app: Celery) -> Settings:
    """The settings of ``app``. Raises `ConfigurationError`, one line, for whatever cannot work."""
    found = given_settings(app, Settings.model_fields)
    given = {name: value for name, (_, value) in found.items()}
    given.setdefault("redis_url", "")
    try:
        settings = Settings(**given)
    except ValidationError as exc:
        raise ConfigurationError(_one_line(exc, {name: key for name, (key, _) in found.items()})) from None
    try:
        url = _check_url(app, settings.redis_url)
        check_options(url)
    except ConfigurationError:
        if not app.conf.task_always_eager:
            raise
        # Nothing is ever sent.
        url = ""
    return settings.model_copy(update={"redis_url": url})


def _check_url(app: Celery, url: str) -> str:
    """The address of the lane's server: the broker's, with what else Celery's settings say of it. Raises
    `ConfigurationError`; ``url`` is `bridge_redis_url`, empty when it is not set.
    """
    broker = address_of(app)
    for one in (broker, url or broker):
        scheme = one.partition("://")[0]
        if scheme not in (*SCHEMES, "sentinel"):
            raise ConfigurationError(
                "the broker's URL (or bridge_redis_url) must be redis://, rediss://, redis+socket:// or sentinel://, "
                f"not {scheme if scheme != one else 'empty'}://"
            )
    if not url or url == app.conf.broker_url:
        return broker
    if "sentinel://" in (broker[:11], url[:11]):
        raise ConfigurationError("with sentinels there is no bridge_redis_url: leave it unset, broker_url says it all")
    ours, theirs = parsed(url), parsed(broker)
    if (ours.hostname, ours.port or 6379, database_of(ours)) != (
        theirs.hostname,
        theirs.port or 6379,
        database_of(theirs),
    ):
        raise ConfigurationError(
            "bridge_redis_url must be the broker's server and database: a dispatch writes the record and the Celery "
            "message in one step; leave bridge_redis_url unset"
        )
    return normalised(url)


def _one_line(exc: ValidationError, keys: Mapping[str, str]) -> str:
    problems = []
    for error in exc.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in error["loc"])
        name = where.partition(".")[0]
        if name:
            where = keys.get(name, PREFIX + name) + where.removeprefix(name)
        message = error["msg"].removeprefix("Value error, ")
        if not where:
            # Such a message names the setting itself.
            problems.append(message)
            continue
        if error["type"] == "extra_forbidden":
            fields = BreakerLimits.model_fields if error["loc"][0] == "breaker" else Backoff.model_fields
            near = difflib.get_close_matches(str(error["loc"][-1]), fields, n=1, cutoff=0)
            problems.append(f"unknown setting {where}; did you mean {where.rpartition('.')[0]}.{near[0]}?")
            continue
        shown = repr(error.get("input"))
        # A URL may hold a password.
        given = "" if "url" in where or len(shown) > 80 else f" (it is {shown})"
        problems.append(f"{where}: {message[0].lower()}{message[1:]}{given}")
    return "; ".join(problems)
