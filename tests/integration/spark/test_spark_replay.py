"""Messages of an archive put back into a stream, with a real Spark and a real server."""

from __future__ import annotations

import json
import os
import random
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from bridge.protocol import dead_letters
from bridge.protocol.dead_letters import LETTER_ARGUMENTS, LETTER_BYTES
from bridge.routing.batch import DeadLetter
from bridge.routing.errors import InputError
from bridge.routing.ids import id_key
from bridge.routing.keys import LaneKeys
from bridge.routing.messages import EntryParser, Message, Refusal, payload_of_fields
from bridge.spark.archiving import selection
from bridge.spark.archiving.reading import Range
from bridge.spark.archiving.selection import Counts, Selection
from bridge.spark.archiving.tables import TABLES
from bridge.spark.job.failures import one_line
from bridge.spark.replay import Replay, main, name_of, replay
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.nodes.yard import ProcessYard
from bridge.testing.waiting import wait_until
from tests.integration.spark.archives import START_MS, Archive, Line, history, letter, message
from tests.integration.spark.spark_jobs import command, refused, said, submit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("nothing_runs_on")]

STREAM = "again_stream"
SEED = int(os.environ.get("REPLAY_SEED", "4"))
EVERYTHING = Selection(Range())


def ask(
    archive: Path, server: EmbeddedServer, selection: Selection = EVERYTHING, *, run: str | None = None, **more: Any
) -> Replay:
    run = run or name_of(str(archive), selection, STREAM)
    options = {"url": server.url, "stream": STREAM, "runId": run}
    return Replay(str(archive), selection, STREAM, run, options, partitions=2, **more)


def entries(server: EmbeddedServer) -> list[dict[str, str]]:
    """The fields of each entry, in stream order."""
    with server.client() as client:
        found = client.xrange(STREAM)
    return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in found]


