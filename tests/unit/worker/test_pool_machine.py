"""Any app and any messages, run in each way there is: in a bundle by the light tracer and by Celery's, alone, and
without a server. What a page promises holds in each of them, and they agree.
"""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import Any

import pytest
from celery.exceptions import Reject, Retry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.routing.text import error_text
from bridge.stack.embedded import EmbeddedServer
from tests.unit.worker.odd_ends import ERRORS, FATAL, RESULTS
from tests.unit.worker.pool_world import BASES, SEEDS, Message, PoolWorld, Report

NAMES = ("plain", "other", "third")

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([2**63, "int:1180591620717411303424", "int:-18446744073709551616", 0.5, 1e300])
    | st.sampled_from(["", "x", "é\0", "1234567890123456789012", "null"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=4,
)
STATE = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(["a", "b", "é"]), JSON),
    st.tuples(st.just("append"), JSON),
    st.tuples(st.just("del"), st.sampled_from(["a", "b", "many"])),
    st.tuples(st.just("clear")),
    st.tuples(st.just("ttl"), st.sampled_from([None, 100, 0.5, 1000, -1])),
    st.tuples(st.just("bad state")),
)
EFFECTS = st.one_of(
    st.tuples(st.just("effect"), st.integers(0, 99)),
    st.tuples(st.just("add"), st.sampled_from("ab")),
    st.tuples(st.just("wrong")),
    st.tuples(st.just("refused")),
)
OTHERS = st.one_of(
    st.tuples(st.just("ask")),
    st.tuples(st.just("attribute")),
    st.tuples(st.just("push"), st.sampled_from(NAMES)),
    st.tuples(st.just("delay"), st.sampled_from(NAMES)),
    st.tuples(st.just("tell")),
)
SIMPLE = STATE | EFFECTS | EFFECTS
ORDINARY = sorted(ERRORS.keys() - FATAL)
RETRY = st.fixed_dictionaries(
    {},
    optional={
        "countdown": st.sampled_from([0, 5]),
        "exc": st.sampled_from(["value", "unpicklable", "lookup", "memory", "dead"]),
        "max_retries": st.sampled_from([0, 1, 5]),
        "throw": st.booleans(),
        "args": st.just([1]),
        "queue": st.just("q"),
    },
)
END = st.one_of(
    st.tuples(st.just("return"), JSON),
    st.tuples(st.just("return"), JSON),
    st.tuples(st.just("return"), JSON),
    st.tuples(st.just("odd"), st.sampled_from(sorted(RESULTS))),
    st.tuples(st.just("raise"), st.sampled_from(ORDINARY)),
    st.tuples(st.just("raise"), st.sampled_from(ORDINARY)),
    st.tuples(st.just("retry"), RETRY),
    st.tuples(st.just("replace")),
)
RAISE = st.tuples(st.just("raise"), st.sampled_from(ORDINARY))
INNER = st.fixed_dictionaries({"do": st.lists(SIMPLE, max_size=2), "end": END})
CALL = st.tuples(
    st.just("call"), st.sampled_from(["function", "run", "apply", "apply throw"]), st.sampled_from(NAMES), INNER
)
STEP = st.one_of(
    SIMPLE, SIMPLE, SIMPLE, OTHERS, CALL, st.tuples(st.just("try"), st.lists(SIMPLE | CALL | RAISE, max_size=3))
)
HANDLING = st.lists(EFFECTS | STATE | RAISE, max_size=1)
SCRIPT = st.fixed_dictionaries(
    {"do": st.lists(STEP, max_size=4), "end": END},
    optional={
        "before": st.lists(SIMPLE | RAISE | OTHERS, max_size=1),
        "on_success": HANDLING,
        "on_failure": HANDLING,
        "on_retry": HANDLING,
        "after_return": HANDLING,
    },
)


