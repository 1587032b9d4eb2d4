"""What a consumer tells of itself when it registers: JSON in the lane's hash of consumers, one dict for each.

| name | means |
|---|---|
| ``incarnation``, ``since``, ``started`` | this life of it; since when; since when its process runs (Unix s) |
| ``queue``, ``slots``, ``pool``, ``pid`` | where it takes from, how many messages at once, by which pool, its process |
| ``leaving`` | there when it shuts down |
| ``tasks`` | names of the tasks that it can run here, sorted |
| ``queues`` | Celery queues that it consumes, without its own one |
| ``elsewhere`` | task -> Celery queue: tasks that it knows, and that are meant for consumers of another queue |
| ``app``, ``version``, ``format``, ``settings`` | of the member: `bridge.protocol.agreement.facts` |
| ``traits`` | task -> `TRAITS` that are not as by default |

A lane may have hundreds of consumers with a thousand tasks each, and the leader looks at all of them every second: it
reads a text again only when it changed, and consumers that can run the same share one set of names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

#: What a task may have of its own: ``max_attempts``, ``on_dead``, ``bundle`` (false: it always travels alone),
#: ``limits`` (hard and soft time limit, s), ``ignore_result``.
TRAITS = ("max_attempts", "on_dead", "bundle", "limits", "ignore_result")
#: What a member says of itself.
FACTS = ("app", "version", "format", "settings")


@dataclass(frozen=True)
class Registration:
    """What one consumer told. ``tasks``: None, when it told nothing of them."""

    text: bytes
    incarnation: str
    queue: str
    slots: int
    leaving: bool
    started: float | None
    #: Length of its lease; None: it did not say.
    lease_ms: int | None
    tasks: frozenset[str] | None
    elsewhere: Mapping[str, str]
    traits: Mapping[str, Mapping[str, Any]]
    #: Its version and settings, as far as it told them.
    facts: Mapping[str, Any]


class Registrations:
    """The registrations of a lane's consumers, as its leader reads them again and again."""

    def __init__(self) -> None:
        self._read: dict[bytes, Registration] = {}
        self._sets: dict[frozenset[str], frozenset[str]] = {}

    def read(self, found: Mapping[bytes, bytes]) -> dict[bytes, Registration]:
        """The registrations in a reply of HGETALL, by consumer."""
        before, self._read = self._read, {}
        for name, text in found.items():
            known = before.get(name)
            self._read[name] = known if known is not None and known.text == text else self._parse(text)
        if self._read.keys() != before.keys():
            kept = {one.tasks for one in self._read.values() if one.tasks is not None}
            self._sets = {tasks: tasks for tasks in kept}
        return self._read

    def traits(self, task: str) -> Mapping[str, Any]:
        """What the consumers that can run ``task`` say of it; nothing, when it is as by default."""
        for one in self._read.values():
            if one.tasks is not None and task in one.tasks:
                return one.traits.get(task, {})
        return {}

    def known(self) -> set[str]:
        """All tasks that some consumer can run."""
        return set().union(*(one.tasks for one in self._read.values() if one.tasks is not None))

    def meant_for(self, task: str) -> str | None:
        """The Celery queue that ``task`` is routed to, as consumers say that know it and do not serve that queue."""
        return next((one.elsewhere[task] for one in self._read.values() if task in one.elsewhere), None)

    def _parse(self, text: bytes) -> Registration:
        told = orjson.loads(text)
        tasks = None
        if isinstance(told.get("tasks"), list):
            tasks = frozenset(told["tasks"])
            tasks = self._sets.setdefault(tasks, tasks)
        return Registration(
            text=text,
            incarnation=told["incarnation"],
            queue=told["queue"],
            slots=int(told["slots"]),
            leaving=bool(told.get("leaving")),
            started=told.get("started"),
            lease_ms=told.get("lease_ms"),
            tasks=tasks,
            elsewhere=told.get("elsewhere") or {},
            traits=told.get("traits") or {},
            facts={name: told[name] for name in FACTS if name in told},
        )