def by_ticket(found: list[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    tickets: dict[str, list[dict[str, str]]] = defaultdict(list)
    for fields in found:
        tickets[fields["ticket_id"]].append(fields)
    return tickets


@pytest.fixture(scope="module")
def many() -> Archive:
    """Messages whose ids text would sort wrongly, in an order that is not theirs."""
    print(f"REPLAY_SEED={SEED}")
    draw = random.Random(SEED)
    made = Archive()
    for number in range(300):
        ms = START_MS + number // 25 if number >= 20 else 9 + number  # … 9, 10, … and hand-made ids
        id_ = f"{ms}-{number}"
        task = draw.choice((None, "shop.apply"))
        made.messages.append(message(id_, f"T-{draw.randrange(7)}", json.dumps({"n": number, "t": "ü\n"}), task=task))
    draw.shuffle(made.messages)
    return made


@pytest.fixture(scope="module")
def many_archive(many: Archive, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return many.write(tmp_path_factory.mktemp("many") / "archive")


def in_order(many: Archive) -> dict[str, list[dict[str, str]]]:
    """Each ticket's messages as they were, in the order of their ids as numbers."""
    expected: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in sorted(many.messages, key=lambda row: id_key(row["message_id"])):
        task = {"task": row["task"]} if row["task"] else {}
        expected[row["ticket_id"]].append({"ticket_id": row["ticket_id"], **task, "payload": row["payload"]})
    return expected


def test_every_ticket_comes_back_whole_in_the_order_of_its_ids_and_once(
    session: SparkSession, valkey: EmbeddedServer, many: Archive, tmp_path: Path
) -> None:
    # When an archive is replayed without an end, and by mistake a second time
    folder = tmp_path / "archive"
    half = Archive(messages=many.messages[::2])
    half.write(folder)
    asked = ask(folder, valkey)
    for _ in range(2):
        replay(session, asked)
        # Then each ticket has its messages as they were, in order
        assert by_ticket(entries(valkey)) == in_order(half)
    # When the archive has grown in the middle
    many.write(folder)
    before = entries(valkey)
    with pytest.raises(Exception) as failed:  # noqa: PT011 - what Spark throws is Spark's; one_line reads it
        replay(session, asked)
    # Then the changed selection is refused in one line, and the stream is as it was
    error = str(one_line(failed.value))
    assert error.startswith(f"{asked.run} began with other messages")
    assert "\n" not in error
    assert entries(valkey) == before
    # And only a deliberate second replay adds them again
    replay(session, ask(folder, valkey, run="another"))
    found = entries(valkey)
    assert found[: len(before)] == before
    assert by_ticket(found[len(before) :]) == in_order(many)


def lane() -> Archive:
    """A lane's archive in which some entries, rows and letters are there and some are not."""
    at = START_MS * 1000
    ids = [f"{START_MS + i}-0" for i in range(9)]
    whole, fields_only, gone, dead_here, dead_gone, refused, no_text, replayed, bad_ticket = ids

    def ended(i: int, id_: str, what: str, ticket: str = "A", task: str = "shop.apply") -> Line:
        ran = (0, 0.0) if what in ("refused", "replayed") else (at + i, 1.0)
        return Line(at + 1000 * i, id_, ticket, task, what, "w", 1, 7 + i, *ran)

    lines = [ended(i, id_, "done") for i, id_ in enumerate((whole, fields_only, gone), start=1)]
    lines += [ended(4, dead_here, "dead", "B", "shop.notify"), ended(5, dead_gone, "dead", "B")]
    lines += [ended(6, refused, "refused", "", ""), ended(7, replayed, "dead"), ended(8, replayed, "replayed")]
    lines += [ended(9, replayed, "done"), ended(10, bad_ticket, "refused", "", "")]
    lines += [ended(11, dead_here, "stale", "", ""), ended(12, no_text, "refused", "", "")]
    return Archive(
        history(lines),
        dead=[
            letter(at + 4000, dead_here, "gave up after 5 attempts", ticket_id="B", task="shop.notify", payload="{}"),
            letter(at + 5000, dead_gone, "gave up after 5 attempts", ticket_id="B", task="shop.apply", payload='"x"'),
            letter(at + 6000, refused, "unknown task", ticket_id="B", task="?", fields={"ticket_id": "B", "task": "?"}),
            letter(at + 7000, replayed, "gave up after 1 attempts", ticket_id="A", task="shop.apply", payload="1"),
            letter(at + 8000, bad_ticket, "ticket_id is empty, longer than 512 bytes, or not UTF-8", ticket_id="\\xff"),
            letter(at + 9000, no_text, "a field is not UTF-8", ticket_id="C", fields={"payload": "\\xff"}),
        ],
        messages=[
            message(whole, "A", '{"n": 1}'),
            message(fields_only, "A", None, fields={"qty": "2", "note": 'a "b"\\', "ω": ""}, task="shop.apply"),
            message(dead_here, "B", '{"n": 4}', task="shop.notify", fields={}),
            message(replayed, "A", '{"n": 8}'),
            message(bad_ticket, "\\xff", "{}"),
            message(no_text, "C", None, fields={"payload": "\\xff"}),
        ],
    )


@pytest.fixture(scope="module")
def lane_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lane().write(tmp_path_factory.mktemp("lane") / "archive")


def test_bodies_that_the_archive_lacks_are_counted_and_nothing_is_written_without_them(
    session: SparkSession, valkey: EmbeddedServer, lane_archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="1 of 9 messages left their stream before they were archived"):
        replay(session, ask(lane_archive, valkey), "text")
    assert entries(valkey) == []
    assert "2 are left out: no lane could process them" in capsys.readouterr().out
    # Allowed, the others come: bodies from their entries, or from their dead letters where the entries are gone
    counts = replay(session, ask(lane_archive, valkey, allow_missing=True))
    assert (counts.selected, counts.missing, counts.unusable, counts.replayable) == (9, 1, 2, 6)
    found = by_ticket(entries(valkey))
    rest = payload_of_fields([b"qty", b"2", b"note", b'a "b"\\', "ω".encode(), b""]).decode()
    second = found["A"].pop(1)
    assert (second["task"], json.loads(second["payload"])) == ("shop.apply", json.loads(rest))
    assert [fields["payload"] for fields in found["A"]] == ['{"n": 1}', '{"n": 8}']
    assert "task" not in found["A"][0], "the lane's default decides, as it did"
    assert found["B"] == [
        {"ticket_id": "B", "task": "shop.notify", "payload": '{"n": 4}'},
        {"ticket_id": "B", "task": "shop.apply", "payload": '"x"'},
        {"ticket_id": "B", "task": "?", "payload": "{}"},
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(Range(), dead_only=True), [3, 4, 5]),
        (Selection(Range(), tickets=("B",)), [3, 4, 5]),
        (Selection(Range(), tickets=("A", "C"), tasks=("shop.apply",)), [0, 1, 7]),
        (Selection(Range(), tasks=("shop.notify",)), [3]),
        (Selection(Range.of(f"{START_MS + 1}-0", f"{START_MS + 3}-0")), [1, 3]),
        (Selection(Range.of("2026-03-14T09:24:47.001", "2026-03-14T09:24:47.003Z")), [1]),
    ],
    ids=["dead", "ticket", "tickets-and-task", "task", "ids", "times"],
)
def test_a_selection_takes_exactly_its_messages(
    session: SparkSession, lane_archive: Path, selection: Selection, expected: list[int]
) -> None:
    from bridge.spark.archiving.selection import selected

    rows = selected(session, str(lane_archive), selection, max_payload=1000).filter("not missing and not unusable")
    assert sorted(id_key(row.message_id)[0] - START_MS for row in rows.collect()) == expected


def test_a_selection_takes_what_all_of_it_hold_for(session: SparkSession, tmp_path: Path) -> None:
    from bridge.spark.archiving.selection import selected

    # Given messages of which each but two lacks one thing that is asked for
    lives = [
        ("A", "t", "dead"),  # before the range
        ("A", "t", "dead"),
        ("B", "t", "dead"),
        ("A", "u", "dead"),
        ("A", "t", "done"),
        ("C", "t", "refused"),
        ("A", "t", "dead"),  # behind the range
    ]
    at = START_MS * 1000
    lines = [
        Line(at + 10**6 + n, f"{START_MS + n}-0", ticket, task, what, "w", 1, 7 + n, at + n, 1.0)
        for n, (ticket, task, what) in enumerate(lives)
    ]
    bodies = [message(f"{START_MS + n}-0", ticket, "{}", task=task) for n, (ticket, task, _) in enumerate(lives)]
    folder = Archive(history(lines), messages=bodies).write(tmp_path / "archive")
    # When it is a range of times or ids
    within = Range.of("2026-03-14T09:24:47.001", "2026-03-14T09:24:47.006Z")
    assert within == Range((START_MS + 1, 0), (START_MS + 6, 0))
    assert Range.of(f"{START_MS + 1}-0", f"{START_MS + 5}-0") == Range((START_MS + 1, 0), (START_MS + 5, 1))
    # Then those two come
    selection = Selection(within, tickets=("A", "C"), tasks=("t",), dead_only=True)
    rows = selected(session, str(folder), selection, max_payload=1000).filter("not missing and not unusable")
    assert sorted(id_key(row.message_id)[0] - START_MS for row in rows.collect()) == [1, 5]


def test_a_dry_run_prints_the_counts_and_needs_no_server(session: SparkSession, lane_archive: Path) -> None:
    selection = Selection(Range(), tickets=("B",))
    asked = Replay(str(lane_archive), selection, "", "r", {"url": "redis://127.0.0.1:1", "runId": "r"}, dry_run=True)
    expected = Counts(3, 0, 0, 1, f"{START_MS + 3}-0", f"{START_MS + 5}-0")
    assert replay(session, asked) == expected
    with pytest.raises(InputError, match=r"nothing in .* is selected"):
        replay(session, Replay(str(lane_archive), Selection(Range(), tickets=("Z",)), "", "r", {}, dry_run=True))


@pytest.mark.long
def test_a_killed_replay_continues_where_it_was_when_started_again(
    valkey: EmbeddedServer, many_archive: Path, many: Archive, tmp_path: Path
) -> None:
    yard = ProcessYard(tmp_path, valkey.url)
    arguments = (many_archive, "--stream", STREAM, "--url", valkey.url)
    try:
        # Given a replay in the middle of its rows: the stream is full
        limits = ("--high-water", "100", "--chunk-size", "20", "--partitions", "2", "--master", "local[2]")
        node = yard.process("replay", command("replay", *arguments, *limits, "--progress", "json"), wait=False)
        wait_until(
            lambda: len(entries(valkey)) >= 100 or not node.running, description="the stream to be full", timeout_s=600
        )
        assert [event["event"] for event in said(node.logs())][:2] == ["selected", "started"]
        # When it is killed with all its processes, and submitted again to a Spark, as if on another machine
        node.vanish()
        written = len(entries(valkey))
        assert 100 <= written < 100 + 20
        lines = submit("replay", *arguments, cwd=tmp_path)
    finally:
        yard.close()
    # Then what was there is not there twice, and each ticket is whole, in order
    assert (lines[-1]["event"], lines[-1]["rows"], lines[-1]["already"]) == ("done", len(many.messages), written)
    assert by_ticket(entries(valkey)) == in_order(many)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["nowhere", "--stream", "s"], 1, "there is no archive at nowhere"),
        (["{archive}"], 2, "--stream is missing"),
        (["{archive}", "--stream", "s", "--again", "--run-id", "x"], 2, "--again and --run-id exclude each other"),
        (["{archive}", "--stream", "s", "--from", "9-x"], 2, "--from must be a time"),
        (["{archive}", "--stream", "s", "--high-water", "0"], 2, "option highWater must be a whole number"),
        (["{archive}", "--stream", "s", "--url", "redis://:hunter2@127.0.0.1:1"], 1, "no Redis at redis://127.0.0.1:1"),
    ],
    ids=["nowhere", "stream", "again", "time", "option", "server"],
)
def test_wrong_usage_is_one_line_before_java_starts(
    lane_archive: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, text: str
) -> None:
    done = refused(main, [word.format(archive=lane_archive) for word in arguments], monkeypatch)
    assert (done.exit_code, text in done.stderr) == (code, True), done.stderr
    assert "hunter2" not in done.stderr


