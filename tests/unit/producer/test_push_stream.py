"""Pushing rows into a real stream."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

import bridge.app.finding
import bridge.cli.commands.push
import bridge.link.connections
import bridge.producer.pusher
from bridge.producer.rows import Row
from bridge.routing.return_codes import text_of
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, command_line


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, valkey.url) as made:
        yield made


@pytest.fixture
def redis(valkey: EmbeddedServer) -> Iterator[Redis]:
    with valkey.client(protocol=2) as client:
        yield client


def stream(redis: Redis) -> list[dict[bytes, bytes]]:
    entries: Any = redis.xrange("ticket_stream")
    return [fields for _, fields in entries]


def tickets(redis: Redis) -> list[str]:
    return [fields[b"ticket_id"].decode() for fields in stream(redis)]


def write(name: str, data: str | bytes) -> str:
    Path(name).write_bytes(data.encode() if isinstance(data, str) else data)
    return name


def lines(count: int, first: int = 0) -> str:
    return "".join(f'{{"ticket_id":"T{n}","n":{n}}}\n' for n in range(first, first + count))


def test_only_rows_that_are_not_due_at_once_are_counted_as_delayed(shell: CommandLine) -> None:
    rows = "ticket_id,due,delay\nA,1000000000000,\nB,4000000000000,\nC,,3600\nD,,\nE,,0\n"
    assert shell("push", write("rows.csv", rows)).stdout.rstrip().endswith(", 2 of them delayed")
    assert "delayed" not in shell("push", write("past.csv", "ticket_id,due\nA,1000000000000\n")).stdout


def test_rows_arrive_in_the_files_order_over_many_batches(shell: CommandLine, redis: Redis) -> None:
    result = shell("push", write("log.jsonl", lines(2500)), "--batch", "100")
    assert result.exit_code == 0
    assert result.stdout.startswith("pushed 2,500 messages to ticket_stream in ")
    assert tickets(redis) == [f"T{n}" for n in range(2500)]
    assert stream(redis)[7] == {b"ticket_id": b"T7", b"payload": b'{"n":7}'}


def test_a_gzipped_csv_arrives_as_a_plain_one(shell: CommandLine, redis: Redis) -> None:
    data = b"number,state,task\nINC1,New,\nINC2,Closed,shop.once\n"
    assert shell("push", write("a.csv", data), "--key", "number").exit_code == 0
    assert shell("push", write("a.csv.gz", gzip.compress(data)), "--key", "number", "--json").exit_code == 0
    entries = stream(redis)
    assert entries[:2] == entries[2:]
    assert entries[1] == {b"ticket_id": b"INC2", b"task": b"shop.once", b"payload": b'{"state":"Closed"}'}


def test_the_task_of_all_rows_may_be_given(shell: CommandLine, redis: Redis) -> None:
    assert shell("push", write("a.jsonl", lines(1)), "--task", "shop.once").exit_code == 0
    assert stream(redis)[0][b"task"] == b"shop.once"


def test_an_unknown_task_is_wrong_usage_and_names_those_there_are(shell: CommandLine, redis: Redis) -> None:
    result = shell("push", write("a.jsonl", lines(1)), "--task", "shop.onse")
    assert result.exit_code == 2
    assert "shop.once, shop.update" in result.stderr
    assert stream(redis) == []


def test_the_result_as_json_says_what_went_in(shell: CommandLine, redis: Redis) -> None:
    said = shell.json("push", write("a.jsonl", lines(3)))
    entries: Any = redis.xrange("ticket_stream")
    ids = [id_.decode() for id_, _ in entries]
    assert (said["pushed"], said["first_id"], said["last_id"]) == (3, ids[0], ids[-1])
    assert (said["error"], said["uncertain"], said["stream"]) == (None, 0, "ticket_stream")


def test_a_file_with_a_bad_row_at_its_end_pushes_nothing(shell: CommandLine, redis: Redis) -> None:
    result = shell("push", write("log.jsonl", lines(1500) + "oops\n"))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: log.jsonl:1501:1: not JSON")
    assert result.stderr.endswith("nothing was pushed\n")
    assert stream(redis) == []


def test_the_error_of_a_pipe_says_how_many_rows_were_pushed_before_the_bad_one(
    shell: CommandLine, redis: Redis
) -> None:
    result = shell("push", "-", "--format", "json", stdin=lines(1500) + "oops\n" + lines(5, 1500))
    assert result.exit_code == 1
    assert "standard input:1501:1: not JSON" in result.stderr
    assert "1,500 rows before it were pushed" in result.stderr
    assert tickets(redis) == [f"T{n}" for n in range(1500)], "those after it stay out"


def test_a_failed_push_says_so_in_its_json_too(shell: CommandLine) -> None:
    result = shell("push", "-", "--format", "json", "--json", stdin=lines(2) + "oops\n")
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert said["pushed"] == 2
    assert "standard input:3:1" in said["error"]


def test_gzip_from_a_pipe_is_unpacked(shell: CommandLine, redis: Redis) -> None:
    assert shell("push", "-", "--format", "json", stdin=gzip.compress(lines(3).encode())).exit_code == 0
    assert tickets(redis) == ["T0", "T1", "T2"]


def test_a_named_pipe_is_read_once(shell: CommandLine, redis: Redis) -> None:
    os.mkfifo("pipe.jsonl")
    writer = threading.Thread(target=lambda: Path("pipe.jsonl").write_text(lines(3)))
    writer.start()
    result = shell("push", "pipe.jsonl")
    writer.join()
    assert result.exit_code == 0
    assert tickets(redis) == ["T0", "T1", "T2"]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("cut.jsonl.gz", gzip.compress(lines(50_000).encode())[:-2000], "the gzip data ends too early"),
        ("cut.jsonl.gz", gzip.compress(lines(10).encode())[:-4], "the gzip data ends too early"),
        ("bad.csv.gz", b"ticket_id\nT1\n", "named .gz, but it is not gzip data"),
        ("bad.jsonl.gz", gzip.compress(lines(10).encode())[:-8] + b"\0" * 8, "the gzip data is damaged"),
    ],
    # gzip writes the time into the data, so the test's id would differ between processes.
    ids=["cut in the middle", "cut at the end", "no gzip", "wrong sum"],
)
def test_damaged_gzip_pushes_nothing(shell: CommandLine, redis: Redis, name: str, data: bytes, said: str) -> None:
    result = shell("push", write(name, data))
    assert result.exit_code == 1
    assert said in result.stderr
    assert stream(redis) == []


def test_a_missing_file_a_folder_and_a_name_without_format_are_one_line(shell: CommandLine) -> None:
    missing = shell("push", "nothing.csv")
    assert (missing.exit_code, missing.stderr) == (1, "Error: there is no file nothing.csv\n")
    Path("dir.csv").mkdir()
    assert "dir.csv is a folder" in shell("push", "dir.csv").stderr
    assert shell("push", "log.txt").exit_code == 2


def test_a_dry_run_checks_and_pushes_nothing(shell: CommandLine, redis: Redis) -> None:
    result = shell("push", write("a.jsonl", lines(3)), "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "a.jsonl is fine: 3 rows; nothing was pushed (--dry-run)\n")
    assert shell("push", write("b.jsonl", "oops"), "--dry-run").exit_code == 1
    assert shell.json("push", "-", "--format", "json", "--dry-run", stdin=lines(2))["rows"] == 2
    assert stream(redis) == []


def test_a_dry_run_needs_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with command_line(tmp_path, monkeypatch, "redis://127.0.0.1:1/0") as shell:
        assert shell("push", write("a.jsonl", lines(3)), "--dry-run").exit_code == 0
        assert shell("push", "a.jsonl").exit_code == 1


def test_a_file_that_changes_while_it_is_checked_is_refused(
    shell: CommandLine, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = bridge.cli.commands.push._check

    def check_and_write(*arguments: Any, **options: Any) -> int:
        number = check(*arguments, **options)
        with Path("a.jsonl").open("a") as file:
            file.write("oops")
        return number

    monkeypatch.setattr(bridge.cli.commands.push, "_check", check_and_write)
    result = shell("push", write("a.jsonl", lines(3)))
    assert result.exit_code == 1
    assert "changed while it was checked" in result.stderr
    assert stream(redis) == []


def test_the_error_of_a_refused_row_names_the_row(shell: CommandLine, redis: Redis) -> None:
    redis.set("ticket_stream", "not a stream")
    result = shell("push", write("a.jsonl", lines(3)))
    assert result.exit_code == 1
    assert "the row of line 1 was refused" in result.stderr
    assert "0 rows before it were pushed" in result.stderr


def test_a_full_server_is_named_in_the_error(shell: CommandLine, redis: Redis) -> None:
    redis.config_set("maxmemory", "1mb")
    try:
        result = shell("push", write("a.jsonl", lines(3)))
    finally:
        redis.config_set("maxmemory", "0")
    assert result.exit_code == 1
    assert "Redis is full" in result.stderr


def test_a_connection_lost_on_the_way_says_which_rows_are_uncertain(
    shell: CommandLine, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = bridge.producer.pusher._add
    batches = 0

    def add_and_cut(*arguments: Any) -> None:
        nonlocal batches
        batches += 1
        if batches == 2:
            redis.execute_command("CLIENT", "PAUSE", 3_000, "ALL")
        add(*arguments)

    monkeypatch.setattr(bridge.producer.pusher, "_add", add_and_cut)
    monkeypatch.setattr(bridge.app.finding, "client", lambda url: bridge.link.connections.client(url, timeout_s=1))
    result = shell("push", write("a.jsonl", lines(25)), "--batch", "10", "--json")
    redis.execute_command("CLIENT", "UNPAUSE")
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert (said["pushed"], said["uncertain"]) == (10, 10)
    assert "lines 11 to 20" in said["error"]
    assert "10 rows pushed for certain, 10 more may be in" in result.stderr


@pytest.mark.parametrize("interrupted", ["before the reply", "while the reply is counted"])
def test_ctrl_c_in_a_batch_says_that_it_may_be_in_and_counts_no_part_of_it(
    shell: CommandLine, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    counted = 0

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    def read_and_interrupt(raw: bytes) -> str:
        nonlocal counted
        counted += 1
        return interrupt() if counted == 11 + 4 else text_of(raw)

    call, calls = bridge.producer.pusher._call, 0

    def call_and_interrupt(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        replies = call(*arguments)
        return interrupt() if calls == 2 else replies

    if interrupted == "before the reply":
        monkeypatch.setattr(bridge.producer.pusher, "_call", call_and_interrupt)
    else:
        monkeypatch.setattr(bridge.producer.pusher, "text_of", read_and_interrupt)
    result = shell("push", write("a.jsonl", lines(25)), "--batch", "10", "--json")
    said = json.loads(result.stdout)
    assert (result.exit_code, said["error"]) == (1, "interrupted")
    assert (said["pushed"], said["uncertain"]) == (10, 10)


def test_a_batch_is_bounded_by_its_bytes(shell: CommandLine, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge.producer.pusher, "BATCH_BYTES", 100)
    sizes: list[int] = []
    add = bridge.producer.pusher._add

    def add_and_weigh(
        client: Redis, stream: bridge.producer.pusher.Destination, batch: list[Row], *arguments: Any
    ) -> None:
        sizes.append(sum(len(row.payload) for row in batch))
        add(client, stream, batch, *arguments)

    monkeypatch.setattr(bridge.producer.pusher, "_add", add_and_weigh)
    assert shell("push", write("a.jsonl", lines(100))).exit_code == 0
    assert len(tickets(redis)) == 100
    assert max(sizes) < 120


def test_a_payload_beyond_the_lanes_limit_is_refused(
    valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with command_line(tmp_path, monkeypatch, valkey.url, bridge_max_payload=10) as shell:
        result = shell("push", write("a.csv", "ticket_id,a\nT1,1\nT2,12345\n"))
    assert result.exit_code == 1
    assert "a.csv:3: the payload has 13 bytes of JSON, bridge_max_payload allows 10" in result.stderr
