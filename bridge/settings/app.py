"""The ``bridge_…`` settings of a Celery app: one frozen, validated object, made once at start."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

from kombu.transport import TRANSPORT_ALIASES
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bridge.routing.connection import check_options
from bridge.routing.errors import ConfigurationError
from bridge.routing.partitions import MOST
from bridge.settings.address import address_of, broker_url, check_broker_options, normalised, place_of
from bridge.settings.config_keys import PREFIX, given_settings
from bridge.settings.dead_notify import DeadNotify
from bridge.settings.lane import DICTS, LaneSettings
from bridge.settings.schedule import Scheduled, check_names
from bridge.settings.subscriptions import OWN, check_name, read_subscriptions, with_group
from bridge.settings.versions import OlderVersion, check_follows, read_follows

if TYPE_CHECKING:
    from celery import Celery

#: Schemes of URLs that name one server.
SCHEMES = ("redis", "rediss", "redis+socket", "unix")


class Settings(BaseModel):
    """The settings of an app, without their prefix, with default and unit. Those of its lane are in `lane`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    redis_url: str = Field(
        description="The server that holds the stream. It must be the broker's server and database, since a dispatch "
        "writes the record and the Celery message in one step. Default: the broker's URL."
    )
    app: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="The app's name in its lane. A lane belongs to one app. None: the Celery app's own name.",
    )
    #: What all lanes of the app share. An app without subscriptions has this lane alone.
    lane: LaneSettings = LaneSettings()
    subscriptions: Mapping[str, LaneSettings] = Field(
        default={},
        description="The subscriptions of the app, each with its own tasks, order, attempts and dead letters: a dict "
        "from name to options. The name is the name of the consumer group. `task` handles messages that "
        "name no task of the subscription; `filter` is as bridge_filter; "
        f"and {', '.join(OWN)} as the settings of these names. Empty: one, named by bridge_group.",
    )
    partitions: int = Field(
        default=1,
        ge=1,
        le=MOST,
        description="Streams that share the tickets: `STREAM:p0`, `STREAM:p1` and so on, by the CRC-32 of the ticket. "
        "1: the stream itself. The number that is stored with the stream overrides it.",
    )
    follows: tuple[OlderVersion, ...] = Field(
        default=(),
        description="The older versions of the stream, oldest first: names of whole streams, or dicts of `stream` and "
        "`task`, the default task of its messages (`tasks`, a dict by subscription, where an app has several). A "
        "message waits until no older version has an undone message of its ticket, unread ones included.",
    )
    schedule: Mapping[str, Scheduled] = Field(
        default={},
        description="Recurring messages: a dict from name to entry. An entry has `task`, `ticket` (or a list), "
        "`payload`, and either `crontab` or `every`; see below. A leader pushes them, each tick once.",
    )
    on_dead_notify: DeadNotify = Field(
        default=DeadNotify(), description="Who is told of dead letters, by signed HTTP requests."
    )
    serve: tuple[str, ...] | None = Field(
        default=None,
        description="The subscriptions that a worker of this app serves. None: all. The environment variable "
        "BRIDGE_SERVE (names separated by commas, not empty) overrides it.",
    )
    health_file: str | None = Field(
        default=None,
        min_length=1,
        description="A file that a master or worker touches as long as its loop runs, for a supervisor that checks the "
        "file's age. None: no file.",
    )

    http_max_body: int = Field(
        default=4 * 1024 * 1024,
        ge=1024,
        le=1024**3,
        description="Most bytes of the body of one HTTP request (`bridge run --http HOST:PORT`). Sixteen times as much "
        "may be in memory at once.",
    )
    http_max_polls: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Most long polls that one master keeps open for HTTP consumers. More are answered with 503.",
    )
    http_max_connections: int = Field(
        default=12_000,
        ge=1,
        le=1_000_000,
        description="Most connections of HTTP clients to one master. More are answered with 503 and closed.",
    )

    @field_validator("on_dead_notify", mode="before")
    @classmethod
    def _notify_of_mapping(cls, value: object) -> object:
        return dict(value) if isinstance(value, Mapping) else value

    @field_validator("schedule", mode="before")
    @classmethod
    def _named_entries(cls, value: object) -> object:
        return check_names(value)

    http_health_networks: tuple[str, ...] = Field(
        default=(),
        description="The networks that masters may ping for HTTP consumers that name a `healthURL`, such as "
        '`["10.1.0.0/16"]`. Each address of the URL must be in one of them. Empty: such a consumer is refused.',
    )

    @field_validator("http_health_networks", mode="before")
    @classmethod
    def _networks(cls, value: object) -> object:
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            raise ValueError("must be a list of networks, such as 10.1.0.0/16")
        for one in value:
            try:
                ip_network(one, strict=False)
            except ValueError:
                raise ValueError(f"{one!r:.80} is no network, such as 10.1.0.0/16") from None
        return tuple(value)

    @field_validator("serve", mode="before")
    @classmethod
    def _names_of_subscriptions(cls, value: object) -> object:
        if isinstance(value, list | tuple | set | frozenset) and value:
            return tuple(dict.fromkeys(check_name(name, "bridge_serve") for name in value))
        if value is None:
            return None
        raise ValueError("must be a list of the names of subscriptions")

    @property
    def older_streams(self) -> tuple[str, ...]:
        """The streams that the app's stream follows, oldest first."""
        return tuple(version.stream for version in self.follows)

    @property
    def default_task(self) -> str | None:
        """The task of messages that name none: the first of its lanes that has one. None: none of them has."""
        lanes = self.subscriptions.values() or (self.lane,)
        return next((lane.default_task for lane in lanes if lane.default_task is not None), None)

    @field_validator("follows", mode="before")
    @classmethod
    def _older_versions(cls, value: object) -> object:
        return read_follows(value)

    def lane_of(self, task: str, subscription: str | None) -> LaneSettings:
        """The settings with which messages of a ticket task are handled. ``subscription``: its option, if it is set."""
        if subscription is not None:
            return self.subscriptions.get(subscription) or with_group(self.lane, subscription)
        return next((lane for lane in self.subscriptions.values() if lane.default_task == task), self.lane)