def test_the_id_of_a_replay_depends_on_the_selection_not_on_its_spelling(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    day = Selection(Range.of("2026-03-14", "2026-03-15"), tickets=("A",))
    same = Selection(Range.of("2026-03-14T01:00+01:00", "2026-03-15T00:00Z"), tickets=("A",))
    name = name_of(str(tmp_path / "a"), day, "s")
    assert name == name_of(f"{tmp_path}/b/../a/", same, "s")
    others = [
        name_of(str(tmp_path / "b"), day, "s"),
        name_of(str(tmp_path / "a"), day, "t"),
        name_of(str(tmp_path / "a"), Selection(Range(), tickets=("A",)), "s"),
        name_of(str(tmp_path / "a"), Selection(day.within, dead_only=True), "s"),
    ]
    assert len({name, *others}) == 5


def test_a_replay_shows_no_password() -> None:
    asked = Replay("a", EVERYTHING, "s", "r", {"url": "redis://u:hunter2@h/0", "runId": "r"})
    assert "hunter2" not in f"{asked!r} {asked.parsed!r}"


#: Fields of which a letter holds all.
LETTER_FIELDS = LETTER_ARGUMENTS // 2
#: Sizes of parts of a message, of which a letter holds all, or not quite.
SIZES = (1, 200, 30_000, 40_000, LETTER_BYTES - 30, *(LETTER_BYTES + by for by in (-3, -2, -1, 0)), 3 * LETTER_BYTES)


def dead_message(draw: random.Random, number: int) -> tuple[DeadLetter, bytes | None, bool, bool]:
    """A letter as a leader writes it, its message's payload (None: no lane could process it), whether it holds all, and
    whether it is as large as a letter may be.
    """
    id_, ticket = f"{START_MS + number}-0", b"T-%d" % number
    text = draw.choice("xä€") * (draw.choice(SIZES) // draw.choice((1, 1, 2, 3)))
    if draw.random() < 0.5:
        payload = orjson.dumps(text)
        about: dict[str, Any] = {"reason": "gave up", "error": "", "traceback": "", "attempts": 1, "at_ms": START_MS}
        message_ = Message(id_, ticket.decode(), "t", payload)
        letter_ = dead_letters.given_up(message_, consumer="w", fence=7, **about)
        return letter_, payload, len(payload) <= LETTER_BYTES, len(payload) >= LETTER_BYTES
    rest = [b"a", text.encode()]
    if draw.random() < 0.7:
        rest += [b"b", b"y" * draw.choice(SIZES)]
    if draw.random() < 0.2:
        rest = [part for at in range(LETTER_ARGUMENTS // 2 - 2 + draw.choice((0, 1))) for part in (b"f%d" % at, b"1")]
    is_twice, is_unread = draw.random() < 0.1, draw.random() < 0.1
    if is_unread:
        rest += [b"c", b"z" * LETTER_BYTES]
    fields = [b"ticket_id", ticket, b"task", b"?", *rest, *([b"task", b"!"] if is_twice else [])]
    entry: Any = (id_.encode(), fields)
    if is_unread:
        # As a leader reads an entry that is far too large
        entry = (entry[0], [part[:1024] for part in fields[:32]], sum(map(len, fields)), len(fields) // 2)
    refusal = EntryParser(default_task=None, max_payload=10**6, known_tasks=()).parse_entry(entry)
    assert isinstance(refusal, Refusal)
    letter_ = dead_letters.refused(refusal, at_ms=START_MS)
    arguments = letter_.arguments()
    at_fields = [at for at in range(0, len(arguments), 2) if isinstance(arguments[at], bytes)]
    held: list[Any] = [arguments[at] for at in at_fields]
    values: list[Any] = [arguments[at + 1] for at in at_fields]
    holds_all = held == [b"field:" + name for name in fields[::2]] and values == fields[1::2]
    is_full = sum(map(len, held + values)) - len(b"field:") * len(held) >= LETTER_BYTES or len(held) >= LETTER_FIELDS
    return letter_, None if is_twice else payload_of_fields(rest), holds_all, is_full


def test_a_letter_that_holds_a_part_of_a_message_is_not_sent_for_the_message(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (selection.LETTER_BYTES, selection.LETTER_FIELDS) == (LETTER_BYTES, LETTER_FIELDS)
    print(f"REPLAY_SEED={SEED}")
    draw = random.Random(SEED)
    made = [dead_message(draw, number) for number in range(200)]
    keys = LaneKeys("ticket_stream", "group")
    with valkey.client() as client:
        for letter_, *_ in made:
            client.execute_command("XADD", keys.dead, "*", *letter_.arguments())
    # Given an archive of these letters only, of which an older version wrote some
    [table] = [table for table in TABLES if table.name == "dead"]
    where = {"url": valkey.url, "stream": keys.stream, "group": keys.group, "table": table.name}
    rows = table.rows(session.read.format("redisstream").schema(table.schema).options(**where).load()).persist()
    is_old = rows.message_id.rlike("[02468]-0$")
    rows.filter(~is_old).write.parquet(f"{tmp_path}/dead/date=2026-03-14/batch=0")
    rows.filter(is_old).drop("cut_bytes").write.parquet(f"{tmp_path}/dead/date=2026-03-14/batch=1")
    rows.unpersist()
    # When it is replayed
    counts = replay(session, ask(tmp_path, valkey, allow_missing=True), "text")
    # Then the whole ones come as they were
    sent = {int(fields["ticket_id"].partition("-")[2]): orjson.loads(fields["payload"]) for fields in entries(valkey)}
    cut, unusable = set(), set()
    for number, (_, payload, holds_all, is_full) in enumerate(made):
        # An older version did not say of a letter of this size whether that was all.
        if not holds_all or (is_full and number % 2 == 0):
            cut.add(number)
        elif payload is None:
            unusable.add(number)
    assert sent == {
        number: orjson.loads(payload or b"")
        for number, (_, payload, *_) in enumerate(made)
        if number not in cut | unusable
    }
    # And the reason is told for the others
    assert (counts.missing, counts.cut, counts.unusable) == (len(cut), len(cut), len(unusable))
    assert len(cut) > 20
    assert len(sent) > 50
    assert unusable
    said_so = f"{len(cut)} of 200 messages are there only as dead letters, with the beginnings of their bodies"
    assert f"\n{said_so}: " in capsys.readouterr().out
    with pytest.raises(InputError, match=f"^{said_so}, and cannot be replayed"):
        replay(session, ask(tmp_path, valkey, run="another"))


def test_a_replayed_message_keeps_its_options_and_an_expired_one_is_left_out(
    session: SparkSession, valkey: EmbeddedServer, tmp_path: Path
) -> None:
    rules = {"max_attempts": "2", "timeout": "500", "priority": "7"}
    due, later, past = str(START_MS + 10**11), str(START_MS + 10**12), str(START_MS)
    made = Archive(
        messages=[
            message("1700000000000-1", "A", "1", fields={"due": due, "hold": "1"}),
            message("1700000000000-2", "A", None, fields={"due": due, "n": "2"}),
            message("1700000000000-3", "A", "3"),
            message("1700000000000-4", "A", "4", fields={**rules, "expires": later}),
            message("1700000000000-5", "A", "5", fields={"expires": past}),
            # Beside no payload they are a part of it.
            message("1700000000000-6", "A", None, fields={"expires": past, "priority": "high"}),
            # No master would take these.
            message("1700000000000-7", "B", "7", fields={"due": "tomorrow"}),
            message("1700000000000-8", "B", "8", fields={"due": due, "hold": "yes"}),
            message("1700000000000-9", "B", "9", fields={"due": str(10**13)}),
            message("1700000000000-10", "B", "10", fields={"priority": "high"}),
        ]
    )
    folder = made.write(tmp_path / "archive")
    delayed = [
        {"ticket_id": "A", "due": due, "hold": "1", "payload": "1"},
        {"ticket_id": "A", "due": due, "payload": '{"n":"2"}'},
        {"ticket_id": "A", "payload": "3"},
    ]
    last = {"ticket_id": "A", "payload": json.dumps({"expires": past, "priority": "high"}, separators=(",", ":"))}
    counts = replay(session, ask(folder, valkey))
    assert (counts.replayable, counts.unusable, counts.expired) == (5, 4, 1)
    assert counts.with_option == {"due": 2, "hold": 1, **dict.fromkeys(rules, 1), "expires": 1}
    assert entries(valkey) == [*delayed, {"ticket_id": "A", **rules, "expires": later, "payload": "4"}, last]
    # When it is started again, what has expired is judged as before
    run = name_of(str(folder), EVERYTHING, STREAM)
    with valkey.client() as client:
        noted = client.hget(f"{{{STREAM}}}/push:run:{run}", "began")
        client.hset(f"{{{STREAM}}}/push:run:{run}", "began", str(int(noted) - 1))
        assert client.ttl(f"{{{STREAM}}}/push:run:{run}") > 0
    replay(session, ask(folder, valkey))
    assert len(entries(valkey)) == 5
    with valkey.client() as client:
        assert int(client.hget(f"{{{STREAM}}}/push:run:{run}", "began")) == int(noted) - 1
        client.delete(STREAM)
    # And without their expiry all are sent
    everything = Selection(Range(), without_expires=True)
    assert name_of(str(folder), everything, STREAM) != run
    counts = replay(session, ask(folder, valkey, everything))
    assert (counts.replayable, counts.expired) == (6, 0)
    assert entries(valkey) == [
        *delayed,
        {"ticket_id": "A", **rules, "payload": "4"},
        {"ticket_id": "A", "payload": "5"},
        last,
    ]
