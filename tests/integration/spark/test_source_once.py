"""Each row is written once and in order after every kind of retry: attempts called as Spark calls them, on real
servers.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from bridge.routing.errors import PayloadError, RowsMissing, RunChanged
from bridge.routing.keys import push_prefix
from bridge.routing.pushes import guard_of
from bridge.spark import RedisStreamDataSource
from bridge.spark.wire.address import connect
from bridge.spark.write.appending import Appending
from bridge.spark.write.guard import summary_of
from bridge.spark.write.layout import Layout
from bridge.spark.write.options import parse
from bridge.spark.write.partition import settle, write_partition
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until
from tests.integration.proxies import Proxy
from tests.integration.spark.spark_writes import LOG, STREAM, batch, cut, entries, log, partition, sequence, writer
from tests.keycheck import check_keys
from tests.ticket_numbers import numbers_are_older

SEED = 20261121


class Died(Exception):
    """What a task meets when its executor is killed."""


def dies_after(batches: Iterator[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    for index, one in enumerate(batches):
        if index == count:
            raise Died
        yield one


@pytest.fixture(autouse=True)
def every_key_ends(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test all that a write leaves beside the stream has a time to live."""
    name = next(name for name in ("server", "valkey", "own_server") if name in request.fixturenames)
    used: EmbeddedServer = request.getfixturevalue(name)
    yield
    with used.client() as client:
        check_keys(client, allowed=[STREAM])


def test_a_run_that_is_written_again_adds_nothing(server: EmbeddedServer) -> None:
    rows = log(1000)
    # Given a run that is complete
    one = writer(server.url, runId="nightly", seqColumn="seq", fields="seq,payload")
    one.commit([one.write(cut(rows, 300))])
    # When it is written again, by another job, in other batches and chunks
    again = writer(server.url, runId="nightly", seqColumn="seq", fields="seq,payload", chunkSize="7", window="2")
    written = again.write(cut(rows, 77))
    again.commit([written])
    # Then nothing was added, and both the task and the driver's note say so
    assert sequence(server) == list(range(1000))
    assert (written.rows, written.found) == (1000, 1000)
    noted = summary_of(connect(server.url), parse({"url": server.url, "stream": STREAM}), "nightly")
    assert noted is not None
    assert (noted.rows, noted.there_already, noted.partitions) == (1000, 1000, 1)


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_run_is_recognised_though_its_tasks_are_not_its_partitions(
    valkey: EmbeddedServer, caplog: pytest.LogCaptureFixture, tasks: int
) -> None:
    """As after a coalesce, or where Spark reads nothing at all: the note of the partitions is still on the column."""
    options = parse({"url": valkey.url, "stream": STREAM, "runId": "r"})
    layout = replace(Layout.of(LOG, options), partitions=2)
    for _ in range(2):
        done = [
            write_partition(options, layout, "r", 0, number, iter([log(10, 10 * number)])) for number in range(tasks)
        ]
        settle(options, layout, "r", 0, done, 3600)
    assert len(entries(valkey)) == 10 * tasks
    assert f"the rows were put into 2 partitions by ticket, and written in {tasks}" in caplog.text


def test_the_same_values_under_other_names_are_another_run(valkey: EmbeddedServer) -> None:
    rows = batch(("A", 1, "x"), ("A", 2, "y"))
    writer(valkey.url, runId="r", fields="payload").write(iter([rows.slice(0, 1)]))
    renamed = RedisStreamDataSource({"url": valkey.url, "stream": STREAM, "runId": "r", "fields": "note"})
    schema = StructType([LOG.fields[0], LOG.fields[1], StructField("note", StringType())])
    with pytest.raises(RunChanged, match="or have other fields"):
        renamed.writer(schema, overwrite=False).write(iter([rows.rename_columns(["ticket_id", "seq", "note"])]))
    assert len(entries(valkey)) == 1


def test_a_guard_that_something_else_wrote_is_one_clear_line(valkey: EmbeddedServer) -> None:
    with valkey.client() as client:
        guard = guard_of(STREAM, "run")
        client.hset(guard, "0/0", "what is this")
        client.expire(guard, 60)
    with pytest.raises(RunChanged, match="'what is this', which is not a mark"):
        partition(valkey.url, iter([log(1)]))


