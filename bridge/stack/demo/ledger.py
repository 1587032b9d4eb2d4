"""The ledger's form, and how it is read: which executions there were, when, and in which process.

A ledger is a folder with a file for each pool process. A file is JSON lines: first `Process`, then one `Record` for
each start and each end of an execution. Times are of the machine's monotonic clock, which all its processes share, so
the records of one machine can be compared to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import orjson

from bridge.routing.errors import InputError

SUFFIX = ".ledger"


class Kind(Enum):
    """What happened to an execution."""

    START = "start"
    #: It ended with a success.
    DONE = "done"
    #: It ended otherwise: it raised, or asked to come again.
    FAILED = "failed"


class Record(NamedTuple):
    """One start or end of one execution.

    ``seq``: the event's number within its ticket, from 1. ``subscription``: for which one it ran.
    """

    kind: Kind
    ticket: str
    seq: int
    fence: int
    attempt: int
    at_ns: int
    pid: int
    subscription: str = ""

    def encode(self) -> bytes:
        """The record as a line."""
        return orjson.dumps([self.kind.value, *self[1:]]) + b"\n"


class Process(NamedTuple):
    """A pool process, its parent (the worker's main process) and its worker's node name."""

    pid: int
    parent: int
    worker: str

    def encode(self) -> bytes:
        """The process as a line."""
        return orjson.dumps(["process", *self]) + b"\n"


@dataclass
class Ledger:
    """All recorded processes and executions."""

    processes: list[Process] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    def of(self, subscription: str) -> Ledger:
        """The part that belongs to one subscription."""
        return Ledger(self.processes, [record for record in self.records if record.subscription == subscription])

    def children_of(self, pid: int) -> set[int]:
        """The pool processes of the worker whose main process was ``pid``."""
        return {process.pid for process in self.processes if process.parent == pid}


def file_name(pid: int, at_ns: int) -> str:
    """The name of a process's file. With the time, since process ids are used again."""
    return f"{pid}-{at_ns}{SUFFIX}"


def read_ledger(directory: Path) -> Ledger:
    """The ledger in a folder. Raises `InputError`, with file and line, for what is no record.

    A last line without its end was being written when its process was killed, and counts as not written.
    """
    ledger = Ledger()
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1], start=1):
            try:
                _read_line(line, ledger)
            except (ValueError, TypeError) as exc:
                raise InputError(f"{path}, line {number}: no record of a ledger: {exc}") from None
    return ledger


def _read_line(line: bytes, ledger: Ledger) -> None:
    first, *rest = orjson.loads(line)
    if first == "process":
        ledger.processes.append(Process(*rest))
    else:
        ledger.records.append(Record(Kind(first), *rest))
