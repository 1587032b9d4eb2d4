"""A push that follows a folder: epochs that are written once, whatever ends it, and rows that are put aside."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from bridge.embedded import EmbeddedServer
from routing.errors import PayloadError
from spark import push_follow
from spark.failures import Terminated, one_line
from spark.push import main, plan_of
from spark.push_follow import follow
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("nothing_runs_on")]

STREAM = "ticket_stream"
TICKETS = 5


class Following:
    """A folder that files land in, and pushes of it that end when all that is there is pushed."""

    def __init__(self, session: SparkSession, server: EmbeddedServer, folder: Path) -> None:
        self._session, self._server, self._home = session, server, folder
        self.folder = folder / "landing"
        self.folder.mkdir()
        self.rejects = folder / "rejects"

    def land(self, name: str, numbers: range, *more: str) -> None:
        """A file with these numbers of every ticket, the last first: the writer has to sort."""
        rows = [{"ticket_id": f"T{t}", "seq": n} for n in reversed(numbers) for t in range(TICKETS)]
        hidden = self._home / name
        hidden.write_text("".join(f"{line}\n" for line in (*map(json.dumps, rows), *more)))
        hidden.rename(self.folder / name)

    def push(self, *words: str) -> None:
        typed = ["--follow", "--available-now", "--format", "json", "--checkpoint", str(self._home / "checkpoint")]
        typed += ["--url", self._server.url, "--progress", "json", "--partitions", "2", *words]
        follow(self._session, plan_of(main.make_context("push", [str(self.folder), *typed]).params))

    def entries(self) -> dict[str, list[int]]:
        """The numbers of each ticket, in stream order."""
        found: dict[str, list[int]] = defaultdict(list)
        with self._server.client() as client:
            for _, fields in client.xrange(STREAM):
                found[fields[b"ticket_id"].decode()].append(json.loads(fields[b"payload"])["seq"])
        return dict(found)


@pytest.fixture
def following(session: SparkSession, valkey: EmbeddedServer, tmp_path: Path) -> Following:
    return Following(session, valkey, tmp_path)


def every_ticket(count: int) -> dict[str, list[int]]:
    return {f"T{ticket}": list(range(count)) for ticket in range(TICKETS)}


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_what_lands_is_written_once_in_order_and_bad_rows_are_put_aside(
    following: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    # When files land, and one push after another takes what is there, the last one nothing
    following.land("1.jsonl", range(10))
    following.push("--rejects", str(following.rejects))
    following.land("2.jsonl", range(10, 20), '{"ticket_id": "", "seq": 1}', "{oops", '{"ticket_id": "T0", "n": 1}')
    for _ in range(2):
        following.push("--rejects", str(following.rejects))
    # Then all is there once, each ticket in order
    assert following.entries() == every_ticket(20)
    ends = [line for line in said(capsys) if line["event"] == "done"]
    assert [(end["rows"], end["epochs"]) for end in ends] == [(10 * TICKETS, 1), (10 * TICKETS, 1), (0, 0)]
    # And what is no message is put aside, once, with the reason
    rows = pq.read_table(following.rejects).to_pylist()
    assert sorted((row["reason"], row["row"]) for row in rows) == [
        ("a row has an empty ticket", None),
        ("the row cannot be read", "{oops"),
        ("ticket 'T0' has a row whose seq is not a whole number", None),
    ]


def test_a_bad_row_ends_the_push_with_nothing_of_its_epoch_written(following: Following) -> None:
    following.land("1.jsonl", range(1000), '{"ticket_id": null, "seq": 1}')
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's; one_line reads it
        following.push()
    told = one_line(failed.value)
    assert isinstance(told, PayloadError)
    assert "a row has no ticket" in str(told)
    assert following.entries() == {}


def test_a_push_that_is_stopped_while_it_waits_goes_on_from_its_checkpoint(
    following: Following, valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_follow, "GRACE_S", 0.5)
    # Given a push in the middle of an epoch that waits for room
    following.land("1.jsonl", range(100))

    def stop_when_full() -> None:
        with valkey.client() as client:
            wait_until(lambda: client.xlen(STREAM) >= 150, description="the stream to be full", timeout_s=120)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop_when_full)
    stopping.start()
    # When it is told to end, it says that it did not push everything
    with pytest.raises(Terminated):
        following.push("--high-water", "150", "--chunk-size", "20")
    stopping.join()
    assert 150 <= sum(map(len, following.entries().values())) < 150 + 20
    # And when there is room again, the next one adds what is left of the epoch
    following.push()
    assert following.entries() == every_ticket(100)
