"""`bridge audit` of a stream that follows an older version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis

from bridge.audit.audit import audit
from bridge.audit.partitions import added_up
from bridge.audit.verdict import Coverage
from bridge.stack.embedded import EmbeddedServer
from tests.commands import CommandLine, command_line
from tests.unit.audit.true_history import Event, TrueLane
from tests.unit.audit.written_history import WrittenLane

ONE_DONE = [(Event.PUSH, 0, 0), (Event.DISPATCH, 0, 0), (Event.DONE, 0, 0)]


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, valkey.url, bridge_follows=["old"]) as made:
        yield made


@pytest.fixture
def redis(valkey: EmbeddedServer) -> Iterator[Redis]:
    with valkey.client(protocol=2) as client:
        yield client


def write(redis: Redis, stream: str) -> WrittenLane:
    made = WrittenLane(redis, TrueLane().play(ONE_DONE), stream=stream)
    made.finish()
    return made


def test_a_ticket_of_two_versions_is_one_ticket(shell: CommandLine, redis: Redis) -> None:
    write(redis, "old")
    write(redis, "ticket_stream")
    said = shell("audit").stdout
    assert "2 messages that ended, 1 ticket," in said
    assert "empty" not in said


def test_a_version_without_a_history_does_not_make_the_other_one_capped(shell: CommandLine, redis: Redis) -> None:
    write(redis, "old")
    WrittenLane(redis, TrueLane())
    result = shell("audit")
    assert result.exit_code == 0
    assert "the history is complete, from message" in result.stdout
    assert "the history of 1 of 2 streams is empty: nothing of that was audited" in result.stdout


def test_complete_histories_are_covered_from_the_first_message_and_capped_ones_from_the_latest(redis: Redis) -> None:
    verdict = audit(redis, write(redis, "ticket_stream").keys)

    def covered(*each: tuple[bool, str]) -> tuple[bool, str]:
        verdicts = [replace(verdict, coverage=Coverage(complete, id_, older=False)) for complete, id_ in each]
        found = added_up(verdicts, [""] * len(each), tickets=1).coverage
        return found.complete, found.from_id

    assert covered((True, "9-0"), (True, "30-0")) == (True, "9-0")
    assert covered((False, "9-0"), (True, "30-0")) == (False, "9-0")
    assert covered((False, "9-0"), (False, "30-0"), (True, "40-0")) == (False, "30-0")
