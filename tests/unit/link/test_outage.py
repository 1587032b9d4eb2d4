"""Which errors are outages, and how often an outage is logged."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import suppress

import pytest
import redis
from redis._parsers.base import BaseParser
from redis.exceptions import ResponseError

import bridge.link.outage
from bridge.link.connections import Wire, client, error_code, is_full, is_outage
from bridge.link.outage import CALM_S, Outage, OutageLog
from bridge.routing.server_errors import PASSING, was_not_sent
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until


def reply_of(url: str, *arguments: object) -> BaseException:
    """The server's error for a command. A client and a raw connection must raise the same."""
    with client(url) as one, pytest.raises(redis.RedisError) as by_client:
        one.execute_command(*arguments)
    with pytest.raises(redis.RedisError) as by_wire:
        Wire(url).call(*arguments)
    assert error_code(by_client.value) == error_code(by_wire.value)
    return by_client.value


XADD = ("XADD", "s", "*", "a", "b")
SCRIPT = ("EVAL", "redis.call('GET', 'x') return redis.call('XADD', 's', '*', 'a', 'b')", 0)


@pytest.fixture
def troubled(server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    yield server
    with server.client() as one:
        one.execute_command("REPLICAOF", "NO", "ONE")
        one.config_set("maxmemory", "0")
        one.config_set("min-replicas-to-write", "0")
        one.config_set("replica-serve-stale-data", "yes")


@pytest.mark.parametrize("arguments", [XADD, SCRIPT], ids=["command", "script"])
class TestRepliesThatPass:
    def test_full(self, troubled: EmbeddedServer, arguments: tuple[object, ...]) -> None:
        with troubled.client() as one:
            one.config_set("maxmemory", "1")
        found = reply_of(troubled.url, *arguments)
        assert is_full(found)
        assert is_outage(found)

    def test_too_few_replicas(self, troubled: EmbeddedServer, arguments: tuple[object, ...]) -> None:
        with troubled.client() as one:
            one.config_set("min-replicas-to-write", "1")
        found = reply_of(troubled.url, *arguments)
        assert error_code(found) == "NOREPLICAS"
        assert is_outage(found)
        assert not is_full(found)

    def test_a_replica(self, troubled: EmbeddedServer, arguments: tuple[object, ...]) -> None:
        with troubled.client() as one:
            one.execute_command("REPLICAOF", "127.0.0.1", "1")
        found = reply_of(troubled.url, *arguments)
        assert error_code(found) == "READONLY"
        assert is_outage(found)

    def test_a_replica_that_lost_its_primary(self, troubled: EmbeddedServer, arguments: tuple[object, ...]) -> None:
        with troubled.client() as one:
            one.config_set("replica-serve-stale-data", "no")
            one.execute_command("REPLICAOF", "127.0.0.1", "1")
        assert is_outage(reply_of(troubled.url, *arguments))


def test_a_disk_that_refuses_snapshots(server: EmbeddedServer) -> None:
    # A folder has the name of the snapshot's file
    in_the_way = server.data_dir / "dump.rdb"
    in_the_way.mkdir()
    with server.client(decode_responses=True) as one:
        try:
            one.config_set("save", "3600 1")
            save(one, "err")
            for arguments in (XADD, SCRIPT):
                found = reply_of(server.url, *arguments)
                assert error_code(found) == "MISCONF"
                assert is_outage(found)
        finally:
            in_the_way.rmdir()
            save(one, "ok")
            one.config_set("save", "")
            (server.data_dir / "dump.rdb").unlink()


def save(one: redis.Redis, status: str) -> None:
    """Lets the server write a snapshot, which must end with this status. The server may start one by itself."""

    def ended() -> bool:
        persistence = one.info("persistence")
        if not persistence["rdb_bgsave_in_progress"] and persistence["rdb_last_bgsave_status"] != status:
            with suppress(ResponseError):
                one.bgsave()
            return False
        return bool(persistence["rdb_last_bgsave_status"] == status)

    wait_until(ended, description=f"a snapshot that ends with {status}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("NOSUCH",),
        ("EVAL", "return redis.call('NOSUCH')", 0),
        ("EVAL", "return redis.call('INCR')", 0),
        ("EVAL", "redis.call('SET', 'x', 'a') return redis.call('INCR', 'x')", 0),
        ("EVAL", "return redis.error_reply('ERR the word: -OOM is no code')", 0),
        ("XREADGROUP", "GROUP", "g", "m", "STREAMS", "nowhere", ">"),
    ],
)
def test_other_errors_are_no_outages(server: EmbeddedServer, arguments: tuple[object, ...]) -> None:
    assert not is_outage(reply_of(server.url, *arguments))