OPTIONS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["none", "none", *BASES]),
        "ignore_result": st.booleans(),
        "bridge_state": st.booleans(),
        "retry_jitter": st.just(False),
    },
    optional={
        "bind": st.booleans(),
        "track_started": st.booleans(),
        "store_errors_even_if_ignored": st.booleans(),
        "throws": st.just(["lookup"]),
        "autoretry_for": st.sampled_from([["value"], ["lookup"], ["value", "lookup"]]),
        "dont_autoretry_for": st.just(["lookup"]),
        "retry_backoff": st.sampled_from([True, 3]),
        "retry_kwargs": st.fixed_dictionaries({}, optional={"max_retries": st.sampled_from([0, 1, 5, None])}),
        "max_retries": st.sampled_from([0, 1, None]),
        "bridge_max_attempts": st.sampled_from([1, 2]),
        "default_retry_delay": st.just(7),
        "typing": st.booleans(),
        "expires": st.sampled_from([10**10, "2000-01-01T00:00:00"]),
        "resultrepr_maxsize": st.sampled_from([10, 1024]),
        "trail": st.booleans(),
    },
)
CONF = st.fixed_dictionaries(
    {"backend": st.sampled_from(["redis", "redis", "none", "memory"])},
    optional={
        "bridge_state_ttl": st.just(500),
        "bridge_max_state": st.sampled_from([50, 1000]),
        "result_extended": st.booleans(),
        "result_expires": st.sampled_from([None, 60]),
        "task_track_started": st.booleans(),
        "task_store_errors_even_if_ignored": st.booleans(),
        "bridge_max_attempts": st.sampled_from([1, 2]),
        "worker_deduplicate_successful_tasks": st.booleans(),
        "bridge_stream": st.just("orders"),
    },
)
SIGNALS = ("task_prerun", "task_postrun", "task_success", "task_failure", "task_retry")
LISTENERS = st.lists(
    st.tuples(st.sampled_from(SIGNALS), st.booleans()), max_size=2, unique_by=lambda listener: listener[0]
)


def plain(value: Any) -> Any:
    """As JSON has it."""
    return json.loads(json.dumps(value))


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    tasks = {name: draw(OPTIONS) for name in NAMES}
    runs = []
    for n in range(draw(st.integers(1, 3))):
        messages = [
            Message(draw(st.sampled_from([*NAMES, *NAMES, *NAMES, "missing"])), plain(draw(SCRIPT)))
            for _ in range(draw(st.integers(1, 3)))
        ]
        runs.append((f"T{n}", draw(st.sampled_from([1, 1, 2])), messages))
    special = draw(st.sampled_from(["none", "none", "none", "none", "lease", "fatal", "stale", "revoked", "recalled"]))
    place = draw(st.sampled_from(range(len(runs))))
    one = draw(st.sampled_from(runs[place][2]))
    if special in ("lease", "recalled"):
        # In its body, or before it.
        where = one.script.setdefault(draw(st.sampled_from(["do", "do", "before"])), [])
        where.insert(draw(st.integers(0, len(where))), [special])
    elif special == "fatal":
        one.script["end"] = ["raise", draw(st.sampled_from(sorted(FATAL)))]
    return {
        "tasks": tasks,
        "conf": draw(CONF),
        "runs": runs,
        "special": special,
        "how": {
            "listeners": draw(LISTENERS),
            "in_main": draw(st.booleans()),
            "write_after_s": draw(st.sampled_from([600.0, 600.0, -1.0])),
            "split_from": draw(st.sampled_from([2, 32])),
            "faults": draw(st.just([]) | st.lists(st.sampled_from([None, None, "not sent", "reply lost"]), max_size=6)),
            "seeds": {ticket: draw(st.sampled_from(["", "", *SEEDS])) for ticket, *_ in runs},
            "revoked": [f"{place + 1}-{runs[place][2].index(one)}"] if special == "revoked" else [],
            "stale": [runs[place][0]] if special == "stale" else [],
        },
    }


def steps_of(script: Any) -> list[Any]:
    """All steps in a script."""
    found: list[Any] = []
    for name in ("before", "do", "on_success", "on_failure", "on_retry", "after_return"):
        todo = list(script.get(name, ()))
        while todo:
            step = todo.pop()
            found.append(step)
            if step[0] == "try":
                todo += step[1]
            elif step[0] == "call":
                found += steps_of(step[3])
                found.append(step[3]["end"])
    return [*found, script["end"]]


