"""The streams of an app: how they are split, and what is in each. Never writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, ResponseError

from bridge.inspect.dropped import Dropped
from bridge.routing.groups import groups_in, unless_missing
from bridge.routing.keys import retired_key
from bridge.routing.layouts import layout_of, retired_among
from bridge.routing.numbers import count
from bridge.routing.return_codes import text_of
from bridge.routing.text import printable
from bridge.routing.unread_streams import advice_on, unread_streams

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis

    from bridge.app.lanes import AppLane
    from bridge.inspect.advice import Advice


@dataclass(frozen=True)
class StreamState:
    """One stream. ``partition``: its number; None: the stream is not split. ``version``: 0 for the newest, 1 for the
    one before, and so on; None: it was retired, at ``retired_ms`` (with groups: not to its end). ``last_id``: of
    the last entry ever added; None: there is no stream. ``is_old``: it is a partition of an older layout.
    ``is_dropped``: the app does not name this older version any more; ``version`` is None then, too.
    """

    stream: str
    partition: int | None
    version: int | None
    entries: int
    last_id: str | None
    groups: tuple[str, ...]
    retired_ms: int | None = None
    is_old: bool = False
    is_dropped: bool = False


def read_retired(redis: Redis, versions: Sequence[str]) -> list[StreamState]:
    """The retired older versions of ``versions``, streams of the app. A split one is one row. Raises redis errors."""
    try:
        with redis.pipeline(transaction=False) as pipe:
            for name in versions:
                pipe.hgetall(retired_key(name))
            noted: dict[str, int] = {}
            for fields in pipe.execute():
                noted |= {text_of(name): int(ms) for name, ms in fields.items()}
        notes = retired_among(redis, sorted(noted))
        streams = {name: layout_of(note.was, name).streams(name) for name, note in notes.items()}
        with redis.pipeline(transaction=False) as pipe:
            for some in streams.values():
                for stream in some:
                    pipe.xlen(stream)
                    pipe.execute_command("XINFO", "GROUPS", stream)
            replies = pipe.execute(raise_on_error=False)
        lengths = iter([unless_missing(reply) for reply in replies[::2]])
        groups = iter([groups_in(reply) for reply in replies[1::2]])
    except NoPermissionError:
        return []
    found = []
    for name, some in streams.items():
        entries = sum(next(lengths) for _ in some)
        names = _shown({group for _ in some for group in next(groups)})
        found.append(StreamState(name, None, None, entries, None, names, notes[name].since_ms))
    return found


def retired_problems(found: Sequence[StreamState], commands: Advice) -> list[str]:
    """Sentences about retired streams of which something is left, or to which something is still added. ``commands``:
    how commands are written.
    """
    problems = []
    for one in found:
        name = printable(one.stream)
        if one.groups:
            # XADD makes no groups: a retirement deletes them, with everything that was in the stream before.
            again = commands.of_app("stream", "retire", about=one.stream)
            problems.append(f"the retirement of {name} was cut off: run {again} again")
        elif one.entries:
            problems.append(
                f"{name} was retired, and {count(one.entries, 'message')} came since then, by XADD: nobody handles "
                "them; stop their producer, then delete them with DEL"
            )
    return problems


def read_streams(redis: Redis, lanes: Sequence[AppLane]) -> list[StreamState]:
    """The streams of ``lanes``, each once, in one round trip. Raises redis errors."""
    found = {lane.settings.stream: lane for lane in lanes}
    versions = list(dict.fromkeys(lane.version for lane in lanes))
    states = []
    for (stream, lane), replies in zip(found.items(), _asked(redis, list(found)), strict=True):
        after = len(versions) - 1 - versions.index(lane.version)
        state = _state(stream, lane.partition, after, *replies)
        states.append(replace(state, is_old=len(lane.newer) > after))
    return states


def read_dropped_streams(redis: Redis, dropped: Sequence[Dropped]) -> list[StreamState]:
    """The streams of ``dropped`` that are there, each once, in one round trip. Raises redis errors."""
    names = list(dict.fromkeys(one.stream for one in dropped))
    states = [_state(name, None, None, *replies) for name, replies in zip(names, _asked(redis, names), strict=True)]
    return [replace(state, is_dropped=True) for state in states if state.last_id is not None]


def _asked(redis: Redis, names: Sequence[str]) -> list[tuple[Any, Any]]:
    with redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.execute_command("XINFO", "STREAM", name)
            pipe.execute_command("XINFO", "GROUPS", name)
        replies = pipe.execute(raise_on_error=False)
    return list(zip(replies[::2], replies[1::2], strict=True))


@dataclass(frozen=True)
class Unread:
    """A stream that looks like a partition, has messages, and is read by nobody. ``problem``: one sentence."""

    stream: str
    entries: int
    problem: str


def read_unread(redis: Redis, app: Celery) -> list[Unread]:
    """Unread messages of the app's stream and of its older versions. Raises redis errors."""
    layout, older = app.bridge.layout, [version.stream for version in app.bridge.follows]
    return [
        Unread(unread.stream, unread.entries, advice_on(unread, stream, layout))
        for stream in (app.bridge.settings.lane.stream, *older)
        for unread in unread_streams(redis, stream, layout)
    ]


def _shown(groups: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(sorted(name.decode(errors="backslashreplace") for name in groups))


def _state(stream: str, partition: int | None, version: int | None, info: Any, groups: Any) -> StreamState:
    names = _shown(groups_in(groups))
    where = (stream, partition, version)
    if isinstance(info, ResponseError) and "no such key" in str(info):
        return StreamState(*where, 0, None, names)
    if isinstance(info, Exception):
        raise info
    flat = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2], strict=True))
    values = {key.decode() if isinstance(key, bytes) else key: value for key, value in flat.items()}
    last = values["last-generated-id"]
    return StreamState(*where, int(values["length"]), last.decode() if isinstance(last, bytes) else str(last), names)
