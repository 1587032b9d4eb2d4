"""Listens to every command that a server runs, and checks which client wrote which key: the detector of I7 and I8.

Some keys may only be written by the leader, in scripts that compare the term before they write. The listener checks
every call of a run, also calls whose harm another check would have prevented.
"""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from bridge.routing.keys import LaneKeys
from bridge.stack.ports import HOST

#: Something that only the leader's scripts may write was written in another way.
OUTSIDE = "outside a script"
#: A script wrote it, and did not ask before who leads.
UNASKED = "did not ask who leads"

_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
#: Commands that write, and the place of their key among their arguments.
_WRITES = {
    **dict.fromkeys(("SET", "DEL", "UNLINK", "INCR", "INCRBY", "HSET", "HDEL", "HINCRBY", "ZADD", "ZREM"), 1),
    **dict.fromkeys(("LPUSH", "RPUSH", "XACK", "XCLAIM", "XAUTOCLAIM", "XADD", "XDEL", "XTRIM"), 1),
    "XGROUP": 2,
}


class Listener:
    """Listens from a thread of its own until `close`; ``findings`` grows: (what, detail). ``lanes``: of one stream."""

    def __init__(self, port: int, lanes: Sequence[LaneKeys]) -> None:
        self.findings: list[tuple[str, str]] = []
        #: How often each script (by its hash) was called; empty when it did not listen at all.
        self.calls: Counter[str] = Counter()
        self._judges = [_judge(keys) for keys in lanes]
        self._leaders = {keys.leader for keys in lanes}
        self._socket = socket.create_connection((HOST, port))
        self._socket.sendall(b"MONITOR\r\n")
        self._file = self._socket.makefile("rb")
        assert self._file.readline().startswith(b"+OK")
        self._thread = threading.Thread(target=self._listen, name="test-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._file.close()
        self._socket.close()

    def _listen(self) -> None:
        asked: set[str] = set()
        try:
            for raw in self._file:
                line = raw.decode(errors="replace")
                at = line.find("] ")
                arguments = _arguments(line, at)
                command = next(arguments, "").upper()
                if not line[:at].endswith("lua"):
                    asked = set()
                    if command == "EVALSHA":
                        self.calls[next(arguments, "")] += 1
                    self._note(command, arguments, None)
                elif command == "GET" and (key := next(arguments, "")) in self._leaders:
                    asked.add(key)
                else:
                    self._note(command, arguments, asked)
        except (OSError, ValueError):
            return

    def _note(self, command: str, arguments: Iterator[str], asked: set[str] | None) -> None:
        everything = list(arguments)
        for judge in self._judges:
            what = judge(command, iter(everything), asked)
            if what is not None and what not in self.findings and len(self.findings) < 100:
                self.findings.append(what)


class _judge:  # noqa: N801 - a function with a memory
    """What is wrong with one write. ``asked``: None outside of scripts, else the leaders that the script asked for."""

    def __init__(self, keys: LaneKeys) -> None:
        self.leader = keys.leader
        self._stream = keys.stream
        self._queues = keys.queue("")
        self._leases = keys.lease("")
        self._leaders = {keys.tickets, keys.retries, keys.fence, keys.dead, keys.counts, keys.history, keys.drains}
        self._leaders |= {keys.floor, keys.agreed}
        self._shared: dict[str, Callable[[str], bool]] = {
            # Workers add; the leader alone takes away.
            keys.outcomes: lambda command: command == "XTRIM",
            keys.applied: lambda command: command == "HDEL",
        }

    def __call__(self, command: str, arguments: Iterator[str], asked: set[str] | None) -> tuple[str, str] | None:
        if command == "XREADGROUP":
            everything = list(arguments)
            if self._stream not in everything or everything[-1] != ">":
                return None  # what is pending already may be read by anybody: it changes nothing
            key = self._stream
        elif command not in _WRITES:
            return None
        else:
            everything = list(arguments)
            key = next(islice(everything, _WRITES[command] - 1, None), "")
            # Entries are added, and the group is made, by any member. No entry has the id 0-0.
            harmless = command in ("XADD", "XGROUP") and asked is None
            if key == self._stream and (harmless or everything[0] == "CREATE" or everything[1:] == ["0-0"]):
                return None
        if key.startswith(self._leases) and command == "SET" and asked is None:
            return OUTSIDE, f"{command} {key}"  # only a script begins a lease: renewal never revives one
        mine = key in self._leaders or (key == self._stream and command != "XADD")
        mine = mine or (key.startswith(self._queues) and command in ("LPUSH", "RPUSH"))
        mine = mine or (key in self._shared and self._shared[key](command))
        # The stream is shared by all its lanes.
        if not mine or (asked and (self.leader in asked or key == self._stream)):
            return None
        return (OUTSIDE if asked is None else UNASKED), f"{command} {key}"


def _arguments(line: str, at: int) -> Iterator[str]:
    return (match.group(1) for match in _WORD.finditer(line, max(0, at)))