def judge(case: dict[str, Any], report: Report, world: PoolWorld) -> None:
    """What holds of each ticket, whatever its tasks did."""
    for n, (ticket, _, messages) in enumerate(case["runs"]):
        notes = report.notes.get(ticket)
        ids = [f"{n + 1}-{i}" for i in range(len(messages))]
        kinds = [report.outcomes.get(id_, ("",))[0] for id_ in ids]
        started = notes.started if notes else []
        assert started == [id_ for id_ in ids if id_ in started], "out of order, or twice"
        # Nothing starts behind one that did not succeed.
        failed = next((i for i, kind in enumerate(kinds) if kind not in ("DONE", "DROPPED")), len(kinds))
        assert not set(started) & set(ids[failed + 1 :]), f"{ticket}: started behind a failure"
        assert not any(kinds[failed + 1 :]), f"{ticket}: outcomes behind a failure"
        if not case["how"]["faults"]:
            assert all(times == 1 for times in report.times.values()), "an outcome twice"
        for id_, kind, message in zip(ids, kinds, messages, strict=True):
            if (
                kind == "DONE"
                and message.task in case["tasks"]
                and world.has_results(message.task)
                and message.script["end"][0] == "return"
            ):
                assert report.results[id_] is not None, f"{id_} has no result"
        if case["special"] == "none":
            for i, (kind, message) in enumerate(zip(kinds, messages, strict=True)):
                allowed = kinds_of(case, message, 1 if i else case["runs"][n][1], case["how"]["seeds"].get(ticket, ""))
                assert not kind or not allowed or kind in allowed, (
                    f"{ids[i]}: {kind}, not {allowed}\n{message}\n{case['tasks'].get(message.task)}"
                )
            assert all(kinds[: failed + 1]), f"{ticket}: a message has no outcome"
        if notes is None:
            continue
        expected = [
            token for id_, kind in zip(ids, kinds, strict=True) if kind == "DONE" for token in notes.tokens.get(id_, ())
        ]
        assert report.applied[ticket] == expected, f"{ticket}: effects"
        if (seed := case["how"]["seeds"].get(ticket)) in ("broken", "no hash"):
            assert report.states[ticket] == seed, f"{ticket}: a state that nobody could read was changed"
            continue
        state: Any = {name: json.loads(text) for name, text in (SEEDS[seed] if seed else {}).items()}
        for id_, kind, message in zip(ids, kinds, messages, strict=True):
            if id_ in notes.begun and not message.script.get("before"):
                assert json.loads(notes.begun[id_]) == state, f"{id_}: it began with another state"
            if kind == "DONE" and id_ in notes.states:
                state = json.loads(notes.states[id_])
        assert report.states[ticket] == state, f"{ticket}: state"


def same(one: Report, other: Report, what: str, *, but: tuple[str, ...] = ()) -> None:
    for name in vars(one):
        if name not in but:
            left, right = getattr(one, name), getattr(other, name)
            if left != right and isinstance(left, dict):
                for key in left.keys() | right.keys():
                    one_value, other_value = left.get(key), right.get(key)
                    if name == "notes" and one_value and other_value:
                        for a, b in zip_longest(one_value.seen, other_value.seen):
                            assert a == b, f"{what}: seen of {key}\n{a}\n{b}"
                    assert one_value == other_value, f"{what}: {name} of {key}\n{one_value}\n{other_value}"
            assert left == right, f"{what}: {name}"


#: What becomes of a message that ends by an exception; another one fails it.
KINDS = {"dead": "DEAD", "drop": "DROPPED", "uncharged": "NACKED", "ignore": "DONE", "reject": "DEAD"}


def kinds_of(case: dict[str, Any], message: Message, attempt: int, seed: str) -> set[str]:
    """The kinds of outcome that the pages allow a message that starts."""
    if message.task not in case["tasks"]:
        return {"DEAD"}
    options = case["tasks"][message.task]
    if options["bridge_state"] and seed in ("broken", "no hash"):
        # It fails, unless it does not look at the state.
        return set()
    if isinstance(options.get("expires"), str):
        return {"DEAD"}
    if "bridge_max_state" in case["conf"]:
        # Whether its state is too large depends on the messages before it.
        return set()
    steps = list(message.script.get("before", ()) if options["kind"] in ("before", "all") else ())
    steps += message.script["do"]
    end = message.script["end"]
    asked = wrong = bad = False
    for step in steps:
        if (
            step[0] in ("try", "call")
            or (step[0] == "tell" and case["conf"]["backend"] != "redis")
            or "bridge_max_state" in case["conf"]
        ):
            return set()
        if step[0] == "raise":
            end = step
        elif (step[0] in STATES and not options["bridge_state"]) or step[0] == "refused" or step == ["ttl", -1]:
            end = ["raise", "payload"]
        else:
            asked, wrong = asked or step[0] == "ask", wrong or step[0] == "wrong"
            bad = step[0] == "bad state" or (bad and step[0] != "clear")
            continue
        break
    if asked:
        return {"FAILED"} if end[0] == "return" else set()
    kind = "FAILED"
    if end[0] == "return" or end[0] == "odd":
        kind = "DEAD" if end == ["odd", "generator"] else "DONE"
    elif end[0] == "replace":
        kind = "DEAD"
    elif end[0] == "retry":
        gone = "args" in end[1] or "queue" in end[1] or end[1].get("max_retries", 99) < attempt
        most = options.get("bridge_max_attempts")
        kind = "DEAD" if gone or (end[1].get("exc") == "dead" and most is not None and attempt >= most) else "FAILED"
        if end[1].get("exc") == "dead" and kind == "FAILED":
            return {"FAILED", "DEAD"}
    else:
        kind = KINDS.get(end[1], "FAILED")
    if (wrong or bad) and kind == "DONE":
        kind = "FAILED"
    if kind == "DONE" and options["kind"] in ("handlers", "all") and any(message.script.get(name) for name in HANDLERS):
        # An error of a handler fails an attempt whose success is not written yet.
        raises = any(step[0] == "raise" for name in HANDLERS for step in message.script.get(name, ()))
        return set() if raises else {"DONE", "FAILED"}
    # The retries of `autoretry_for` may have an end of their own.
    return {kind, "DEAD"} if kind == "FAILED" and "autoretry_for" in options else {kind}


