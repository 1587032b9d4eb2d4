"""``bridge audit``: its output and its exit codes."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from bridge.audit.audit import Check
from bridge.audit.auditor import Auditor
from bridge.audit.verdict import AuditVerdict, Coverage
from bridge.cli.audit_view import AuditView
from bridge.cli.main import cli
from bridge.routing.history import Delivery, What
from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import wait_until
from tests.commands import CommandLine, command_line, runner
from tests.unit.audit.test_audit import EVENTFUL
from tests.unit.audit.true_history import Event, TrueLane
from tests.unit.audit.written_history import WrittenLane

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def shell(valkey: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with command_line(tmp_path, monkeypatch, valkey.url) as made:
        yield made


@pytest.fixture
def redis(valkey: EmbeddedServer) -> Iterator[Redis]:
    with valkey.client(protocol=2) as client:
        yield client


def written(redis: Redis, *, cap: int | None = None) -> tuple[TrueLane, WrittenLane]:
    lane = TrueLane().play(EVENTFUL).finish()
    made = WrittenLane(redis, lane, cap=cap)
    made.finish()
    return lane, made


def lie(redis: Redis, lane: TrueLane, made: WrittenLane) -> str:
    """Writes a second success of a done message. Returns its id."""
    row = next(row for step in lane.steps for row in step if row.ticket == "T0")
    made.write([replace(row, written_ms=lane.now_us // 1000 + 1)])
    return row.message_id


def test_a_clean_history_exits_0_and_says_how_far_it_reaches(shell: CommandLine, redis: Redis) -> None:
    lane, _ = written(redis)
    result = shell("audit")
    assert result.exit_code == 0
    assert f"the history is complete, from message {lane.entries[0][0]} on" in result.stdout
    assert "nothing was lost, reordered, overlapped, or repeated without a cause" in result.stdout
    made = [check.value for check in Check if check is not Check.WITHHELD]
    for check in made:
        assert [line.split()[1] for line in result.stdout.splitlines() if line.startswith(check)] == ["0"]
    assert "withheld" not in result.stdout, "this check was not made"
    document = shell.json("audit")
    assert document["ok"] is True
    assert document["checks"] == dict.fromkeys(made, 0)
    assert shell.json("audit", "--wanted")["checks"] == dict.fromkeys([*made, "withheld"], 0)
    assert document["deliveries"] == sum(map(len, lane.steps))
    assert document["rows"]["stale"] == 3
    # Some died and were replayed. Each ended once.
    assert document["rows"]["replayed"] == 3
    ended = len(lane.entries) - document["undone"]
    assert f": {ended:,} messages that ended, " in result.stdout


def test_a_violation_exits_1_with_its_message(shell: CommandLine, redis: Redis) -> None:
    lane, made = written(redis)
    id_ = lie(redis, lane, made)
    result = shell("audit")
    assert result.exit_code == 1
    assert (
        f"repeated: {id_} (ticket T0): done, after its own last row, and after younger messages of its ticket"
        in result.stdout
    )
    assert "FOUND" in result.stdout
    document = json.loads(shell("audit", "--json").stdout)
    assert document["ok"] is False
    assert document["checks"]["repeated"] == 1
    assert document["examples"][0]["message_id"] == id_


def test_a_capped_history_says_from_where_it_is_complete(shell: CommandLine, redis: Redis) -> None:
    lane, _ = written(redis, cap=5)
    result = shell("audit", "--clock-skew", "0")
    assert result.exit_code == 0
    assert f"complete for messages from {lane.steps[-5][0].written_ms + 1}-0 on" in result.stdout
    assert "older entries" in result.stdout


def test_nothing_to_audit_exits_1_and_says_why(
    shell: CommandLine, redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, valkey: EmbeddedServer
) -> None:
    WrittenLane(redis, TrueLane())
    result = shell("audit")
    assert result.exit_code == 1
    assert result.stderr == "Error: nothing to audit: the history is empty\n"
    assert json.loads(shell("audit", "--json").stdout)["error"] == "nothing to audit: the history is empty"
    with command_line(tmp_path, monkeypatch, valkey.url, bridge_history=0) as off:
        result = off("audit")
    assert result.exit_code == 1
    assert result.stderr == "Error: nothing to audit: history is off (bridge_history = 0)\n"


def test_a_tickets_life_is_shown_row_by_row(shell: CommandLine, redis: Redis) -> None:
    lane, _ = written(redis)
    rows = [row for step in lane.steps for row in step if row.ticket == "T1"]
    result = shell("audit", "--ticket", "T1")
    assert result.exit_code == 0
    shown = [line.split() for line in result.stdout.splitlines() if line.startswith("1700")]
    assert [(line[0], line[1]) for line in shown if line[1] not in ("stale", "refused")] == [
        (row.message_id, row.what.value) for row in rows
    ]
    assert "nothing of ticket T1 was lost" in result.stdout
    life = shell.json("audit", "--ticket", "T1")["life"]
    known = [row for row in life if row["what"] not in ("stale", "refused")]
    assert [(row["message_id"], row["fence"], row["attempt"]) for row in known] == [
        (row.message_id, row.fence or None, row.attempt or None) for row in rows
    ]
    assert {row["what"] for row in life} >= {"done", "failed", "dead", "lost", "returned", "replayed", "stale"}
    first = next(row for row in life if row["what"] == "done")
    assert first["enqueued_ms"] <= first["dispatched_ms"] <= first["started_us"] // 1000
    assert first["started_us"] < first["finished_us"] <= first["written_ms"] * 1000


def test_messages_that_are_not_handled_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    def row(id_: str, what: What) -> Delivery:
        return Delivery(id_, "", "", "", 0, 0, 0, 0, 0.0, what, 1000)

    auditor = Auditor()
    auditor.step([row("1-0", What.SKIPPED), row("2-0", What.SKIPPED), row("3-0", What.LEFT_OUT)])
    verdict = AuditVerdict.of(auditor, Coverage(True, "0-0", False), Check)
    AuditView(ticket=None, as_json=False, follow=False).result(verdict)
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "skipped 2 not handled: the subscription was beyond bridge_max_lag" in said
    assert "left out 1 not for this subscription, by its filter and its tasks" in said
    assert not any(line.startswith("skipped 0") for line in said)


def test_an_audit_of_one_ticket_counts_only_its_violations(shell: CommandLine, redis: Redis) -> None:
    lie(redis, *written(redis))
    assert shell("audit", "--ticket", "T0").exit_code == 1
    assert shell("audit", "--ticket", "T1").exit_code == 0
    nobody = shell("audit", "--ticket", "nobody")
    assert "the history has no row of ticket nobody" in nobody.stdout


def test_a_ticket_cannot_steer_the_terminal(shell: CommandLine, redis: Redis) -> None:
    lane = TrueLane().play([(Event.PUSH, 0, 0), (Event.DISPATCH, 0, 0), (Event.DONE, 0, 0)])
    made = WrittenLane(redis, lane)
    made.finish()
    made.write([_renamed(lane)])
    result = shell("audit")
    assert result.exit_code == 1
    assert "\x1b" not in result.stdout


def _renamed(lane: TrueLane) -> Any:
    return replace(lane.steps[0][0], ticket="\x1b[2J", attempt=7)


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["--from", "yesterday"], "no message id", 2),
        (["--clock-skew", "-1"], "--clock-skew", 2),
        (["--ticket", ""], "it is empty", 2),
    ],
)
def test_impossible_options_are_refused(
    shell: CommandLine, redis: Redis, arguments: list[str], said: str, code: int
) -> None:
    WrittenLane(redis, TrueLane())
    result = shell("audit", *arguments)
    assert result.exit_code == code
    assert said in result.stderr
    assert result.stdout == ""


def test_the_command_and_the_page_say_what_each_check_proves() -> None:
    result = runner().invoke(cli, ["audit", "--explain"])
    assert result.exit_code == 0
    page = " ".join((DOCS / "reference" / "audit.md").read_text().split())
    for check in Check:
        assert check.proves in result.stdout
        assert check.cannot in result.stdout
        assert check.proves in page, f"docs/reference/audit.md does not say what {check.value!r} proves"
        assert check.cannot in page, f"docs/reference/audit.md does not say what {check.value!r} cannot prove"


def _interrupt_when(asked: Any, description: str) -> threading.Thread:
    def wait() -> None:
        try:
            wait_until(asked, description=description)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize("lies", [False, True], ids=["clean", "a lie"])
def test_following_shows_what_comes_and_ends_with_a_verdict(
    shell: CommandLine, redis: Redis, valkey: EmbeddedServer, lies: bool
) -> None:
    """Ctrl-C ends it with the verdict's exit code."""
    lane = TrueLane().play(EVENTFUL).finish()
    made = WrittenLane(redis, lane)
    made.go_on()

    def all_written() -> bool:
        with valkey.client() as client:
            follows = any(one["cmd"] == "xread" for one in client.client_list())
        if not follows or made.go_on():
            return False
        if lies:
            lie(redis, lane, made)
        return True

    thread = _interrupt_when(all_written, "the audit to wait for more, and all to be written")
    result = shell("audit", "--follow", "--json")
    thread.join()
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    verdict = lines[-1]["verdict"]
    assert result.exit_code == (1 if lies else 0)
    assert verdict["ok"] is not lies
    assert verdict["deliveries"] == sum(map(len, lane.steps)) + (1 if lies else 0)
    shown = [line["violation"]["check"] for line in lines if "violation" in line]
    assert (shown[0] == "repeated") if lies else shown == []


def test_following_waits_out_an_outage_and_begins_again(
    own_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = TrueLane().play(EVENTFUL).finish()
    with own_server.client(protocol=2) as client:
        made = WrittenLane(client, lane)
        made.go_on()

    def follows() -> bool:
        with own_server.client() as client:
            return any(one["cmd"] == "xread" for one in client.client_list())

    def come_back() -> bool:
        wait_until(follows, description="the audit to wait for more")
        own_server.kill()
        own_server.start()
        wait_until(follows, description="the audit to wait for more again")
        with own_server.client(protocol=2) as client:
            made._redis = client
            made.finish()
        return True

    thread = _interrupt_when(come_back, "the server to come back")
    with command_line(tmp_path, monkeypatch, own_server.url) as shell:
        result = shell("audit", "--follow")
    thread.join()
    assert result.exit_code == 0
    assert result.stderr.count("the audit starts again") == 1
    assert f"audited {sum(map(len, lane.steps))} rows" in result.stdout
