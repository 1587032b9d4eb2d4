"""What a consumer tells of itself when it registers: JSON in the lane's hash of consumers, one dict for each.

| name | means |
|---|---|
| ``incarnation``, ``since``, ``started`` | incarnation id; start of the incarnation; start of the process (Unix s) |
| ``queue``, ``slots``, ``pool``, ``pid`` | where it takes from, how many messages at once, by which pool, its process |
| ``lease_ms`` | the length of its lease |
| ``leaving`` | there when it shuts down |
| ``kind`` | ``http`` of a consumer that came over HTTP (`HTTP`); a Celery worker has none |
| ``health_url`` | the URL at which a master may ask whether an HTTP consumer lives; missing if there is none |
| ``tasks`` | names of the tasks that it can run here, sorted |
| ``queues`` | Celery queues that it consumes, without its own one |
| ``elsewhere`` | task -> Celery queue: tasks that it knows, and that are meant for consumers of another queue |
| ``app``, ``version``, ``format``, ``settings`` | of the member: `bridge.protocol.agreement.facts` |
| ``traits`` | task -> `TRAITS` that differ from the default |

``incarnation``, ``queue`` and ``slots`` are always there. A consumer of an older version may lack the others.

A lane may have hundreds of consumers with a thousand tasks each, and the leader looks at all of them every second: it
reads a text again only when it changed, and consumers that can run the same share one set of names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

#: What a task may have of its own: ``max_attempts``, ``on_dead``, ``bundle`` (false: it always travels alone),
#: ``limits`` (hard and soft time limit, s), ``ignore_result``.
TRAITS = ("max_attempts", "on_dead", "bundle", "limits", "ignore_result")
#: Larger than any time or number of a process.
LARGEST = 2**53
#: Most bytes of an unreadable registration that an error shows.
SHOWN_BYTES = 200
#: The kind of a consumer that came over HTTP.
HTTP = "http"
#: What a member says of itself.
FACTS = ("app", "version", "format", "settings")


class RunnableTasks(NamedTuple):
    """Which tasks a worker can run, by the Celery queues that it consumes now."""

    tasks: list[str]
    queues: list[str]
    elsewhere: dict[str, str]
    traits: dict[str, dict[str, Any]]


class ChangingFacts(NamedTuple):
    """What may change in a registration while the worker lives."""

    slots: int
    runnable: RunnableTasks

    def fields(self) -> dict[str, Any]:
        """The fields of the registration, by name."""
        return {"slots": self.slots, **self.runnable._asdict()}


@dataclass(frozen=True)
class Profile:
    """What a worker registers with, the same in all its incarnations until `changing` changes."""

    queue: str
    changing: ChangingFacts
    pool: str
    pid: int | None
    #: Start of the process, Unix time in seconds.
    started: float
    #: `bridge.protocol.agreement.facts`
    facts: Mapping[str, Any]
    #: Fields that only some kinds of consumers have: ``kind``, ``health_url``.
    of_kind: Mapping[str, str] = field(default_factory=dict)

    def text(self, incarnation: str, since: float, lease_ms: int) -> bytes:
        """The registration of an incarnation."""
        of_process = {"pool": self.pool, "pid": self.pid, "started": self.started, **self.facts, **self.of_kind}
        of_incarnation = {"incarnation": incarnation, "since": since, "lease_ms": lease_ms}
        return orjson.dumps({"queue": self.queue, **self.changing.fields(), **of_process, **of_incarnation})


@dataclass(frozen=True)
class Registration:
    """What one consumer registered with. None: it did not say."""

    text: bytes
    incarnation: str
    queue: str
    slots: int
    leaving: bool
    pool: str | None
    pid: int | None
    #: Unix time in seconds.
    since: float | None
    started: float | None
    #: Length of its lease.
    lease_ms: int | None
    tasks: frozenset[str] | None
    queues: tuple[str, ...] | None
    elsewhere: Mapping[str, str]
    traits: Mapping[str, Mapping[str, Any]]
    #: Its version and settings, as far as it said them.
    facts: Mapping[str, Any]
    #: '': a Celery worker.
    kind: str = ""
    health_url: str | None = None


def read_registration(text: bytes) -> Registration:
    """The registration in ``text``. Raises ValueError when it is none."""
    try:
        fields = orjson.loads(text)
        _check(fields)
        return Registration(
            text=text,
            incarnation=fields["incarnation"],
            queue=fields["queue"],
            slots=int(fields["slots"]),
            leaving=bool(fields.get("leaving")),
            pool=fields.get("pool"),
            pid=fields.get("pid"),
            since=fields.get("since"),
            started=fields.get("started"),
            lease_ms=fields.get("lease_ms"),
            tasks=frozenset(fields["tasks"]) if isinstance(fields.get("tasks"), list) else None,
            queues=tuple(fields["queues"]) if "queues" in fields else None,
            elsewhere=fields.get("elsewhere") or {},
            traits=fields.get("traits") or {},
            facts={name: fields[name] for name in FACTS if name in fields},
            kind=str(fields.get("kind", "")),
            health_url=fields.get("health_url"),
        )
    except (ValueError, TypeError, LookupError, ArithmeticError) as exc:
        raise ValueError(f"a registration that cannot be read: {text[:SHOWN_BYTES]!r}") from exc


def readable_or_none(text: bytes | None) -> Registration | None:
    """The registration in ``text``; None: there is none, or it cannot be read. Then it may be replaced."""
    try:
        return read_registration(text) if text else None
    except ValueError:
        return None


def _check(fields: Mapping[str, Any]) -> None:
    """Raises an error when a value that others rely on is of another type. Somebody may have written it by hand."""
    texts = [fields["incarnation"], fields["queue"], *(fields.get("tasks") or ()), *(fields.get("queues") or ())]
    texts += [one for name in ("pool", "version", "health_url") if (one := fields.get(name)) is not None]
    numbers = [one for name in ("pid", "since", "started") if (one := fields.get(name)) is not None]
    dicts = [fields.get(name) or {} for name in ("elsewhere", "traits", "settings")]
    if not (
        all(isinstance(one, str) for one in texts)
        and all(isinstance(one, int | float) and abs(one) <= LARGEST for one in numbers)
        and all(isinstance(one, dict) for one in dicts)
        and all(isinstance(one, dict) for one in dicts[1].values())
        and isinstance(fields.get("lease_ms") or 0, int)
    ):
        raise TypeError("a value of another type")


def changed(registration: Registration, **fields: Any) -> bytes:
    """The text of ``registration`` with other values of ``fields``. What this version does not know stays in it."""
    return orjson.dumps({**orjson.loads(registration.text), **fields})


class Registrations:
    """The registrations of a lane's consumers, as its leader reads them again and again."""

    def __init__(self) -> None:
        self._read: dict[bytes, Registration] = {}
        self._sets: dict[frozenset[str], frozenset[str]] = {}

    def read(self, found: Mapping[bytes, bytes], skip: Callable[[bytes, bytes], None]) -> dict[bytes, Registration]:
        """The registrations in a reply of HGETALL, by consumer. ``skip``: gets those that cannot be read."""
        before, self._read = self._read, {}
        for name, text in found.items():
            known = before.get(name)
            try:
                self._read[name] = known if known is not None and known.text == text else self._parse(name, text)
            except ValueError:
                skip(name, text)
        if self._read.keys() != before.keys():
            kept = {one.tasks for one in self._read.values() if one.tasks is not None}
            self._sets = {tasks: tasks for tasks in kept}
        return self._read

    def traits(self, task: str) -> Mapping[str, Any]:
        """What the consumers that can run ``task`` say of it. Empty: all traits have their defaults."""
        for one in self._read.values():
            if one.tasks is not None and task in one.tasks:
                return one.traits.get(task, {})
        return {}

    def bundled(self, task: str) -> bool | None:
        """Whether all workers that can run ``task`` take it in bundles. None: there is no such worker."""
        said = [
            one.traits.get(task, {}).get("bundle") is not False
            for one in self._read.values()
            if one.kind != HTTP and one.tasks is not None and task in one.tasks
        ]
        return all(said) if said else None

    def knows(self, task: str) -> bool:
        """Whether some consumer can run ``task``."""
        return any(one.tasks is not None and task in one.tasks for one in self._read.values())

    def known(self) -> set[str]:
        """All tasks that some consumer can run."""
        return set().union(*(one.tasks for one in self._read.values() if one.tasks is not None))

    def meant_for(self, task: str) -> str | None:
        """The Celery queue that ``task`` is routed to, as consumers say that know it and do not serve that queue."""
        return next((one.elsewhere[task] for one in self._read.values() if task in one.elsewhere), None)

    def _parse(self, name: bytes, text: bytes) -> Registration:
        name.decode()
        found = read_registration(text)
        if found.tasks is None:
            return found
        # Consumers that can run the same share one set.
        return replace(found, tasks=self._sets.setdefault(found.tasks, found.tasks))