#: The text of the server's reply, by its code.
TEXTS = {
    code: f"{code} the server does not serve"
    for code in PASSING
    # Of another class in redis-py, which a pipeline does not word.
    if code != "LOADING"
}
#: What a user may write into an argument.
LOOKS_SO = "x) of pipeline caused error: OOM y"


def worded(command: tuple[str, ...], text: str) -> ResponseError:
    """The error that a pipeline of redis-py raises when the server replies ``text`` to ``command``."""
    exc: ResponseError = BaseParser.parse_error(text)
    redis.client.Pipeline.annotate_exception(None, exc, 1, command)  # type: ignore[arg-type]
    return exc


class TestAPipeline:
    @pytest.mark.parametrize("argument", ["x", "x" * 200, "a b " * 60, "line\nbreak", LOOKS_SO, LOOKS_SO * 5, ")", "'"])
    @pytest.mark.parametrize("code", TEXTS)
    def test_the_code_is_found_behind_the_command(self, code: str, argument: str) -> None:
        found = worded(("DEL", argument), TEXTS[code])
        assert error_code(found) == code
        assert is_outage(found)
        # Other commands of the pipeline may have had an effect
        assert not was_not_sent(found)

    @pytest.mark.parametrize("argument", [LOOKS_SO, LOOKS_SO * 5, f"{'x' * 60} {LOOKS_SO}"])
    @pytest.mark.parametrize(
        "text",
        [
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR syntax error",
            "ERR unknown command 'HGET', with args beginning with: 'some key' '{argument}' ",
        ],
    )
    def test_an_argument_that_looks_like_an_outage_is_none(self, argument: str, text: str) -> None:
        assert not is_outage(worded(("HGET", "some key", argument), text.format(argument=argument)))


@pytest.mark.parametrize("transaction", [False, True])
def test_a_pipeline_that_a_server_refuses(troubled: EmbeddedServer, transaction: bool) -> None:
    with troubled.client() as one:
        one.config_set("min-replicas-to-write", "1")
    with client(troubled.url) as one, one.pipeline(transaction=transaction) as pipe:
        pipe.get("x").delete("x" * 200)
        with pytest.raises(ResponseError) as found:
            pipe.execute()
    assert error_code(found.value) == "NOREPLICAS"
    assert is_outage(found.value)


def test_a_transaction_that_a_server_cannot_serve_any_more(troubled: EmbeddedServer) -> None:
    wire = Wire(troubled.url)
    wire.call("MULTI")
    wire.call("SET", "x", "1")
    with troubled.client() as one:
        one.config_set("min-replicas-to-write", "1")
    with pytest.raises(ResponseError) as found:
        wire.call("EXEC")
    assert error_code(found.value) == "NOREPLICAS"
    assert is_outage(found.value)


def test_an_error_of_the_program_is_no_outage() -> None:
    assert not is_outage(ValueError("OOM"))
    assert is_outage(ConnectionResetError())
    assert is_outage(redis.exceptions.AuthenticationError("invalid password"))


