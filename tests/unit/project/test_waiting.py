"""The helpers of other tests: waiting that says what it waited for, and empty servers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bridge.stack.embedded import EmbeddedServer
from bridge.testing.waiting import WaitTimeout, holds_for, wait_until
from tests.conftest import missing


def test_returns_the_first_truthy_value() -> None:
    values = iter([0, "", None, "here"])
    assert wait_until(lambda: next(values), description="a value", interval_s=0) == "here"


def test_says_what_did_not_come_and_what_was_there_instead() -> None:
    with pytest.raises(WaitTimeout, match=r"waited 0\.05 s without success for: the moon \(last value: \[\]\)"):
        wait_until(list, description="the moon", timeout_s=0.05, interval_s=0.01)


def test_looks_once_more_after_the_deadline() -> None:
    # The machine paused past the deadline: the first check is late, and its result counts.
    asked = []

    def slow() -> bool:
        asked.append(time.monotonic())
        if len(asked) == 1:
            wait_until(lambda: time.monotonic() - asked[0] > 0.05, description="the deadline to pass")
            return False
        return True

    assert wait_until(slow, description="the second look", timeout_s=0.02, interval_s=0)


def test_looks_become_rarer_the_longer_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("bridge.testing.waiting.time.sleep", slept.append)
    monkeypatch.setattr("bridge.testing.waiting.time.monotonic", lambda: sum(slept))
    with pytest.raises(WaitTimeout):
        wait_until(list, description="the moon", timeout_s=10)
    assert slept == sorted(slept)
    assert (slept[0], slept[-1]) == (0.02, 0.08)
    assert len(slept) < 200


def test_an_error_of_the_predicate_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 // 0, description="nothing")


def test_holds_for_fails_when_it_ceases_to_hold() -> None:
    values = iter([True, True, False])
    with pytest.raises(AssertionError, match=r"s only: peace \(last value: False\)"):
        holds_for(lambda: next(values), description="peace", duration_s=5)


def test_holds_for_watches_for_the_whole_time() -> None:
    started = time.monotonic()
    holds_for(lambda: True, description="peace", duration_s=0.1)
    assert time.monotonic() - started >= 0.1


@pytest.mark.parametrize("turn", [1, 2])
def test_a_server_comes_without_keys_and_scripts_of_the_test_before(server: EmbeddedServer, turn: int) -> None:
    with server.client() as client:
        assert client.dbsize() == 0
        client.set("left over", turn)
        sha = client.script_load("return 1")
        assert client.script_exists(sha) == [True]


@pytest.mark.parametrize("turn", [1, 2])
def test_a_script_of_the_test_before_is_forgotten(server: EmbeddedServer, turn: int) -> None:
    with server.client() as client:
        # The digest of "return 1", which the test above loaded.
        assert client.script_exists("e0e1f9fabfc9d4800c877a703b823ac0578ff8db") == [False]


def test_a_missing_server_fails_in_ci_and_skips_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="in CI this is a failure"):
        missing("no server")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="no server"):
        missing("no server")


def test_a_unit_that_is_not_marked_starts_no_server(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="not marked `server`"):
        EmbeddedServer(data_dir=tmp_path).start()