STATES = ("set", "append", "del", "clear", "ttl", "bad state")
HANDLERS = ("on_success", "on_failure", "on_retry", "after_return")
#: What `bridge.testing.handle` says of an outcome.
HANDLED = {"DONE": "done", "DEAD": "dead", "NACKED": "nacked", "DROPPED": "dropped"}


def same_without_a_server(case: dict[str, Any], report: Report, world: PoolWorld) -> None:
    """`handle` tells of each message what a worker makes of it, but for what only a server or a worker refuses."""
    handled = world.handled(case["runs"])
    for n, (ticket, first, messages) in enumerate(case["runs"]):
        for i, message in enumerate(messages):
            id_ = f"{n + 1}-{i}"
            steps = steps_of(message.script)
            if message.task not in case["tasks"] or case["how"]["seeds"].get(ticket):
                break
            if any(step[0] in ("wrong", "call", "tell") for step in steps):
                break
            if any(message.script.get(name) for name in HANDLERS):
                # Without a server, Celery raises an error of a handler.
                break
            task = world.app.tasks[message.task]
            if isinstance(task.expires, str):
                break
            outcome, one = report.outcomes.get(id_), handled.get(id_)
            assert (outcome is None) == (one is None), f"{id_}: {outcome} and {one}"
            if outcome is None or one is None:
                break
            attempt = 1 if i else first
            most = task.bridge_max_attempts or world.lane.max_attempts
            kind = HANDLED.get(outcome[0]) or ("retried" if attempt < most else "dead")
            assert one.state == kind, f"{id_}: {outcome} and {one}"
            if kind == "done":
                effects = [effect[2].partition("/")[2] for effect in one.effects if effect[0] == "RPUSH"]
                notes = report.notes[ticket]
                assert effects == [token.partition("/")[2] for token in notes.tokens[id_]], f"{id_}: effects"
                if id_ in notes.states:
                    assert one.saved == json.loads(notes.states[id_]), f"{id_}: state"
            if kind != "done" and one.error is not None and not isinstance(one.error, Retry | Reject):
                said = error_text(one.error) if kind != "dropped" else one.error.reason
                if outcome[0] not in ("NACKED", "DROPPED"):
                    assert outcome[1] == said.encode(errors="replace").decode(), f"{id_}: {outcome} and {said}"


def check(case: dict[str, Any], server: EmbeddedServer) -> None:
    with server.client() as client:
        world = PoolWorld(server.url, client, case["tasks"], case["conf"])
        try:
            light = world.bundle(case["runs"], light=True, **case["how"])
            judge(case, light, world)
            celerys = world.bundle(case["runs"], light=False, **case["how"])
            judge(case, celerys, world)
            # A bundle that ends half way has not stored the results of messages that have no outcome, and come again.
            unequal: tuple[str, ...] = ("times",)
            if case["special"] in ("lease", "fatal"):
                unequal = ("times", "results")
                if case["how"]["write_after_s"] < 0 or case["how"]["faults"]:
                    # The clock decides what was written by then.
                    unequal += ("outcomes", "events", "applied", "sums", "states", "mortal")
            same(light, celerys, "light and Celery's", but=unequal)
            if case["special"] in ("none", "stale", "revoked"):
                alone = world.alone(case["runs"], **case["how"])
                judge(case, alone, world)
                same(celerys, alone, "bundle and alone", but=("times", "events", "pushed"))
                assert sorted(celerys.pushed) == sorted(alone.pushed)
            if case["special"] == "none":
                same_without_a_server(case, light, world)
        finally:
            world.close()


def run(server: EmbeddedServer, examples: int) -> None:
    @settings(
        max_examples=examples,
        print_blob=True,
        report_multiple_bugs=False,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(case=cases())
    def all_ways_agree(case: dict[str, Any]) -> None:
        check(case, server)

    all_ways_agree()


@pytest.mark.parametrize("examples", [25, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_all_ways_agree_and_keep_what_the_pages_promise(examples: int, valkey: EmbeddedServer) -> None:
    run(valkey, examples)