def test_a_connection_to_what_is_no_primary_any_more_is_given_up(troubled: EmbeddedServer) -> None:
    wire = Wire(troubled.url)
    with client(troubled.url) as one:
        name = one.client_id()
        number = wire.call("CLIENT", "ID")
        one.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(redis.ReadOnlyError):
            wire.call(*XADD)
        with pytest.raises(redis.ReadOnlyError):
            one.set("x", 1)
        assert one.client_id() != name
        assert wire.call("CLIENT", "ID") != number
        # Any other error does not change that
        number = wire.call("CLIENT", "ID")
        with pytest.raises(ResponseError):
            wire.call("NOSUCH")
        assert wire.call("CLIENT", "ID") == number


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(bridge.link.outage, "time", made)
    return made


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_an_outage_is_logged_once_and_its_end_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(logging.getLogger("x"), "waiting")
    assert not outage.over()
    for _ in range(100):
        outage.met(ConnectionError("gone\n"))
        clock.now += 0.1
    assert lines(caplog) == ["Redis is away, waiting: gone"]
    assert outage.over()
    assert not outage.over()
    assert lines(caplog) == ["Redis is back after 10.0 s"]
    assert outage.count == 1


def test_a_server_that_comes_and_goes_is_logged_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(logging.getLogger("x"), "waiting")
    for _ in range(100):
        outage.met(ConnectionError("gone"))
        clock.now += 0.2
        outage.over()
    assert len(lines(caplog)) == 2
    assert outage.count == 100
    # A lasting outage is logged, and so is its end
    outage.met(ConnectionError("gone"))
    clock.now += CALM_S
    outage.met(ConnectionError("still gone"))
    outage.met(ConnectionError("still gone"))
    assert lines(caplog) == ["Redis is away, waiting: still gone"]
    outage.over()
    assert lines(caplog) == ["Redis is back after 5.00 s"]
    # And after a calm time the next one is logged at once
    clock.now += CALM_S
    outage.met(ConnectionError("gone"))
    assert len(lines(caplog)) == 1


def test_an_outage_is_said_once_for_all_parties_of_a_process(caplog: pytest.LogCaptureFixture) -> None:
    # Given 200 parties
    log = OutageLog(logging.getLogger("x"), "waiting")
    parties = [log.party() for _ in range(200)]
    # When all of them miss the server, then it is said once
    for party in parties:
        party.met(ConnectionError("gone"))
        party.met(ConnectionError("still gone"))
    assert lines(caplog) == ["Redis is away, waiting: gone"]
    # And its end is said when the last one has it back
    for party in parties[1:]:
        assert party.over()
        assert not party.over()
    assert lines(caplog) == []
    parties[0].over()
    assert [line.partition(" after")[0] for line in lines(caplog)] == ["Redis is back"]
    assert {party.count for party in parties} == {1}


def test_a_party_that_meets_an_outage_when_it_is_over_for_others_does_not_say_it_again(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    # Given an outage that began and ended for one party, while the other one waited for something else
    log = OutageLog(logging.getLogger("x"), "waiting")
    first, late = log.party(), log.party()
    first.met(ConnectionError("gone"))
    clock.now += 2
    first.over()
    assert lines(caplog) == ["Redis is away, waiting: gone", "Redis is back after 2.00 s"]
    # When the other one finds its connection closed, then it says nothing
    clock.now += 1
    late.met(ConnectionError("gone"))
    assert late.over()
    assert lines(caplog) == []
    # But an outage that lasts is said, whichever of them meets it
    clock.now += 1
    late.met(ConnectionError("gone again"))
    clock.now += CALM_S
    late.met(ConnectionError("still gone"))
    late.over()
    assert lines(caplog) == ["Redis is away, waiting: still gone", "Redis is back after 5.00 s"]


@pytest.mark.parametrize(
    ("number", "beginning", "end"),
    [
        (errno.EMFILE, "this process may open no more", "this process may open files again after "),
        (errno.ECONNREFUSED, "Redis is away", "Redis is back after "),
    ],
)
def test_a_process_without_file_descriptors_does_not_say_that_the_server_is_away(
    number: int, beginning: str, end: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bridge.link.outage, "CALM_S", 0.0)
    outage = Outage(logging.getLogger("one"), "waiting")
    try:
        raise redis.exceptions.ConnectionError(f"Error {number} connecting") from OSError(number, "no")
    except redis.exceptions.ConnectionError as exc:
        outage.met(exc)
    outage.over()
    first, last = [record.getMessage() for record in caplog.records]
    assert first.startswith(beginning)
    assert first.endswith(f", waiting: Error {number} connecting")
    assert last.startswith(end)
