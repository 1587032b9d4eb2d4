"""What a consumer registers with and reports: as it is written, as it is read, and when it is damaged."""

from __future__ import annotations

from contextlib import suppress

import orjson
import pytest

from bridge.protocol.drain_orders import DrainOrder, read_drain_order
from bridge.protocol.held_runs import HeldRuns, read_held_runs
from bridge.protocol.registration import (
    ChangingFacts,
    Profile,
    Registrations,
    RunnableTasks,
    changed,
    read_registration,
)

RUNNABLE = RunnableTasks(["a", "b"], ["celery"], {"c": "other"}, {"b": {"max_attempts": 3}})
FACTS = {"app": "shop", "version": "1.0", "format": 1, "settings": {"lease": 6.0}}
PROFILE = Profile("queue:w1", ChangingFacts(2, RUNNABLE), "prefork", 7, 1.5, FACTS)
TEXT = PROFILE.text("life1", 2.5, 6000)


def test_a_registration_is_written_in_the_form_that_other_versions_read() -> None:
    assert TEXT == (
        b'{"queue":"queue:w1","slots":2,"tasks":["a","b"],"queues":["celery"],"elsewhere":{"c":"other"},'
        b'"traits":{"b":{"max_attempts":3}},"pool":"prefork","pid":7,"started":1.5,"app":"shop","version":"1.0",'
        b'"format":1,"settings":{"lease":6.0},"incarnation":"life1","since":2.5,"lease_ms":6000}'
    )


def test_all_that_was_written_is_read() -> None:
    found = read_registration(TEXT)
    assert (found.text, found.incarnation, found.queue, found.slots, found.leaving) == (
        *(TEXT, "life1", "queue:w1", 2, False),
    )
    assert (found.pool, found.pid, found.since, found.started, found.lease_ms) == ("prefork", 7, 2.5, 1.5, 6000)
    assert (found.tasks, found.queues) == (frozenset({"a", "b"}), ("celery",))
    assert (found.elsewhere, found.traits, found.facts) == (RUNNABLE.elsewhere, RUNNABLE.traits, FACTS)


def test_an_older_version_says_less() -> None:
    found = read_registration(b'{"incarnation":"life1","queue":"q","slots":1}')
    assert (found.tasks, found.queues, found.since, found.lease_ms, found.facts) == (None, None, None, None, {})


def test_a_change_keeps_all_that_this_version_does_not_know() -> None:
    found = read_registration(b'{"new":[1],"incarnation":"life1","slots":1,"queue":"q"}')
    assert changed(found, slots=3, leaving=True) == (
        b'{"new":[1],"incarnation":"life1","slots":3,"queue":"q","leaving":true}'
    )
    facts = ChangingFacts(4, RUNNABLE)
    assert changed(read_registration(TEXT), **facts.fields()) == TEXT.replace(b'"slots":2', b'"slots":4')


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"\xff", b"[]", b"null", b'"x"', b"{}", b'{"incarnation":"a","queue":"q"}'),
        *(b'{"incarnation":"a","slots":1}', b'{"queue":"q","slots":1}', b'{"incarnation":"a","queue":"q","slots":"x"}'),
    ],
    ids=str,
)
def test_a_damaged_registration_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="a registration that cannot be read"):
        read_registration(text)


@pytest.mark.parametrize("value", [None, True, 7, 1e300, "x", ["x", 7], {"x": 7}], ids=repr)
@pytest.mark.parametrize("name", orjson.loads(TEXT))
def test_one_with_a_field_of_another_type_is_read_or_refused(name: str, value: object) -> None:
    text = orjson.dumps({**orjson.loads(TEXT), name: value})
    with suppress(ValueError):
        assert read_registration(text).text == text


def test_consumers_that_can_run_the_same_share_one_set_and_a_text_is_read_once() -> None:
    other = PROFILE.text("life2", 3.5, 6000)
    registrations = Registrations()
    skipped: dict[bytes, bytes] = {}
    first = registrations.read({b"w1": TEXT, b"w2": other}, skipped.__setitem__)
    assert first[b"w1"].tasks is first[b"w2"].tasks
    second = registrations.read({b"w1": TEXT, b"w2": other}, skipped.__setitem__)
    assert second[b"w1"] is first[b"w1"]
    assert not skipped


def test_a_damaged_registration_is_skipped_and_the_others_are_read() -> None:
    registrations = Registrations()
    skipped: dict[bytes, bytes] = {}
    for _ in range(2):
        assert registrations.read({b"w1": b"{", b"w2": TEXT, b"\xff": TEXT}, skipped.__setitem__).keys() == {b"w2"}
    assert skipped == {b"w1": b"{", b"\xff": TEXT}


def test_an_order_to_drain_is_for_one_process() -> None:
    order = DrainOrder(17, 1.5)
    assert order.text() == '{"at_ms":17,"started":1.5}'
    assert read_drain_order(order.text().encode()) == order
    assert order.is_for(read_registration(TEXT))
    assert not order.is_for(read_registration(changed(read_registration(TEXT), started=9.0)))


def test_a_report_of_held_runs_is_read_as_it_was_written() -> None:
    report = HeldRuns(3, [7, 2**53 + 1])
    assert report.text() == b'{"n":3,"fences":[7,9007199254740993]}'
    assert read_held_runs(report.text()) == report
