"""A batch: what one step of a leader writes, as the sections that ``routing/lua/advance.lua`` reads.

`bridge.routing.transitions.advance` writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import orjson

from bridge.routing.ids import member_of
from bridge.routing.keys import LaneKeys
from bridge.routing.scripts import Argument

#: Most field names and values of one dead letter: the number of arguments of one call from Lua is limited.
MAX_LETTER_ARGUMENTS = 6000


class OlderLane(NamedTuple):
    """The lane of an older version, as the leader of a newer one knows it when it dispatches."""

    keys: LaneKeys
    #: The token of its leader. Empty: nobody may lead it.
    token: str
    #: Id up to which its leader has taken in the messages.
    read_to: str


class DeadLetter(NamedTuple):
    """A dead letter that a batch writes. `bridge.protocol.dead_letters` makes and reads it."""

    message_id: str
    #: Names and values of its other fields, alternating.
    fields: Sequence[Argument]

    @property
    def size(self) -> int:
        """How many arguments the script gets."""
        return min(2 + len(self.fields), MAX_LETTER_ARGUMENTS)

    def arguments(self) -> list[Argument]:
        """All names and values, in at most `MAX_LETTER_ARGUMENTS` arguments."""
        arguments: list[Argument] = ["message_id", self.message_id, *self.fields]
        return arguments if len(arguments) <= MAX_LETTER_ARGUMENTS else _folded(arguments)


@dataclass
class Dispatch:
    """What one consumer gets in a batch. ``runs``: (ticket, fence offset, record tail). ``texts``: Celery messages
    without their opening, in the order in which the consumer shall get them.
    """

    consumer: str
    queue: str
    ids: list[str] = field(default_factory=list)
    runs: list[tuple[str, int, str]] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)


class Mark(NamedTuple):
    """How much a batch holds: fences, tickets whose retry is over, and what each consumer gets (ids, runs, texts)."""

    fences: int
    due: int
    sizes: Mapping[str, tuple[int, int, int]]


@dataclass
class Batch:
    """One step of the leader: what is settled and what is dispatched. Empty lists cost nothing."""

    keep_outcomes_from: str = ""
    fences: int = 0
    expected: dict[str, str | bytes] = field(default_factory=dict)
    #: Operators' orders that the batch carries out: their entries in the outcome stream.
    orders: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    given_back: list[str] = field(default_factory=list)
    records: list[Argument] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    retries: list[Argument] = field(default_factory=list)
    due: list[str] = field(default_factory=list)
    #: Due time and message, alternating: others overtake it until then; it is due; its ticket waits for it.
    delayed: list[Argument] = field(default_factory=list)
    late: list[Argument] = field(default_factory=list)
    holding: list[Argument] = field(default_factory=list)
    #: New due time and message, alternating, of delayed messages.
    rescheduled: list[Argument] = field(default_factory=list)
    #: Messages that are none of these any more.
    over: list[Argument] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    #: Name in the group under which messages of a parked ticket are pending -> their ids.
    shelved: dict[str, list[str]] = field(default_factory=dict)
    #: Dead letters that are put back into the stream's pending entries.
    replayed: list[str] = field(default_factory=list)
    #: Rows for the history (`bridge.routing.history`), and the entries that it may have.
    history: list[list[Any]] = field(default_factory=list)
    history_cap: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    #: Consumer -> the order that it takes nothing new; '': it takes new messages again.
    drains: dict[str, str] = field(default_factory=dict)
    dispatches: dict[str, Dispatch] = field(default_factory=dict)
    #: In a lane of a chain of versions, when it dispatches: the older lanes, the newer ones, and the tickets.
    older: list[OlderLane] = field(default_factory=list)
    newer: list[LaneKeys] = field(default_factory=list)
    contested: list[str] = field(default_factory=list)

    def count(self, name: str, amount: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    def shelve(self, name: str, ids: Sequence[str]) -> None:
        """These messages of a parked ticket are pending under ``name`` from now on."""
        if ids:
            self.shelved.setdefault(name, []).extend(ids)

    def delay(self, name: str, id_: str, due_ms: int) -> None:
        """Others overtake this message until it is due. It is pending under ``name`` until then."""
        self.delayed += (due_ms, member_of(id_))
        self.shelve(name, (id_,))

    def mark(self) -> Mark:
        """Where the dispatches begin that are planned from now on."""
        sizes = {name: (len(to.ids), len(to.runs), len(to.texts)) for name, to in self.dispatches.items()}
        return Mark(self.fences, len(self.due), sizes)

    def withdraw(self, mark: Mark, due_end: int) -> None:
        """Removes the dispatches planned since ``mark``. ``due_end``: the number of `due` when the plan was made."""
        self.fences = mark.fences
        del self.due[mark.due : due_end]
        for name, to in list(self.dispatches.items()):
            ids, runs, texts = mark.sizes.get(name, (0, 0, 0))
            del to.ids[ids:], to.runs[runs:], to.texts[texts:]
            if not (to.ids or to.runs or to.texts):
                del self.dispatches[name]
        self.older, self.newer, self.contested = [], [], []

    def sections(self) -> list[Argument]:
        """The sections that are not empty, as the script reads them."""
        names: list[Argument] = []
        arguments: list[Argument] = []
        for name, _, source, words_of in SECTIONS:
            found = getattr(self, source)
            if found and (some := found if words_of is None else words_of(self)):
                names += (name, len(some))
                arguments += some
        return [len(names) // 2, *names, *arguments]

    def __bool__(self) -> bool:
        """Whether anything is in it. An empty batch needs no script."""
        return any(vars(self).values())


class Section(NamedTuple):
    """One list of a batch, as the script gets it."""

    name: str
    #: Arguments of one item.
    width: int
    #: The field of the batch; when it is empty, so is the section.
    field: str
    #: The arguments of all items; None: the field itself.
    arguments: Callable[[Batch], Sequence[Argument]] | None = None


def _flat(items: Iterable[Iterable[Argument]]) -> list[Argument]:
    return list(chain.from_iterable(items))


def _given_back(batch: Batch) -> list[str]:
    # What is dead is acknowledged, and must not be made pending again by its run that is given back.
    gone = set(batch.acknowledged)
    return [id_ for id_ in batch.given_back if id_ not in gone]


def _dispatches(batch: Batch) -> list[Argument]:
    return _flat([(to.consumer, len(to.ids), len(to.runs), len(to.texts)) for to in batch.dispatches.values()])


def _runs(batch: Batch) -> list[Argument]:
    return _flat([run for to in batch.dispatches.values() for run in to.runs])


#: The lists of a batch. ``routing/lua/advance.lua`` reads them in this order, by these names.
SECTIONS = (
    Section("expected", 2, "expected", lambda batch: _flat(batch.expected.items())),
    Section("orders", 1, "orders"),
    Section("older", 2, "older", lambda batch: _flat([(one.token, one.read_to) for one in batch.older])),
    Section("newer", 1, "newer", lambda batch: [keys.stream for keys in batch.newer]),
    Section("contested", 1, "contested"),
    Section("acknowledged", 1, "acknowledged"),
    Section("given_back", 1, "given_back", _given_back),
    Section("shelves", 2, "shelved", lambda batch: _flat([(name, len(ids)) for name, ids in batch.shelved.items()])),
    Section("shelved", 1, "shelved", lambda batch: _flat(batch.shelved.values())),
    Section("records", 2, "records"),
    Section("released", 1, "released"),
    Section("retries", 2, "retries"),
    Section("due", 1, "due"),
    Section("delayed", 2, "delayed"),
    Section("late", 2, "late"),
    Section("holding", 2, "holding"),
    Section("rescheduled", 2, "rescheduled"),
    Section("over", 1, "over"),
    Section("dead", 1, "dead", lambda batch: [letter.size for letter in batch.dead]),
    Section("letters", 1, "dead", lambda batch: _flat([letter.arguments() for letter in batch.dead])),
    Section("replayed", 1, "replayed"),
    Section("counts", 2, "counts", lambda batch: _flat(batch.counts.items())),
    Section("drains", 2, "drains", lambda batch: _flat(batch.drains.items())),
    Section("dispatches", 4, "dispatches", _dispatches),
    Section("ids", 1, "dispatches", lambda batch: _flat([to.ids for to in batch.dispatches.values()])),
    Section("runs", 3, "dispatches", _runs),
    Section("texts", 1, "dispatches", lambda batch: _flat([to.texts for to in batch.dispatches.values()])),
)


def _folded(letter: list[Argument]) -> list[Argument]:
    """A letter with too many fields for one call: the last ones become one field, ``rest``, a JSON list."""
    kept = MAX_LETTER_ARGUMENTS - 2
    rest = [
        argument.decode(errors="backslashreplace") if isinstance(argument, bytes) else str(argument)
        for argument in letter[kept:]
    ]
    return [*letter[:kept], "rest", orjson.dumps(rest)]