def test_the_numbers_of_tickets_are_kept_for_as_long_as_they_are_written(valkey: EmbeddedServer) -> None:
    # Given a task that takes many times as long as numbers are kept for
    options = {"idempotence": "ticket", "seqColumn": "seq", "guardTtl": "300", "maxWait": "100"}

    def slowly() -> Iterator[pa.RecordBatch]:
        with valkey.client() as client:
            for row in range(8):
                numbers_are_older(client, push_prefix(STREAM), 299)
                yield batch(("A", row, "{}"))

    assert partition(valkey.url, slowly(), **options).found == 0
    # When another attempt follows at once: then it finds all that is recent enough to be tried again
    again = partition(valkey.url, iter([batch(*(("A", row, "{}") for row in range(8)))]), **options)
    assert again.found == 8
    assert len(entries(valkey)) == 8


def test_runs_of_different_names_and_of_none_are_different_writes(valkey: EmbeddedServer) -> None:
    for run in ("a", "b"):
        writer(valkey.url, runId=run).write(iter([log(3)]))
    writer(valkey.url).write(iter([log(3)]))
    writer(valkey.url).write(iter([log(3)]))
    assert len(entries(valkey)) == 12


def test_attempts_that_die_anywhere_leave_each_row_once_in_order(server: EmbeddedServer) -> None:
    # Given attempts that die at drawn places, each with batches and chunks of other sizes
    draw = random.Random(SEED)
    print(f"seed {SEED}")
    rows = log(2000)
    one = writer(server.url, runId="r", seqColumn="seq", fields="seq,payload")
    for _ in range(8):
        size = draw.randint(20, 400)
        one = writer(server.url, runId="r", fields="seq,payload", chunkSize=str(draw.randint(5, 200)), window="3")
        with pytest.raises(Died):
            one.write(dies_after(cut(rows, size), draw.randint(0, 2000 // size)))
    # When one gets through
    one.write(cut(rows, 250))
    # Then each row is there once, in its place
    assert sequence(server) == list(range(2000))


def test_two_attempts_at_once_write_each_row_once_in_order(server: EmbeddedServer) -> None:
    # Given a task that was started a second time while the first one still runs, both in step, row by row
    rows = log(600)
    step = threading.Barrier(2, timeout=30)

    def in_step(size: int) -> Iterator[pa.RecordBatch]:
        for one in cut(rows, size):
            step.wait()
            yield one

    # When both write to their ends, with chunks that do not match
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(partition, server.url, in_step(20), chunkSize="3", window="2")
        second = pool.submit(partition, server.url, in_step(20), chunkSize="5", window="4")
        assert first.result(60).rows == second.result(60).rows == 600
    # Then each row is there once, in its place, from either attempt
    assert sequence(server) == list(range(600))


def died_behind(server: EmbeddedServer, rows: int) -> None:
    """An attempt that died when exactly so many of 100 rows were in the stream."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield log(rows)
        wait_until(lambda: len(sequence(server)) == rows, description="the rows of the first attempt")
        raise Died

    with pytest.raises(Died):
        partition(server.url, batches(), chunkSize="20")


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ([*range(49), 50, 49, *range(51, 100)], "its first 60 rows are other ones, or in another order"),
        ([*range(59), 999, *range(60, 100)], "its first 60 rows are other ones"),
        (list(range(40)), "this attempt has 40 rows, but 60 were written"),
        ([], "this attempt has 0 rows, but 60 were written"),
    ],
    ids=["swapped", "other", "fewer", "none"],
)
def test_an_attempt_with_other_rows_is_refused_and_adds_nothing(
    order: list[int], said: str, valkey: EmbeddedServer
) -> None:
    # Given an attempt that died behind 60 of 100 rows
    died_behind(valkey, 60)
    # When the next one has other rows among those
    rows = batch(*((f"T{row % 7}", row, f'{{"row": {row}}}') for row in order))
    with pytest.raises(RunChanged, match=said) as refused:
        partition(valkey.url, cut(rows, 7), chunkSize="20")
    # Then it is told in one line, and nothing was added
    assert "\n" not in str(refused.value)
    assert sequence(valkey) == list(range(60))
    # And the right rows go on where the first attempt ended
    partition(valkey.url, iter([log(100)]))
    assert sequence(valkey) == list(range(100))


def test_a_null_and_an_empty_text_are_other_rows(valkey: EmbeddedServer) -> None:
    partition(valkey.url, iter([batch(("T", 1, None))]))
    with pytest.raises(RunChanged):
        partition(valkey.url, iter([batch(("T", 1, ""))]))


def test_more_rows_than_a_complete_partition_had_are_refused(server: EmbeddedServer) -> None:
    partition(server.url, iter([log(10)]))
    for size in (20, 4):
        with pytest.raises(RunChanged, match="it was complete with 10 rows, and this attempt has more"):
            partition(server.url, cut(log(20), size))
    assert sequence(server) == list(range(10))


def test_an_attempt_with_another_number_of_partitions_is_refused(server: EmbeddedServer) -> None:
    # Given a run of which one of three partitions was begun
    layout = Layout("ticket_id", ("seq", "payload"), None, partitions=3)
    options = parse({"url": server.url, "stream": STREAM})
    write_partition(options, layout, "run", 0, 0, iter([log(5)]))
    # When another partition of it comes, of four: it may hold rows that the first one has written
    with pytest.raises(RunChanged, match="the first attempt had 3 partitions, this one has 4"):
        write_partition(options, replace(layout, partitions=4), "run", 0, 3, iter([log(5, 5)]))
    # Then none of its rows is written
    assert sequence(server) == list(range(5))


def test_a_straggler_of_an_older_epoch_writes_nothing(server: EmbeddedServer) -> None:
    options = parse({"url": server.url, "stream": STREAM})
    for epoch in (0, 1, 2):
        done = partition(server.url, iter([log(5, 5 * epoch)]), (epoch, 0))
        settle(options, Layout.of(LOG, options), "run", epoch, [done], 1000)
    # The last epoch can be asked again, and adds nothing; the ones before are forgotten, and refused
    assert partition(server.url, iter([log(5, 10)]), (2, 0)).found == 5
    with pytest.raises(RunChanged, match="a later epoch is committed already"):
        partition(server.url, iter([log(5)]), (0, 0))
    assert sequence(server) == list(range(15))
    with server.client() as client:
        fields = client.hkeys(guard_of(STREAM, "run"))
    assert sorted(fields) == [b"2/0", b"2/of", b"floor", b"told"]


def test_a_connection_that_breaks_anywhere_costs_and_doubles_nothing(server: EmbeddedServer) -> None:
    # Given connections that are reset again and again while chunks and answers are on their way
    with Proxy(server.port, delay_s=0.002) as proxy:

        def batches() -> Iterator[pa.RecordBatch]:
            for index, one in enumerate(cut(log(3000), 100)):
                if index % 7 == 3:
                    proxy.cut()
                yield one

        written = partition(proxy.url, batches(), chunkSize="20")
        assert proxy.accepted > 3
    # Then each row is there once, in its place
    assert (written.rows, sequence(server)) == (3000, list(range(3000)))


@pytest.mark.parametrize("idempotence", ["watermark", "none", "ticket"])
def test_a_server_that_is_killed_and_comes_back_has_each_row_once(own_server: EmbeddedServer, idempotence: str) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for index, one in enumerate(cut(log(2000), 100)):
            if index == 10:
                own_server.kill()
                own_server.start()
            yield one

    partition(own_server.url, batches(), chunkSize="50", idempotence=idempotence, seqColumn="seq", fields="seq,payload")
    assert sequence(own_server) == list(range(2000))


def test_the_scripts_are_loaded_again_after_a_server_forgot_them(server: EmbeddedServer) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for one in cut(log(500), 100):
            with server.client() as client:
                client.script_flush()
            yield one

    partition(server.url, batches(), chunkSize="30")
    assert sequence(server) == list(range(500))


def test_rows_that_the_server_lost_are_an_error_and_the_next_attempt_writes_them(server: EmbeddedServer) -> None:
    # Given a server that lost all it had acknowledged, as in a failover
    def batches() -> Iterator[pa.RecordBatch]:
        for index, one in enumerate(cut(log(500), 100)):
            if index == 3:
                wait_until(lambda: len(sequence(server)) == 300, description="the first rows")
                with server.client() as client:
                    client.flushall()
            yield one

    # When the attempt goes on, it cannot: it does not have those rows any more
    with pytest.raises(RowsMissing, match="rows were acknowledged, and the guard knows of 0") as told_:
        partition(server.url, batches(), chunkSize="20", window="2")
    assert "\n" not in str(told_.value)
    # Then the next one, which has them, writes all of them
    partition(server.url, cut(log(500), 100))
    assert sequence(server) == list(range(500))


def test_by_ticket_rows_may_come_from_any_partition(server: EmbeddedServer) -> None:
    # Given an upstream that divides its rows differently in each attempt, each ticket's in order
    draw = random.Random(SEED)
    print(f"seed {SEED}")
    rows = log(700).to_pylist()
    options = {"idempotence": "ticket", "seqColumn": "seq", "fields": "seq,payload"}
    for attempt in range(6):
        count = draw.randint(1, 4)
        place = {f"T{ticket}": draw.randrange(count) for ticket in range(7)}
        for number in range(count):
            mine = [row for row in rows if place[row["ticket_id"]] == number]
            made = pa.RecordBatch.from_pylist(mine, schema=log(0).schema)
            batches = cut(made, 50)
            if attempt < 5:
                batches = dies_after(batches, draw.randint(0, 12))
            with suppress(Died):
                partition(server.url, batches, (0, number), chunkSize=str(draw.randint(3, 60)), **options)
    # Then each row is there once, and each ticket's rows are in order
    found = sequence(server)
    assert sorted(found) == list(range(700))
    for ticket in range(7):
        mine_ = [row for row in found if row % 7 == ticket]
        assert mine_ == sorted(mine_)


def test_by_ticket_two_attempts_at_once_write_each_row_once(server: EmbeddedServer) -> None:
    step = threading.Barrier(2, timeout=30)

    def in_step() -> Iterator[pa.RecordBatch]:
        for one in cut(log(600), 20):
            step.wait()
            yield one

    options = {"idempotence": "ticket", "seqColumn": "seq", "fields": "seq,payload"}
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(partition, server.url, in_step(), chunkSize=size, **options) for size in ("3", "5")]
        assert sum(one.result(60).found for one in both) == 600
    assert sequence(server) == list(range(600))


@pytest.mark.parametrize(("first", "then"), [("604800", "2592000"), ("2592000", "604800"), ("604800", "2000")])
def test_by_ticket_another_guard_ttl_finds_what_was_written(valkey: EmbeddedServer, first: str, then: str) -> None:
    options = {"idempotence": "ticket", "seqColumn": "seq", "fields": "seq,payload"}
    for life_s, found in ((first, 0), (then, 70), (first, 70)):
        assert partition(valkey.url, iter([log(70)]), guardTtl=life_s, **options).found == found
    assert sequence(valkey) == list(range(70))


def test_a_sequence_that_the_server_cannot_compare_is_refused(valkey: EmbeddedServer) -> None:
    with pytest.raises(PayloadError, match=r"seq of ticket 'T' is 9007199254740993; idempotence=ticket allows"):
        partition(valkey.url, iter([batch(("T", 2**53 + 1, "x"))]), idempotence="ticket", seqColumn="seq")
    assert entries(valkey) == []


def test_without_idempotence_an_attempt_whose_rows_are_written_has_succeeded(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    finish = Appending.finish

    def finish_and_cut(self: Appending) -> None:
        finish(self)
        with valkey.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)

    monkeypatch.setattr(Appending, "finish", finish_and_cut)
    # When the connection breaks after the last answer, then Spark has no reason to write the rows again
    assert partition(valkey.url, iter([log(10)]), idempotence="none").rows == 10
    assert "the guard of an attempt was not settled" in caplog.text


def test_without_idempotence_each_attempt_writes_its_rows(valkey: EmbeddedServer) -> None:
    for _ in range(2):
        partition(valkey.url, iter([log(10)]), idempotence="none")
    assert sequence(valkey) == [*range(10), *range(10)]
