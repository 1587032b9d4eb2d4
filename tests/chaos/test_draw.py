"""The draw depends on the seed alone, and the conductor can do all its actions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

from tests.chaos.actions import Actions, method_of
from tests.chaos.draw import ACTIONS, HTTP_ACTIONS, Load, half_of_kinds, script


def test_one_seed_draws_one_script() -> None:
    assert script(7, 200, 1.0) == script(7, 200, 1.0)
    assert script(7, 200, 1.0) != script(8, 200, 1.0)


def test_a_longer_script_begins_like_the_shorter_one() -> None:
    assert script(7, 200, 1.0)[:50] == script(7, 50, 1.0)


def test_the_script_does_not_depend_on_the_process_that_draws_it() -> None:
    load = "Load(7, 9, violent=True).message('T', 3)"
    code = f"from tests.chaos.draw import *; print([str(step) for step in script(7, 40, 1.0)], {load})"
    answers = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1


def test_a_script_that_is_long_enough_has_every_action() -> None:
    assert {step.action for step in script(3, len(ACTIONS), 1.0)} == set(ACTIONS)


def test_two_runs_begin_with_different_kinds_and_have_all_of_them() -> None:
    for seed in range(20):
        one, other = half_of_kinds(seed, 0, http=False), half_of_kinds(seed, 1, http=True)
        assert sorted([*one, *other]) == sorted(ACTIONS)
        assert abs(len(one) - (len(other) - len(HTTP_ACTIONS))) <= 1
        steps = script(seed, len(ACTIONS), 1.0, first=other)
        assert {step.action for step in steps[: len(other)]} == set(other)
        # A longer one has the kinds of the other half, too
        assert {step.action for step in steps} == set(ACTIONS)


def test_a_script_of_some_actions_has_no_other() -> None:
    assert {step.action for step in script(3, 50, 1.0, ["kill the server"])} == {"kill the server"}


def test_the_conductor_can_do_every_action() -> None:
    missing = [name for name in ACTIONS if not hasattr(Actions, method_of(name))]
    assert missing == []


def test_a_message_depends_on_seed_ticket_and_place_alone() -> None:
    one, two = Load(5, 40, violent=True), Load(5, 40, violent=True)
    two.ticket()
    assert [one.message("T3", n) for n in range(50)] == [two.message("T3", n) for n in range(50)]


def test_messages_kill_or_hang_their_process_only_where_a_pool_has_processes_to_lose() -> None:
    def ways(*, violent: bool) -> Counter[str]:
        load = Load(5, 40, violent=violent)
        return Counter(load.message("T", n)[1].get("how", "well") for n in range(5000))

    peaceful = {"well", "raise", "effect", "nack", "dead", "drop"}
    assert set(ways(violent=False)) == peaceful
    assert set(ways(violent=True)) == peaceful | {"exit", "kill", "hang"}


def test_messages_have_options_and_what_expires_can_never_succeed() -> None:
    drawn = [Load(5, 40, violent=True).message("T", n) for n in range(5000)]
    assert {payload["priority"] for _, payload, _ in drawn if "priority" in payload} == set(range(1, 10))
    assert any(payload.get("nacks") for _, payload, _ in drawn)
    expired = [dies for _, payload, dies in drawn if "expires" in payload]
    assert expired
    assert all(expired)


def test_payloads_are_json() -> None:
    load = Load(5, 40, violent=True)
    assert all(json.loads(json.dumps(payload)) == payload for _, payload, _ in [load.message("T", n) for n in range(9)])


def test_payloads_are_of_any_size_that_is_allowed() -> None:
    load = Load(1, 10, violent=True)
    sizes = [len(json.dumps(load.message("T", n)[1])) for n in range(20_000)]
    assert min(sizes) < 30
    assert 500_000 < max(sizes) <= 1024 * 1024
    assert sum(sizes) / len(sizes) < 4_000


def test_messages_are_delayed_and_have_time_limits_and_none_would_expire_before_it_is_due() -> None:
    drawn = [Load(5, 40, violent=True).message("T", n) for n in range(5000)]
    delayed = [payload for _, payload, _ in drawn if "delay" in payload]
    assert {payload.get("hold", False) for payload in delayed} == {False, True}
    assert min(payload["delay"] for payload in delayed) < 0.1
    assert 1.5 < max(payload["delay"] for payload in delayed) <= 2
    assert not any("expires" in payload for payload in delayed)
    assert all("delay" in payload for _, payload, _ in drawn if "hold" in payload)
    # What hangs has a limit: that of its task, or its own.
    hanging = [(task, payload.get("timeout")) for task, payload, _ in drawn if payload.get("how") == "hang"]
    assert {("chaos.limited", None), ("chaos.work", 2.0)} == set(hanging)
    assert any(payload.get("timeout") == 300 for _, payload, _ in drawn)
