"""What a replay of dead letters says before it orders anything. The entries come from a pipeline made for the test."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

from bridge.operate.replay import check_replay
from bridge.protocol.dead_letters import NAMES_NONE, read_letter
from bridge.routing.keys import LaneKeys
from bridge.routing.message_options import HAS_EXPIRED
from bridge.routing.messages import EntryParser

KEYS = LaneKeys("s", "g")
#: The server's time, which is not that of this machine.
NOW_S = 1_500_000_000


def reasons(*entries: list[bytes]) -> list[str | None]:
    """Why the message of each entry is not replayed; None: it is."""
    redis: Any = MagicMock()
    redis.time.return_value = (NOW_S, 0)
    ids = [b"%d-0" % (number + 1) for number in range(len(entries))]
    found = [[(id_, entry)] for id_, entry in zip(ids, entries, strict=True)]
    redis.pipeline.return_value.__enter__.return_value.execute.return_value = found
    letters = [read_letter(id_, [b"message_id", id_]) for id_ in ids]
    parser = EntryParser(default_task="t", max_payload=100, known_tasks=frozenset({"t"}))
    return [result.why for result in check_replay(redis, KEYS, letters, parser)]


def test_an_expired_message_is_told_and_other_options_are_no_hindrance() -> None:
    now_ms = NOW_S * 1000
    plain = [b"ticket_id", b"T", b"payload", b"1"]
    options = [b"max_attempts", b"2", b"timeout", b"5", b"priority", b"9"]
    assert reasons(
        [*plain, b"expires", b"%d" % (now_ms - 1)],
        [*plain, b"expires", b"%d" % (now_ms + 3_600_000), *options],
        # Beside no payload it is a part of it.
        [b"ticket_id", b"T", b"expires", b"1"],
    ) == [HAS_EXPIRED, None, None]


def test_a_letter_that_names_no_id_hinders_no_other_letter() -> None:
    redis: Any = MagicMock()
    redis.time.return_value = (NOW_S, 0)
    pipe = redis.pipeline.return_value.__enter__.return_value
    pipe.execute.return_value = [[(b"1-0", [b"ticket_id", b"T", b"payload", b"1"])]]
    named = [b"", b"x", b"%d-0" % 2**64, b"1-0", b"5"]
    letters = [read_letter(b"%d-1" % (number + 1), [b"message_id", id_]) for number, id_ in enumerate(named)]
    parser = EntryParser(default_task="t", max_payload=100, known_tasks=frozenset({"t"}))
    found = [result.why for result in check_replay(redis, KEYS, letters, parser)]
    assert found == [NAMES_NONE, NAMES_NONE, NAMES_NONE, None, NAMES_NONE]
    assert [call.args[2] for call in pipe.execute_command.call_args_list] == ["1-0"]
