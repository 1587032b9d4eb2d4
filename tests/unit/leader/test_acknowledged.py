"""What was acknowledged by hand while no master led, in a lane whose history is younger than its messages."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.leader.takeover import acknowledged as under_test
from bridge.leader.takeover.acknowledged import Acknowledged
from bridge.routing.history import What, row
from bridge.routing.ids import id_key
from bridge.routing.keys import LaneKeys

#: The entry that is not pending, and is older than all rows.
ENTRY = "5-0"


class History:
    """The server, as far as it is asked: the counters of the lane and its history."""

    def __init__(self, counted: dict[str, int | str], added: int | None = None) -> None:
        self.counted = counted
        #: How many entries were ever added. None: the server does not tell.
        self.added = added
        self.entries: list[tuple[bytes, list[bytes]]] = []
        self.claimed: list[str] = []

    def write(self, id_: str, *whats: What) -> None:
        rows = json.dumps([row(f"{900 + n}-0", what) for n, what in enumerate(whats)])
        self.entries.append((id_.encode(), [b"d", rows.encode()]))

    def call(self, *words: Any) -> Any:
        match words:
            case ("HGETALL", _):
                return [word for pair in self.counted.items() for word in (pair[0].encode(), str(pair[1]).encode())]
            case ("XREVRANGE", *_):
                return self.entries[-1:]
            case ("XRANGE", _, _, _, "COUNT", 1):
                return self.entries[:1]
            case ("XRANGE", _, start, *_):
                return [entry for entry in self.entries if start != f"({entry[0].decode()}"][:20]
            case _:
                told = [b"length", len(self.entries)]
                return told if self.added is None else [*told, b"entries-added", self.added]

    def call_many(self, commands: Any) -> list[Any]:
        return [self.call(*command) for command in commands]

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> Acknowledged:
        def look(_redis: Any, _stream: str, start: str, *_: Any) -> Any:
            ids = [ENTRY] if id_key(start.removeprefix("(")) < id_key(ENTRY) else []
            return SimpleNamespace(ids=ids, last="", more=False)

        monkeypatch.setattr(under_test, "done", look)
        term = SimpleNamespace(wire=self, keys=LaneKeys("orders", "bridge"), redis=None, master="master")
        pending = SimpleNamespace(claim_back=lambda _name, ids, _batch: self.claimed.extend(ids))
        steps = SimpleNamespace(advance=lambda _batch: None)
        return Acknowledged(cast("Any", term), cast("Any", steps), cast("Any", pending), "1-0", "800-0", ())


@pytest.mark.parametrize(
    ("done", "added", "undone"),
    [
        pytest.param(2, None, True, id="a row for each end"),
        pytest.param(2, 2, True, id="a row for each end, and the server says that none was trimmed"),
        pytest.param(3, None, False, id="an end without a row"),
        pytest.param(2, 3, False, id="the server says that one was trimmed"),
        pytest.param("garbage", None, False, id="a counter that holds no number"),
    ],
)
def test_an_entry_that_is_older_than_all_rows_is_undone_if_no_row_is_missing(
    done: int | str, added: int | None, undone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History({"done": done, "tampered": 7}, added)
    history.write("900-0", What.DONE)
    history.write("901-0", What.DONE)
    assert list(history.begin(monkeypatch).mend())
    assert history.claimed == ([ENTRY] if undone else [])


def test_rows_that_come_while_the_history_is_read_do_not_make_up_for_missing_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given two ends, of which one has no row, since the history was off then
    history = History({"done": 2})
    history.write("900-0", What.DONE)
    found = history.begin(monkeypatch)
    # When another message ends before all is read
    history.counted["done"] = 3
    history.write("901-0", What.DONE)
    assert list(found.mend())
    # Then the entry may be the one that has ended, and does not run again
    assert history.claimed == []


@pytest.mark.parametrize("done", [0, 1])
def test_an_empty_history_is_complete_if_nothing_has_ended(done: int, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History({"done": done})
    assert bool(list(history.begin(monkeypatch).mend())) is (not done)
    assert history.claimed == ([] if done else [ENTRY])
