"""The least permissions that a Redis user needs for its role in a lane, as ACL rules.

There are six roles:

- `producer` pushes messages,
- `spark` pushes messages from Spark, each once,
- `spark-reader` reads messages, history and dead letters into Spark,
- `master` leads,
- `worker` runs tasks,
- `operator` runs the commands that read a lane and give orders.

`bridge subscription add` and `remove`, and `bridge stream retire` and `repartition`, make and delete lanes. They need
scripts and DEL, with which an operator could change any lane without its leader. So no role may do that: the
administrator of the server runs them.

`bridge.operate.role_commands` has the commands of each role. This module adds the keys and channels.

The rules work with Redis 6.2: no selectors, no read-only keys. So a user may use each of its commands on each of its
keys. `docs/howto/secure-it.md` says what that means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.app.effect_arguments import COMMANDS
from bridge.app.installed import bridge_of
from bridge.operate.role_commands import (
    AWAITING_RESULTS,
    LISTENING,
    OWN,
    RECEIVING,
    RESULTS,
    VIEWS,
    Role,
    commands_for_layout,
    commands_in,
    commands_of_scripts,
)
from bridge.routing.keys import (
    follows_key,
    http_consumer,
    layout_key,
    masters,
    newer_key,
    push_prefix,
    retired_key,
    schedule_key,
)
from bridge.routing.versions import FOLLOW
from bridge.settings.address import database_of, parsed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery import Celery

    from bridge.settings.lane import LaneSettings

#: Keys in which kombu keeps the bindings of queues.
BINDINGS = ("_kombu.binding.*", "_kombu.binding_*")
#: The ends of the keys that say which streams are versions of each other.
_KINDS = tuple(key("").rpartition("/")[2] for key in (follows_key, newer_key))


@dataclass(frozen=True)
class Access:
    """The permissions of one user: patterns of keys and channels, and commands."""

    role: Role
    keys: tuple[str, ...]
    channels: tuple[str, ...]
    commands: tuple[str, ...]

    @property
    def rules(self) -> list[str]:
        """The rules for ACL SETUSER or an ACL file. They begin with a reset, so their order matters."""
        return [
            "on",
            "resetkeys",
            "resetchannels",
            "-@all",
            *(f"~{key}" for key in self.keys),
            *(f"&{channel}" for channel in self.channels),
            *(f"+{command}" for command in self.commands),
        ]


def access(
    app: Celery,
    lanes: Sequence[LaneSettings],
    role: Role,
    *,
    split: bool = False,
    own_keys: Sequence[str] = (),
    pushes: bool = False,
    http: bool = False,
) -> Access:
    """The permissions that ``role`` needs in ``lanes``, which are on one stream, a lane for each subscription.

    ``split``: in the lanes of all partitions. Masters, workers and operators need the same in the lanes of the older
    versions of the stream.

    For workers only: ``own_keys``, patterns of the keys that the tasks' effects touch; ``pushes``: whether tasks push
    messages themselves. For masters only: ``http``, whether they listen for HTTP, and so push and read for others.
    """
    of = _Patterns(app, lanes, split=split)
    if role is Role.PRODUCER:
        return _producer(app, of)
    if role is Role.SPARK:
        return _spark(of)
    if role is Role.SPARK_READER:
        return _spark_reader(of)
    if role is Role.OPERATOR:
        return _operator(of)
    if role is Role.MASTER:
        return _master(app, of, asks_for_memory=any(one.max_lag.bytes is not None for one in lanes), http=http)
    return _worker(app, of, own_keys, pushes=pushes)


class _Patterns:
    """Patterns of the keys of ``lanes``, from which each role takes what it needs."""

    def __init__(self, app: Celery, lanes: Sequence[LaneSettings], *, split: bool) -> None:
        keys = lanes[0].keys
        self.stream = keys.stream
        self.split = split
        #: The stream and its older versions.
        self.versions = [keys.stream, *bridge_of(app).settings.older_streams]
        #: Patterns of the stream, also of the partitions of any layout, and of the streams of older versions.
        self.names = [literal(keys.stream)]
        if split:
            self.names.append(f"{self.names[0]}:[gp][0-9]*")
        self.older = _older(app, split=split)
        self._groups = [literal(lane.keys.prefix).removeprefix(f"{{{literal(keys.stream)}}}") for lane in lanes]
        # The layout with its copy, and the first partition: without a layout, these say whether the stream is split.
        layout, *self.layouts = (f"{literal(layout_key(stream))}*" for stream in self.versions)
        first, *firsts = (f"{literal(stream)}:p0" for stream in self.versions)
        self.layout = (layout,) if split else (layout, first)
        self.older_layouts = tuple(self.layouts) if split else (*self.layouts, *firsts)

    @property
    def own_prefixes(self) -> list[str]:
        """What the keys of the lanes begin with, without those of older versions."""
        return [f"{{{name}}}{group}" for name in self.names for group in self._groups]

    @property
    def prefixes(self) -> list[str]:
        """The same with the lanes of older versions."""
        return [*self.own_prefixes, *(f"{{{name}}}{group}" for name in self.older for group in self._groups)]

    @property
    def of_lanes(self) -> tuple[str, ...]:
        """All keys of the lanes, without their streams."""
        return tuple(f"{prefix}:*" for prefix in self.prefixes)

    @property
    def chain(self) -> tuple[str, ...]:
        """The keys that say which streams are versions of each other."""
        return tuple(f"{{{name}}}/{kind}" for name in (*self.names, *self.older) for kind in _KINDS)

    @property
    def lanes(self) -> tuple[str, ...]:
        """All keys of the lanes, and their streams."""
        return (*self.names, *self.older, *self.of_lanes)


def _producer(app: Celery, of: _Patterns) -> Access:
    results = _results_here(app)
    # The first push to a split stream looks how the older versions are split.
    older = of.layouts if of.split else ()
    keys = (*of.names, *of.layout, *older, _pushed_once(of.stream), *results)
    commands = {*OWN[Role.PRODUCER], *commands_of_scripts(Role.PRODUCER), *commands_for_layout(of.split)}
    if results:
        commands |= set(AWAITING_RESULTS)
    return _access(Role.PRODUCER, keys, results, commands)


def _spark(of: _Patterns) -> Access:
    guards = f"{literal(push_prefix(of.stream))}:*"
    return _access(
        Role.SPARK, (*of.names, *of.layout, guards), (), {*OWN[Role.SPARK], *commands_of_scripts(Role.SPARK)}
    )


def _spark_reader(of: _Patterns) -> Access:
    archived = (f"{prefix}:{kind}" for prefix in of.own_prefixes for kind in ("history", "dead"))
    return _access(Role.SPARK_READER, (*of.names, *of.layout, *archived), (), OWN[Role.SPARK_READER])


def _operator(of: _Patterns) -> Access:
    notes = [literal(retired_key(name)) for name in of.versions]
    schedule = literal(schedule_key(of.stream))
    keys = (*of.lanes, *of.layout, *of.older_layouts, *of.chain, *notes, schedule)
    # Which newer versions an older one has.
    commands = {*OWN[Role.OPERATOR], *(("smembers",) if of.older else ())}
    return _access(Role.OPERATOR, keys, (), commands)


def _master(app: Celery, of: _Patterns, *, asks_for_memory: bool, http: bool) -> Access:
    # The workers' heartbeats. A subscription to a pattern needs a permission for exactly this pattern.
    heard = [f"{_fanout(app)}celeryev/worker.*"]
    # On these a leader wakes HTTP consumers that wait, at any master.
    heard += [f"{prefix}:dispatched" for prefix in of.prefixes]
    commands = {*OWN[Role.MASTER], *LISTENING, *commands_of_scripts(Role.MASTER), *commands_for_layout(of.split)}
    if asks_for_memory:
        commands.add("memory|usage")
    share = f"{literal(masters(of.stream))}*"
    if of.older:
        commands |= {*commands_in(FOLLOW.text), "mget", "xrevrange"}
    schedules = [literal(schedule_key(name)) for name in of.versions]
    if http:
        commands |= {*OWN[Role.PRODUCER], *commands_of_scripts(Role.PRODUCER), *VIEWS}
    pushed = [_pushed_once(of.stream)] if http else []
    lives = [http_consumer(literal(name), "*") for name in of.versions]
    # Before an entry leaves, its leader asks about the lanes of other apps, too.
    beside = [f"{{{name}}}:*:{kind}" for name in (*of.names, *of.older) for kind in ("dead", "agreed")]
    keys = (*of.lanes, *of.layout, *of.older_layouts, share, *lives, *pushed, *of.chain, *schedules, *beside)
    return _access(Role.MASTER, (*keys, *BINDINGS, "celeryev.*"), heard, commands)


def _worker(app: Celery, of: _Patterns, own_keys: Sequence[str], *, pushes: bool) -> Access:
    # A queue has a list for each priority: its name, kombu's separator (two control characters), a digit.
    queues = [pattern for name in app.amqp.queues for pattern in (literal(name), f"{literal(name)}??[0-9]")]
    of_celery = (*BINDINGS, "unacked*", "*.reply.celery.pidbox*", "*.celery.pidbox*", "celeryev.*")
    fanout = _fanout(app)
    # The last one is for gossip. A subscription to a pattern needs a permission for exactly this pattern.
    channels = [f"{fanout}celery.pidbox", f"{fanout}celeryev/*", f"{fanout}celeryev/worker.*"]
    commands = {*OWN[Role.WORKER], *LISTENING, *RECEIVING, *commands_of_scripts(Role.WORKER)}
    commands |= {*commands_for_layout(of.split), *(command.lower() for command in COMMANDS)}
    results = _results_here(app)
    if results:
        commands |= set(RESULTS)
        channels += results
    # Before a worker stores the layout, it checks whether the stream exists and is not split.
    keys = (*of.of_lanes, *of.layout, *of.older_layouts)
    if of.split:
        keys = (of.names[0], *keys, *of.older)
    if pushes:
        keys += (*of.lanes, _pushed_once(of.stream))
        commands |= {*OWN[Role.PRODUCER], *commands_of_scripts(Role.PRODUCER)}
    return _access(Role.WORKER, (*keys, *queues, *of_celery, *results, *own_keys), channels, commands)


def _older(app: Celery, *, split: bool) -> list[str]:
    """Patterns of the streams of the older versions."""
    names = [literal(version.stream) for version in bridge_of(app).settings.follows]
    return [*names, *(f"{name}:[gp][0-9]*" for name in names if split)]


def _pushed_once(stream: str) -> str:
    """Pattern of the keys that remember pushes with an idempotency key."""
    return f"{literal(push_prefix(stream))}:once:*"


def _access(role: Role, keys: Iterable[str], channels: Iterable[str], commands: Iterable[str]) -> Access:
    return Access(role, tuple(dict.fromkeys(keys)), tuple(dict.fromkeys(channels)), tuple(sorted(set(commands))))


def literal(name: str) -> str:
    """``name`` as an ACL pattern that matches it.

    An ACL file and redis-cli cannot express a space, a quote or a control character. ``?``, which matches any byte,
    takes the place of each of its bytes.
    """
    escaped = re.sub(r"([*?\[\]\\])", r"\\\1", name)
    odd = (char in "\"'" or char.isspace() or not char.isprintable() for char in escaped)
    size = [len(char.encode(errors="surrogateescape")) for char in escaped]
    return "".join("?" * n if is_odd else char for char, n, is_odd in zip(escaped, size, odd, strict=True))


def _fanout(app: Celery) -> str:
    """The prefix of kombu's channels."""
    prefix = (app.conf.broker_transport_options or {}).get("fanout_prefix", True)
    if isinstance(prefix, str):
        return literal(prefix)
    url = app.bridge.settings.redis_url
    if not prefix:
        return ""
    if url.startswith("sentinel://"):
        return f"/{url.partition('?')[0].rpartition('/')[2]}."
    return f"/{database_of(parsed(url))}."


def _results_here(app: Celery) -> list[str]:
    """Patterns of the result backend's keys when it is a Redis, which is probably this one."""
    backend = app.backend
    prefixes = [getattr(backend, name, None) for name in ("task_keyprefix", "group_keyprefix", "chord_keyprefix")]
    if not type(backend).__module__.startswith("celery.backends.redis"):
        return []
    return [f"{literal(p.decode() if isinstance(p, bytes) else p)}*" for p in prefixes if p]