#: The environment variable that says which subscriptions a worker serves.
SERVE_VARIABLE = "BRIDGE_SERVE"
#: The name of every setting that an app may have.
NAMES = (*(name for name in Settings.model_fields if name != "lane"), *LaneSettings.model_fields)


def read_settings(app: Celery) -> Settings:
    """The settings of ``app``. Raises `ConfigurationError`, one line, for settings that cannot work."""
    found = given_settings(app, NAMES)
    given: dict[str, Any] = {"redis_url": "", "lane": {}}
    subscriptions = found.pop("subscriptions", ("", {}))[1]
    for name, (_, value) in found.items():
        (given["lane"] if name in LaneSettings.model_fields else given)[name] = value
    if (serve := os.environ.get(SERVE_VARIABLE)) is not None:
        names = [name.strip() for name in serve.split(",")]
        if not all(names):
            raise ConfigurationError(
                f"the environment variable {SERVE_VARIABLE} is {serve!r}: name subscriptions, with commas between; or "
                "unset it, to serve all"
            )
        given["serve"] = names
    try:
        settings = Settings(**given)
    except ValidationError as exc:
        raise ConfigurationError(_one_line(exc, {name: key for name, (key, _) in found.items()})) from None
    check_follows(settings.follows, settings.lane)
    try:
        url = _check_url(app, settings.redis_url)
        check_options(url)
        check_broker_options(app)
    except ConfigurationError:
        if not app.conf.task_always_eager:
            raise
        # An eager app sends nothing.
        url = ""
    changed: dict[str, Any] = {"redis_url": url}
    if subscriptions != {}:
        changed["subscriptions"] = read_subscriptions(subscriptions, settings.lane)
    return settings.model_copy(update=changed)


def _check_url(app: Celery, url: str) -> str:
    """The address of the lane's server, which is the broker's. ``url``: `bridge_redis_url`; '': not set. Raises
    `ConfigurationError`.
    """
    broker = address_of(app)
    for one in (broker, url or broker):
        scheme = one.partition("://")[0]
        if scheme not in (*SCHEMES, "sentinel"):
            # Before the :// of other texts may be a password.
            found = "a text without ://" if scheme == one else "a URL of a kind that Celery does not know"
            raise ConfigurationError(
                "the broker's URL (or bridge_redis_url) must be redis://, rediss://, redis+socket://, unix:// or "
                f"sentinel://, not {scheme + '://' if scheme in TRANSPORT_ALIASES else found}"
            )
    if not url or url == broker_url(app):
        return broker
    if "sentinel://" in (broker[:11], url[:11]):
        raise ConfigurationError(
            "bridge_redis_url does not work with Sentinel: leave it unset; the bridge uses broker_url"
        )
    if place_of(url) != place_of(broker):
        raise ConfigurationError(
            "bridge_redis_url must be the broker's server and database: a dispatch writes the record and the Celery "
            "message in one step; leave bridge_redis_url unset"
        )
    return normalised(url)


def _one_line(exc: ValidationError, keys: Mapping[str, str]) -> str:
    problems = []
    for error in exc.errors(include_url=False, include_context=False):
        parts = [str(part) for part in error["loc"]]
        if parts[:1] == ["lane"]:
            # Users do not see the split between an app's and a lane's settings.
            del parts[0]
        where = ".".join(parts)
        name = where.partition(".")[0]
        if name:
            where = keys.get(name, PREFIX + name) + where.removeprefix(name)
        message = error["msg"].removeprefix("Value error, ")
        if not where:
            # Such a message names the setting itself.
            problems.append(message)
            continue
        if error["type"] == "extra_forbidden":
            models: dict[str, type[BaseModel]] = {**DICTS, "schedule": Scheduled, "on_dead_notify": DeadNotify}
            fields = models[str(parts[0])].model_fields
            near = difflib.get_close_matches(parts[-1], fields, n=1, cutoff=0)
            problems.append(f"unknown setting {where}; did you mean {where.rpartition('.')[0]}.{near[0]}?")
            continue
        shown = repr(error.get("input"))
        # A URL may hold a password, and a notice's setting a secret.
        given = "" if "url" in where or "notify" in where or len(shown) > 80 else f" (it is {shown})"
        problems.append(f"{where}: {message[0].lower()}{message[1:]}{given}")
    return "; ".join(problems)
