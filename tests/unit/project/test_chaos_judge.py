"""The judge of the chaos benchmark finds each violation in forged evidence, and none where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos import ledger as ledgers
from benchmarks.chaos.judge import Evidence, Execution, Kill, Verdict, judge, per_second
from benchmarks.chaos.report import VIOLATIONS, kept, limits, markdown, plots
from benchmarks.chaos.run import Plan
from benchmarks.plots import ticks_to

S = 1_000_000_000


def healthy() -> Evidence:
    """Two tickets with two messages each, which two processes run in order, in a second each."""
    messages = [(0, 1), (0, 2), (1, 1), (1, 2)]
    runs = [Execution(10 + t, (t, n), n * S, n * S + S // 2) for t, n in messages]
    return Evidence(dict.fromkeys(messages, S // 2), runs, {0: [1, 2], 1: [1, 2]})


def violations(evidence: Evidence) -> dict[str, int]:
    verdict = judge(evidence)
    return {name: getattr(verdict, name) for name in VIOLATIONS if getattr(verdict, name)}


def test_a_run_without_faults_has_no_violation() -> None:
    verdict = judge(healthy())
    assert verdict.violations == 0
    assert (verdict.pushed, verdict.done, verdict.repeated) == (4, 4, 0)
    assert verdict.latencies_s == [1.0, 1.0, 2.0, 2.0]
    assert verdict.rate == 2.0


def test_a_message_without_an_effect_is_lost() -> None:
    evidence = healthy()
    evidence.effects[1] = [1]
    assert violations(evidence) == {"lost": 1}


def test_an_effect_that_is_there_twice_counts_as_doubled() -> None:
    evidence = healthy()
    evidence.effects[1] = [1, 1, 2]
    assert violations(evidence) == {"doubled": 1}


def test_an_effect_after_that_of_a_later_message_is_reordered() -> None:
    evidence = healthy()
    evidence.effects[1] = [2, 1]
    assert violations(evidence) == {"reordered": 1}


def test_a_repeated_effect_of_an_older_message_is_doubled_and_not_reordered() -> None:
    evidence = healthy()
    evidence.effects[1] = [1, 2, 1]
    assert violations(evidence) == {"doubled": 1}


def test_two_executions_of_one_ticket_at_once_overlap() -> None:
    evidence = healthy()
    evidence.executions.append(Execution(12, (1, 2), S + S // 4, 4 * S))
    # It began while the first message ran, and the second message began while it ran.
    assert violations(evidence) == {"overlapped": 2}


def test_an_execution_that_was_cut_off_goes_on_until_its_kill() -> None:
    cut = Execution(12, (1, 2), S + S // 2, None)
    for at, overlaps in ((3 * S, 1), (2 * S, 0)):
        evidence = healthy()
        evidence.executions.append(cut)
        evidence.kills.append(Kill("worker", at, frozenset({12})))
        assert judge(evidence).overlapped == overlaps


def test_an_end_that_nothing_explains_overlaps_with_nothing() -> None:
    evidence = healthy()
    evidence.executions.append(Execution(12, (1, 2), S + S // 2, None))
    assert judge(evidence).violations == 0


def test_what_only_a_restart_of_everything_brings_is_stuck() -> None:
    evidence = healthy()
    evidence.restarted = 2 * S
    verdict = judge(evidence)
    assert violations(evidence) == {"stuck": 2}
    assert verdict.latencies_s == [1.0, 1.0]


def test_the_time_to_re_route_is_from_the_kill_to_the_next_execution_of_the_ticket() -> None:
    evidence = healthy()
    evidence.executions.append(Execution(12, (1, 2), S + S // 2, None))
    evidence.kills.append(Kill("worker", S + 3 * S // 4, frozenset({12})))
    assert judge(evidence).rerouted_s == [0.25]
    evidence.kills[0] = Kill("worker", 5 * S, frozenset({12}))
    verdict = judge(evidence)
    assert (verdict.rerouted_s, verdict.stranded) == ([], 1)


def test_the_ledger_is_read_as_it_was_written(tmp_path: Path) -> None:
    ledger = ledgers.Ledger(tmp_path)
    for word in (ledger.began, ledger.ended, ledger.began):
        word(3, 4)
    first, second = ledgers.read(tmp_path)
    assert (first.message, second.message) == ((3, 4), (3, 4))
    assert first.end is not None
    assert first.start <= first.end <= second.start
    assert second.end is None


def test_a_seed_draws_the_same_kills_for_all_and_only_of_the_kinds_asked_for() -> None:
    plan = Plan(seconds=60, kills_a_minute=20, seed=7)
    assert plan.kills() == Plan(seconds=60, kills_a_minute=20, seed=7).kills()
    assert len(plan.kills()) == 20
    assert {kind for _, kind in Plan(seconds=600, kinds=("server",)).kills()} == {"server"}


def test_the_table_marks_what_broke_a_promise_and_the_plots_are_drawn() -> None:
    broken = healthy()
    broken.effects[1] = [2, 1]
    machine = dict.fromkeys(("cpu", "cores", "python", "celery", "server", "load before"), "?") | {
        "at": "2020-01-01T00:00:00"
    }
    data = {
        "machine": machine,
        "plan": {
            "rounds": 1,
            "seconds": 2,
            "rate": 2,
            "tickets": 2,
            "work_s": 0.5,
            "kills_a_minute": 0,
            "seed": 1,
            "kinds": ["worker", "server"],
        },
        "peers_versions": ["GroupMQ 1.1.0"],
        "peers": {"bridge": kept("the bridge", [healthy()]), "other": kept("other", [broken, healthy()])},
    }
    text = markdown(data)
    bridge, other = text.splitlines()[-4:-2]
    assert "**" not in bridge
    assert "| 0 | 0 | **1** | 0 | 0 | 8 |" in other
    drawn = plots(data)
    assert len(drawn) == 3
    assert all(svg.startswith("<svg") and svg.endswith("</svg>\n") for svg in drawn.values())


def test_the_page_says_what_the_run_does_not_have() -> None:
    peers = {
        "a": {"title": "slow", "rate": 50.0, "kills": [[(1.0, "worker"), (2.0, "worker")], [(1.0, "master")]]},
        "b": {"title": "fast", "rate": 74.0, "kills": [[(1.0, "worker")]]},
    }
    data = {"plan": {"kinds": ["worker", "master", "server"], "rate": 75.0}, "peers": peers}
    text = limits(data)
    assert 'the kind "server"' in text
    assert 'the kind "master"' not in text
    assert "slow (50)" in text
    assert "fast" not in text
    peers["a"]["rate"] = 75.0
    assert "pushed" not in limits(data)


def test_messages_are_counted_by_the_second_in_which_they_ended() -> None:
    assert per_second(healthy()) == [0, 2, 2]


@pytest.mark.parametrize(("highest", "ticks"), [(97, [0, 20, 40, 60, 80, 100]), (0, [0, 1]), (3, [0, 1, 2, 3])])
def test_ticks_are_round_numbers_up_to_the_highest(highest: float, ticks: list[float]) -> None:
    assert ticks_to(highest) == ticks


def test_a_verdict_without_anything_has_no_rate() -> None:
    assert Verdict().rate == 0.0
