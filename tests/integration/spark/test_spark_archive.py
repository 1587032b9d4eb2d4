"""The archive with a real Spark: its tables, read without Spark, have each row once after any fault."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow.parquet as pq
import pytest
import redis

from bridge.protocol.dead_letters import read_letter
from bridge.routing.errors import ConfigurationError, EntriesLost
from bridge.routing.history import What, read_entry
from bridge.routing.keys import LaneKeys
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.process import ProcessNode, python_module
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.integration.lanes import APP
from tests.integration.spark.spark_jobs import command, said, submit
from tests.integration.spark.spark_session import session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bridge.spark.archiving.run import Archive

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KEYS = LaneKeys("ticket_stream", "concurrency_stream_group")
DAY_MS = 86_400_000
#: Early on a day, UTC.
BEGIN_MS = 1_780_272_000_000 + 60_000
Row = dict[str, Any]


@pytest.fixture(scope="module")
def session() -> SparkSession:
    from bridge.spark.archiving.run import CONF

    return session_of(conf=CONF)


def archived(
    session: SparkSession, server: EmbeddedServer, out: Path, *, only: str | None = "messages", **options: Any
) -> dict[str, int]:
    """What one run of the job writes, in the session of the tests. Each table is a query, with processes of its own."""
    from bridge.spark.archiving.run import Run

    asked = archive_of(server, out, only=only, **options)
    with asked.place.held():
        asked.claim()
        return Run(session, asked).run()


def archive_of(server: EmbeddedServer, out: Path, *, only: str | None = "messages", **options: Any) -> Archive:
    """The options of one run."""
    from bridge.spark.archiving.place import ArchivePlace
    from bridge.spark.archiving.run import Archive
    from bridge.spark.archiving.tables import TABLES

    asked = Archive(
        place=ArchivePlace(str(out)), url=server.url, stream=KEYS.stream, group=KEYS.group,
        tables=tuple(table for table in TABLES if only in (None, table.name)),
        max_rows=100, fail_on_data_loss=True, every_s=None, progress="json",
    )  # fmt: skip
    return replace(asked, **options)


def rows_of(out: Path, table: str) -> list[Row]:
    """The rows of a table as a tool sees them that knows nothing of Spark."""
    if not (out / table).exists():
        return []
    found: list[Row] = pq.read_table(out / table).to_pylist()
    return found


def add_messages(client: redis.Redis, first: int, last: int, *, step_ms: int = 1) -> None:
    pipeline = client.pipeline(transaction=False)
    for number in range(first, last + 1):
        fields: dict[Any, Any] = {"ticket_id": f"T{number % 5}", "payload": f'{{"n": {number}}}'}
        pipeline.xadd(KEYS.stream, fields, id=f"{BEGIN_MS + number * step_ms}-{number % 3}")
    pipeline.execute()


def add_history(client: redis.Redis, rows: int, *, at_ms: int = BEGIN_MS) -> None:
    """Rows in entries of three, with all that a row may have."""
    draw = random.Random(rows)
    made = [history_row(draw, number, at_ms) for number in range(rows)]
    for start in range(0, rows, 3):
        client.xadd(KEYS.history, {"d": orjson.dumps(made[start : start + 3])}, id=f"{at_ms + start}-0")


def history_row(draw: random.Random, number: int, at_ms: int) -> list[Any]:
    in_flight = number % 3 > 0
    began = number % 2 > 0
    # Only the row of a drop has a reason, if its task gave one.
    what, *why = ("dropped", f"not ours: {number}") if number % 7 == 3 else (draw.choice(list(What)).value,)
    return [
        f"{at_ms - draw.randrange(10**6)}-{number}",
        f"T'{number}\n|\"",
        "task" if began else "",
        "w1@host" if in_flight else "",
        number % 4,
        at_ms * 1000 + number if in_flight else 0,
        at_ms if in_flight else 0,
        at_ms * 1000 + 123_457 if began else 0,
        draw.choice([0.012, 1e-05, 12.5, 0]) if began else 0,
        what,
        *why,
    ]


#: A row of the history without the reason.
DROPPED: list[Any] = ["5-0", "T1", "t", "w1@h", 1, 7, BEGIN_MS, BEGIN_MS * 1000, 1.5, What.DROPPED.value]
GIVEN_UP: dict[Any, Any] = {
    "message_id": "5-0",
    "ticket_id": "T1",
    "task": "t",
    "payload": "{}",
    "reason": "failed",
    "error": "E: x",
    "traceback": "Traceback\n  …",
    "attempts": "5",
    "at_ms": str(BEGIN_MS),
    "consumer": "w1@h",
    "fence": str(BEGIN_MS * 1000),
}
REFUSED: dict[Any, Any] = {
    "message_id": "6-0",
    "reason": "bad json",
    "error": "E",
    "attempts": "0",
    "at_ms": str(BEGIN_MS + DAY_MS),
    b"field:ticket_id": b"T\xfe",
    b"field:payload": b"{\xff",
    b"field:x:y": b"1",
    # Shown alike
    b"field:\xff": b"1",
    rb"field:\xff": b"2",
}
BY_HAND: dict[Any, Any] = {"message_id": "7-0", "at_ms": str(BEGIN_MS), b"payload": b"\xff", "field:payload": "{}"}


def of_ms(ms: float) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def day_of(ms: float) -> str:
    """As the name of a folder has it."""
    return of_ms(ms).date().isoformat()


def expected_history(entries: list[tuple[bytes, dict[bytes, bytes]]]) -> list[Row]:
    """What the bridge itself reads, as rows of the archive."""
    expected = []
    for id_, fields in entries:
        for number, row in enumerate(read_entry(id_, fields[b"d"])):
            began = row.started_us > 0
            expected.append(
                {
                    "history_id": id_.decode(),
                    "row": number,
                    "message_id": row.message_id,
                    "ticket_id": row.ticket,
                    "task": row.task,
                    "consumer": row.consumer,
                    "attempt": row.attempt,
                    "fence": row.fence,
                    "enqueued_at": of_ms(int(row.message_id.partition("-")[0])),
                    "dispatched_at": of_ms(row.dispatched_ms) if row.dispatched_ms else None,
                    "started_at": of_ms(0) + timedelta(microseconds=row.started_us) if began else None,
                    "service_ms": float(row.service_ms) if began else None,
                    "what": row.what.value,
                    "written_at": of_ms(row.written_ms),
                    "why": row.why or None,
                    "date": day_of(row.written_ms),
                    "batch": 0,
                }
            )
    return expected


def test_the_tables_say_what_the_server_says(session: SparkSession, valkey: EmbeddedServer, tmp_path: Path) -> None:
    out = tmp_path / "archive"
    with valkey.client() as client:
        # Given a lane with a history, dead letters of all kinds, and messages of all kinds, over midnight
        add_history(client, 10)
        add_messages(client, 1, 3, step_ms=DAY_MS // 2)
        client.xadd(KEYS.stream, {"ticket_id": "ü", "task": "t", "amount": "3", "note": "a\r\nb", "priority": "3"})
        due = {b"due": str(BEGIN_MS + 123), b"hold": b"1", b"expires": str(BEGIN_MS + DAY_MS)}
        rules = {b"max_attempts": b"2", b"timeout": b"500", b"priority": b"7"}
        client.xadd(KEYS.stream, {b"ticket_id": b"T", b"payload": b'{"a": "\xff"}', **due, **rules})
        client.xadd(KEYS.dead, GIVEN_UP)
        client.xadd(KEYS.dead, REFUSED)
        client.xadd(KEYS.dead, BY_HAND)
        history = client.execute_command("XRANGE", KEYS.history, "-", "+")
        letters = client.execute_command("XRANGE", KEYS.dead, "-", "+")
        # When it is archived
        assert archived(session, valkey, out, only=None) == {"history": 10, "dead": 3, "messages": 5}
    # Then the history is, row by row, what the bridge itself reads
    found = sorted(rows_of(out, "history"), key=lambda row: (row["history_id"], row["row"]))
    assert found == expected_history(history)
    assert any(row["why"] for row in found)
    # And so are the dead letters
    first, second, third = sorted(rows_of(out, "dead"), key=lambda row: str(row["message_id"]))
    letter_id, letter = letters[0]
    read = read_letter(letter_id, [part for field in letter.items() for part in field])
    assert (first["letter_id"], first["payload"], first["fence"]) == (read.id, "{}", read.fence)
    assert (first["at"], first["attempts"], first["traceback"]) == (of_ms(read.at_ms), 5, "Traceback\n  …")
    assert (first["fields"], second["payload"], second["error"]) == ([], None, "E")
    assert (second["ticket_id"], second["date"]) == (r"\x54fe", day_of(BEGIN_MS + DAY_MS))
    assert dict(second["fields"]) == {"ticket_id": r"\x54fe", "payload": r"\x7bff", "x:y": "1", r"\xff": "2"}
    assert (third["payload"], dict(third["fields"])) == (None, {"payload": r"\xff"})
    # And the messages, each under its date
    messages = {row["message_id"]: row for row in rows_of(out, "messages")}
    days = [messages[id_]["date"] for id_ in sorted(messages)[:3]]
    assert days == [day_of(BEGIN_MS + number * DAY_MS // 2) for number in (1, 2, 3)]
    plain, broken = (messages[id_] for id_ in sorted(messages)[3:])
    assert (plain["task"], plain["payload"]) == ("t", None)
    assert dict(plain["fields"]) == {"amount": "3", "note": "a\r\nb", "priority": "3"}
    assert (broken["payload"], dict(broken["fields"])["payload"]) == (None, "\\x" + b'{"a": "\xff"}'.hex())
    # With their options, those beside no payload being a part of it
    options = ("due", "hold", "max_attempts", "timeout_ms", "expires", "priority")
    assert [plain[name] for name in options] == [None] * 6
    assert [broken[name] for name in options] == [of_ms(BEGIN_MS + 123), True, 2, 500, of_ms(BEGIN_MS + DAY_MS), 7]
    from bridge.spark.archiving.reading import read_table

    again = {row["message_id"]: row for row in read_table(session, str(out), "messages").collect()}
    assert [again[broken["message_id"]][name] for name in ("hold", "timeout_ms", "priority")] == [True, 500, 7]
    # And times are instants to every reader
    types = {field.name: str(field.type) for field in pq.read_schema(next((out / "history").rglob("*.parquet")))}
    assert types["started_at"] == "timestamp[us, tz=UTC]"


def test_an_archive_of_before_has_no_reasons_of_drops(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path
) -> None:
    from bridge.spark.archiving.reading import read_table
    from bridge.spark.archiving.tables import TABLES

    # Given a history in files of which an older version wrote some
    with valkey.client() as client:
        for number in range(4):
            client.xadd(KEYS.history, {"d": orjson.dumps([[*DROPPED, f"reason {number}"]])}, id=f"{BEGIN_MS}-{number}")
    [table] = [table for table in TABLES if table.name == "history"]
    where = {"url": valkey.url, "stream": KEYS.stream, "group": KEYS.group, "table": table.name}
    rows = table.rows(session.read.format("redisstream").schema(table.schema).options(**where).load()).persist()
    is_old = rows.history_id.rlike("[01]$")
    rows.filter(is_old).drop("why").write.parquet(f"{tmp_path}/history/date=2026-06-01/batch=0")
    rows.filter(~is_old).write.parquet(f"{tmp_path}/history/date=2026-06-01/batch=1")
    rows.unpersist()
    # Then their rows are read without a reason
    found = read_table(session, str(tmp_path), "history").orderBy("history_id").collect()
    assert [row["why"] for row in found] == [None, None, "reason 2", "reason 3"]


def test_a_history_that_somebody_wrote_by_hand_ends_no_archive(session: SparkSession, valkey: EmbeddedServer) -> None:
    from bridge.spark.archiving.tables import TABLES

    # Given rows that lack members, that are no rows, and times that are none
    good = history_row(random.Random(1), 1, BEGIN_MS)
    spoiled = [b"", b"x", b"\xff", b"{}", b"[]", b"[[]]", b"[1]", b"[null]", b"[[null]]", b"[" * 2000]
    spoiled += [orjson.dumps([good, good[:length], good]) for length in range(len(good))]
    for place, odd in (("7", "2000000000000000000"), ("8", "1e400"), ("8", "1e308"), ("8", '"NaN"'), ("8", "-1")):
        parts = [orjson.dumps(part) for part in good]
        parts[int(place)] = odd.encode()
        spoiled.append(b"[[" + b",".join(parts) + b"]]")
    with valkey.client() as client:
        ids = [client.xadd(KEYS.history, {"d": entry}, id=f"{BEGIN_MS}-{at}") for at, entry in enumerate(spoiled)]
        ids.append(client.xadd(KEYS.history, {"e": "1"}))
    # When they are archived
    [table] = [table for table in TABLES if table.name == "history"]
    where = {"url": valkey.url, "stream": KEYS.stream, "group": KEYS.group, "table": table.name}
    entries = session.read.format("redisstream").schema(table.schema).options(**where).load()
    rows = [row.asDict() for row in table.rows(entries).collect()]
    # Then each entry is there, with what can be read of it
    assert {row["history_id"] for row in rows} == {id_.decode() for id_ in ids}
    three = [row for row in rows if row["history_id"] == f"{BEGIN_MS}-14"]
    assert [row["what"] for row in three] == [good[9], None, good[9]]
    assert [row["task"] for row in three] == [good[2]] * 3
    started, *took = [row for row in rows if int(row["history_id"].partition("-")[2]) >= len(spoiled) - 5][:5]
    assert (started["started_at"], [row["service_ms"] for row in took]) == (None, [None] * 4)


def test_a_second_run_goes_on_and_a_third_finds_nothing(
    session: SparkSession, redis6: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with redis6.client() as client:
        add_messages(client, 1, 250)
        assert archived(session, redis6, tmp_path)["messages"] == 250
        add_messages(client, 251, 260)
        assert archived(session, redis6, tmp_path)["messages"] == 10
    assert archived(session, redis6, tmp_path)["messages"] == 0
    assert sorted(row["payload"] for row in rows_of(tmp_path, "messages")) == sorted(
        f'{{"n": {n}}}' for n in range(1, 261)
    )
    # Epochs were of the size that was asked for, and it was told
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    epochs = [
        (line["epoch"], line["rows"]) for line in said if line["event"] == "archived" and line["table"] == "messages"
    ]
    assert epochs == [(0, 100), (1, 100), (2, 50), (3, 10)]
    assert said[-1]["event"] == "done"


def test_entries_that_left_before_they_were_archived_are_an_error_or_counted(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with valkey.client() as client:
        add_messages(client, 1, 100)
        archived(session, valkey, tmp_path)
        # When ten messages come and go between two runs, and ten are deleted that are archived
        add_messages(client, 101, 130)
        for number in [*range(41, 51), *range(111, 121)]:
            client.xdel(KEYS.stream, f"{BEGIN_MS + number}-{number % 3}")
        # Then a run fails and says how many, and what to do
        with pytest.raises(
            EntriesLost, match=r"^messages: 10 entries after .* bridge_retention, or use --allow-data-loss"
        ):
            archived(session, valkey, tmp_path)
        capsys.readouterr()
        # Or, as it is by default, goes on without them, and says so: the bridge was done with them
        assert archived(session, valkey, tmp_path, fail_on_data_loss=None)["messages"] == 20
        said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert said[-1]["missing"] == {"messages": 10}
        assert {"event": "missing", "table": "messages", "epoch": 1, "entries": 10} in said
    assert len(rows_of(tmp_path, "messages")) == 120


# A run that ends with what there is, and one that follows: each has one of the two losses.
@pytest.mark.parametrize(
    ("first_s", "second_s"),
    [
        pytest.param(0.1, None, id="follow-first"),
        pytest.param(None, 0.1, id="follow-second", marks=pytest.mark.long),
    ],
)
def test_a_loss_in_one_table_fails_the_run_after_the_others_were_archived(
    session: SparkSession,
    valkey: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    first_s: float | None,
    second_s: float | None,
) -> None:
    entries: dict[str, dict[Any, Any]] = {
        KEYS.history: {"d": "[]"},
        KEYS.dead: GIVEN_UP,
        KEYS.stream: {"ticket_id": "T", "payload": "{}"},
    }
    with valkey.client() as client:
        # Given an archive of all, and of each table what has come and gone since
        for key, fields in entries.items():
            client.xadd(key, fields)
        archived(session, valkey, tmp_path, only=None)
        for key, fields in entries.items():
            new: list[Any] = [client.xadd(key, fields) for _ in range(5)]
            if key == KEYS.history:
                client.xtrim(key, maxlen=3, approximate=False)
            else:
                client.xdel(key, *new[:2])
    # Then letters and messages leave as a matter of course, and the history does not. Several epochs are behind
    with pytest.raises(EntriesLost, match=r"^history: 2 entries after [^;]*; archive more often"):
        archived(session, valkey, tmp_path, only=None, fail_on_data_loss=None, every_s=first_s, max_rows=2)
    assert [len(rows_of(tmp_path, table)) for table in ("history", "dead", "messages")] == [1, 4, 4]
    # And where nothing may leave, each table that lost something is named
    with valkey.client() as client:
        for key in (KEYS.dead, KEYS.stream):
            client.xadd(key, entries[key])
            client.xdel(key, client.xadd(key, entries[key]))
    capsys.readouterr()
    with pytest.raises(EntriesLost, match=r"^history: 2 entries .*; dead: 1 .*; messages: 1 .*; archive more often"):
        archived(session, valkey, tmp_path, only=None, every_s=second_s)
    # Until they are allowed for
    rows = archived(session, valkey, tmp_path, only=None, fail_on_data_loss=False)
    assert rows == {"history": 3, "dead": 1, "messages": 1}
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said[-1]["missing"] == {"history": 2, "dead": 1, "messages": 1}


def test_a_loss_after_a_rest_is_reported_while_following(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path
) -> None:
    from bridge.spark.archiving.run import _TableRun

    told: list[dict[str, Any]] = []
    asked = archive_of(valkey, tmp_path, every_s=0.1, fail_on_data_loss=False)
    asked.claim()

    def come(epoch: int, *, gone: int) -> None:
        """Ten entries, of which some have left before they can be read."""
        with valkey.client() as client, client.pipeline(transaction=True) as pipeline:
            for number in range(10):
                pipeline.xadd(KEYS.stream, {"ticket_id": "T", "payload": "{}"}, id=f"{BEGIN_MS + epoch}-{number}")
            for number in range(gone):
                pipeline.xdel(KEYS.stream, f"{BEGIN_MS + epoch}-{number + 3}")
            pipeline.execute()

    come(0, gone=0)
    # That nothing came is reported every ten seconds only.
    session.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
    following = _TableRun(session, asked, asked.tables[0], lambda **event: told.append(event))

    def rests_before(epoch: int) -> bool:
        following.report_missing()
        last = following.query.lastProgress
        return last is not None and last.batchId == epoch and last.numInputRows == 0

    try:
        for epoch, gone in ((1, 1), (2, 0), (3, 2)):
            wait_until(partial(rests_before, epoch), description=f"a rest before epoch {epoch}")
            come(epoch, gone=gone)
        wait_until(partial(rests_before, 4), description="the end of the last epoch")
    finally:
        following.query.stop()
        session.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
    assert [(event["epoch"], event["entries"]) for event in told if event["event"] == "missing"] == [(1, 1), (3, 2)]
    assert (following.rows, following.missing) == (37, 3)


def test_an_epoch_that_is_run_again_leaves_its_files_as_they_are(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path
) -> None:
    with valkey.client() as client:
        # Given an archive of messages of three days, killed when the files were in place but Spark had not noted it
        add_messages(client, 1, 6, step_ms=DAY_MS // 2)
        archived(session, valkey, tmp_path)
        commits = tmp_path / "_checkpoints" / "messages" / "commits"

        def forget_commit() -> None:
            for file in [commits / "0", commits / ".0.crc"]:
                file.unlink(missing_ok=True)

        before = {file: file.stat().st_mtime_ns for file in (tmp_path / "messages").rglob("*.parquet")}
        forget_commit()
        # When entries of that epoch have left meanwhile, and it is run again
        client.execute_command("XTRIM", KEYS.stream, "MAXLEN", "1")
        assert archived(session, valkey, tmp_path)["messages"] == 0
        # Then nothing was touched
        assert {file: file.stat().st_mtime_ns for file in (tmp_path / "messages").rglob("*.parquet")} == before
        # When the kill came earlier, and one day was not in place yet
        forget_commit()
        (tmp_path / "_checkpoints" / "messages.written" / "0").unlink()
        victim = max((tmp_path / "messages").iterdir())
        gone = [file for file in before if victim in file.parents]
        for file in gone:
            file.unlink()
        (victim / "batch=0").rename(tmp_path / "elsewhere")
        assert archived(session, valkey, tmp_path, fail_on_data_loss=False)["messages"] == 1
    after = {file: file.stat().st_mtime_ns for file in (tmp_path / "messages").rglob("*.parquet")}
    # Then that day was written, as far as it was still there, and the others were not touched
    assert {file: at for file, at in before.items() if file not in gone}.items() <= after.items()
    counts = Counter(row["message_id"] for row in rows_of(tmp_path, "messages"))
    assert set(counts.values()) == {1}


@pytest.mark.parametrize("moment", ["mark", "second folder"])
@pytest.mark.parametrize("fails", [True, False])
def test_an_epoch_that_was_written_is_archived_although_its_entries_left_after_a_kill(
    session: SparkSession,
    valkey: EmbeddedServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    fails: bool,
) -> None:
    from bridge.spark.archiving.place import ArchivePlace

    rename, moved = Path.rename, []

    def moves(self: Path, target: Path) -> Path:
        moved.append(self.name)
        if moved.count("batch=0") == 2:
            raise OSError("killed")
        return rename(self, target)

    def marks(*_: Any) -> None:
        raise OSError("killed")

    with valkey.client() as client:
        # Given an archive of messages of three days, killed before all was in place, or before that was noted
        add_messages(client, 1, 6, step_ms=DAY_MS // 2)
        with monkeypatch.context() as patch:
            if moment == "mark":
                patch.setattr(ArchivePlace, "mark", marks)
            else:
                patch.setattr(Path, "rename", moves)
            with pytest.raises(Exception, match="killed"):
                archived(session, valkey, tmp_path)
        # When its entries leave, and others come
        client.execute_command("XTRIM", KEYS.stream, "MAXLEN", "0")
        add_messages(client, 7, 9, step_ms=DAY_MS // 2)
        capsys.readouterr()
        # Then the next run has them all, and misses none
        assert archived(session, valkey, tmp_path, fail_on_data_loss=fails)["messages"] == 3
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["missing"] == {}
    counts = Counter(row["message_id"] for row in rows_of(tmp_path, "messages"))
    assert (len(counts), set(counts.values())) == (9, {1})
    assert not [*(tmp_path / "messages").glob(".*")]


def test_a_folder_has_one_lane_one_writer_and_its_checkpoint(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path
) -> None:
    from bridge.spark.archiving.place import ArchivePlace

    with valkey.client() as client:
        add_messages(client, 1, 3)
    archived(session, valkey, tmp_path)
    place = ArchivePlace(str(tmp_path))
    with (
        place.held(),
        pytest.raises(ConfigurationError, match=rf"process {os.getpid()} on .* archives into .* already"),
        place.held(),
    ):
        pass
    with pytest.raises(ConfigurationError, match="is the archive of stream 'ticket_stream', group"):
        archived(session, valkey, tmp_path, stream="other")
    # Another database may have a stream of the same name
    with pytest.raises(ConfigurationError, match="in database 0; choose another folder"):
        archived(session, valkey, tmp_path, url=f"{valkey.url.rpartition('/')[0]}/1")
    # A folder that was begun before that was kept learns it
    lane = tmp_path / "_checkpoints" / "lane.json"
    lane.write_text(json.dumps({"stream": KEYS.stream, "group": KEYS.group}))
    archive_of(valkey, tmp_path).claim()
    assert json.loads(lane.read_text())["database"] == 0
    (tmp_path / "_checkpoints" / "messages").rename(tmp_path / "gone")
    with pytest.raises(ConfigurationError, match=r"has files but .* is gone"):
        archived(session, valkey, tmp_path)
    # Also when it was killed before the files of its first epoch were in place
    (tmp_path / "messages").rename(tmp_path / "elsewhere")
    (tmp_path / "messages" / ".epoch-0").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"has files but .* is gone"):
        archived(session, valkey, tmp_path)
    with pytest.raises(ConfigurationError, match="not to s3a://"):
        ArchivePlace("s3a://bucket/archive")


def test_a_batch_and_a_stream_of_the_source_in_spark(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path
) -> None:
    with valkey.client() as client:
        add_messages(client, 1, 200)
    options = {"url": valkey.url, "stream": KEYS.stream}
    # A batch, in parts, with columns and types of the user's choice
    rows = session.read.format("redisstream").options(**options, fields="payload", numPartitions="4").load()
    assert (rows.rdd.getNumPartitions(), rows.columns) == (4, ["id", "payload", "enqueued_at"])
    assert [row.payload for row in rows.collect()] == [f'{{"n": {n}}}' for n in range(1, 201)]
    chosen = (
        session.read.format("redisstream")
        .schema("payload BINARY, fields MAP<STRING, BINARY>")
        .options(**options)
        .load()
    )
    assert chosen.first()[1] == {"ticket_id": bytearray(b"T1")}  # type: ignore[index]
    # A batch that ends before it begins
    assert session.read.format("redisstream").options(**options, startingId="9999999999999").load().count() == 0
    # Options of a write, and secrets, are in one clear line and in none
    with pytest.raises(Exception, match="chunkSize is for writing"):
        session.read.format("redisstream").options(**options, chunkSize="5").load().collect()
    # A stream, in epochs of exactly the size that was asked for
    seen: list[tuple[int, int]] = []
    stream = (
        session.readStream.format("redisstream").options(**options, maxRowsPerTrigger="80", numPartitions="2").load()
    )
    query = (
        stream.writeStream.foreachBatch(lambda batch, epoch: seen.append((epoch, batch.count())))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert seen == [(0, 80), (1, 80), (2, 40)]


Ready = Callable[[], bool]


def rows_told(node: ProcessNode, table: str) -> int:
    """How many rows of a table a job has put in place."""
    return sum(line["rows"] for line in said(node.logs()) if line["event"] == "archived" and line["table"] == table)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_archive_that_is_killed_stopped_and_submitted_again_has_each_row_once(
    valkey: EmbeddedServer, tmp_path: Path
) -> None:
    out = tmp_path / "archive"
    # Given a lane whose every epoch has rows of several days
    days = [BEGIN_MS + day * DAY_MS for day in range(4)]

    def land(first: int, last: int, days: list[int]) -> None:
        with valkey.client() as client:
            for number in range(first, last):
                ms = days[(number - first) * len(days) // (last - first)] + number
                client.xadd(KEYS.stream, {"ticket_id": f"T{number % 9}", "payload": f'{{"n": {number}}}'}, id=f"{ms}-0")

    land(0, 900, days)
    with valkey.client() as client:
        for at_ms in days:
            add_history(client, 150, at_ms=at_ms)
    arguments = [str(out), "--max-rows", "200", "--progress", "json", "--master", "local[2]"]
    yard = ProcessYard(tmp_path, valkey.url)

    def staged() -> bool:
        return any(out.glob("*/.epoch-*.new"))

    def staged_again() -> bool:
        return staged() and any(out.glob("messages/date=*/batch=*"))

    def rows_archived() -> int:
        # While a file is put in place, what was listed may be gone.
        with suppress(FileNotFoundError):
            return len(rows_of(out, "messages"))
        return 0

    try:
        # When it is killed with all its processes, in the middle of its first files, and of later ones
        moments: list[Ready] = [staged, staged_again]
        for moment in moments:
            name = moment.__name__
            killed = yard.process(name, command("archive", *arguments, "--url", valkey.url), wait=False)
            wait_until(partial(ended_or, killed, moment), description=name, timeout_s=600, interval_s=0.005)
            killed.vanish()
            check_once(out)
        # And then follows the lane, with what comes meanwhile, until it is told to end
        following = python_module("bridge", "-A", APP, "spark", "archive", *arguments, "--follow", "--every", "0.5")
        env = {"CELERY_BROKER_URL": valkey.url, "CELERY_RESULT_BACKEND": valkey.url}
        node = yard.process("following", following, env=env, wait=False)
        wait_until(
            lambda: rows_archived() >= 900 or not node.running,
            description="what was there to be archived",
            timeout_s=600,
            interval_s=0.1,
        )
        land(900, 950, days[-1:])
        wait_until(
            lambda: (rows_told(node, "messages") >= 50 and rows_archived() == 950) or not node.running,
            description="what came to be archived",
            timeout_s=300,
            interval_s=0.1,
        )
        # Then it ends in good order, and leaves nothing behind
        assert node.terminate(timeout_s=180) == 0, node.logs()
        wait_until(lambda: not node.survivors(), description="the end of all")
        lines = said(node.logs())
        assert (lines[0]["event"], lines[-1]["event"]) == ("started", "done")
        assert lines[-1]["rows"] == {name: rows_told(node, name) for name in ("history", "dead", "messages")}
        check_once(out)
    finally:
        yard.close()
    # And when it is submitted to a Spark instead, it goes on where it was
    land(950, 970, days[-1:])
    lines = submit("archive", out, "--url", valkey.url, cwd=tmp_path)
    assert (lines[-1]["event"], lines[-1]["rows"]) == ("done", {"history": 0, "dead": 0, "messages": 20})
    # Then each row is there once, for every reader
    check_once(out)
    assert len(rows_of(out, "messages")) == 970
    assert len(rows_of(out, "history")) == 600
    assert not any(out.glob("*/.epoch-*"))


def ended_or(job: ProcessNode, moment: Ready) -> bool:
    """Also when it ended: then there is nothing left to kill, and the rest of the test says whether that is well."""
    return not job.running or moment()


def check_once(out: Path) -> None:
    for table, key in (("messages", ("message_id",)), ("history", ("history_id", "row"))):
        counts = Counter(tuple(row[name] for name in key) for row in rows_of(out, table))
        assert [row for row, count in counts.items() if count > 1] == []
