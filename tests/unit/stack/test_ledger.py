"""The ledger's form, and the verdict about it: good for a good run, bad for each kind of fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.routing.errors import InputError
from bridge.stack.demo.follow_ups import FIRST, SECOND, FollowUps, has_follow_ups, judge_follow_ups
from bridge.stack.demo.ledger import Kind, Ledger, Process, Record, file_name, read_ledger
from bridge.stack.demo.verdict import (
    DemoVerdict,
    Findings,
    Reroute,
    TrailVerdict,
    compare_states,
    compare_trails,
    judge,
    time_to_reroute,
)
from tasks.incidents import fold, line_of

MS = 1_000_000
HERE = 100


class Book:
    """Writes a ledger by hand; times in ms, fences counted up."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.fence = 0

    def ran(
        self, ticket: str, seq: int, start: float, end: float | None, *, pid: int = HERE, kind: Kind = Kind.DONE
    ) -> Book:
        """One execution; without an end when ``end`` is None."""
        self.fence += 1
        self.ledger.records.append(Record(Kind.START, ticket, seq, self.fence, 1, int(start * MS), pid))
        if end is not None:
            self.ledger.records.append(Record(kind, ticket, seq, self.fence, 1, int(end * MS), pid))
        return self

    def judged(self, expected: dict[str, int], killed: dict[int, int] | None = None) -> Findings:
        return judge(self.ledger, expected, killed or {})


class TestTheVerdictIsGreen:
    def test_for_two_tickets_that_run_side_by_side(self) -> None:
        book = Book().ran("A", 1, 0, 10).ran("B", 1, 5, 15, pid=101).ran("A", 2, 10, 12)
        found = book.judged({"A": 2, "B": 1})
        assert found.clean
        assert found.repeated == 0
        assert found.seconds == pytest.approx(0.015)
        assert found.examples == []

    def test_for_an_event_that_ran_again_after_its_process_was_killed(self) -> None:
        book = Book().ran("A", 1, 0, None).ran("A", 1, 50, 60, pid=101).ran("A", 2, 60, 61, pid=101)
        found = book.judged({"A": 2}, {HERE: 40 * MS})
        assert found.clean
        assert found.repeated == 1

    def test_for_a_success_that_comes_twice(self) -> None:
        # It ended, and its process was killed before the outcome was written.
        found = Book().ran("A", 1, 0, 1).ran("A", 1, 5, 6, pid=101).ran("A", 2, 7, 8).judged({"A": 2})
        assert found.clean
        assert found.repeated == 1

    def test_for_a_failure_and_its_retry(self) -> None:
        assert Book().ran("A", 1, 0, 1, kind=Kind.FAILED).ran("A", 1, 5, 6).judged({"A": 1}).clean

    def test_for_an_execution_without_an_end_in_a_process_of_which_nothing_is_known(self) -> None:
        assert Book().ran("A", 1, 0, None).ran("A", 1, 5, 6, pid=101).judged({"A": 1}).clean

    def test_for_an_execution_that_begins_when_the_one_before_ends(self) -> None:
        assert Book().ran("A", 1, 0, 5).ran("A", 2, 5, 6, pid=101).judged({"A": 2}).clean


class TestTheVerdictIsRed:
    def test_for_an_event_that_never_ran(self) -> None:
        found = Book().ran("A", 1, 0, 1).judged({"A": 2, "B": 3})
        assert found.lost == 1 + 3
        assert not found.clean
        assert "lost: A event 2 never succeeded" in found.examples

    def test_for_an_event_that_ran_and_failed(self) -> None:
        assert Book().ran("A", 1, 0, 1, kind=Kind.FAILED).judged({"A": 1}).lost == 1

    def test_for_an_event_that_was_killed_and_never_ran_again(self) -> None:
        assert Book().ran("A", 1, 0, None).judged({"A": 1}, {HERE: 5 * MS}).lost == 1

    def test_for_two_events_that_changed_places(self) -> None:
        found = Book().ran("A", 2, 0, 1).ran("A", 1, 2, 3).judged({"A": 2})
        assert found.reordered == 2
        assert not found.clean
        assert "reordered: A event 2 succeeded after event 0" in found.examples

    def test_for_an_event_that_was_skipped_and_came_later(self) -> None:
        book = Book().ran("A", 1, 0, 1).ran("A", 3, 2, 3).ran("A", 2, 4, 5)
        assert book.judged({"A": 3}).reordered == 2

    def test_for_an_old_event_that_comes_again(self) -> None:
        book = Book().ran("A", 1, 0, 1).ran("A", 2, 2, 3).ran("A", 1, 4, 5)
        assert book.judged({"A": 2}).reordered == 1

    def test_for_two_executions_of_one_ticket_at_a_time(self) -> None:
        found = Book().ran("A", 1, 0, 10).ran("A", 2, 9, 11, pid=101).judged({"A": 2})
        assert found.overlapped == 1
        assert not found.clean
        assert found.examples == ["overlapped: A event 2 began before event 1 had ended"]

    def test_for_an_execution_inside_another_one_that_is_not_its_neighbour(self) -> None:
        book = Book().ran("A", 1, 0, 100).ran("A", 2, 10, 11, pid=101).ran("A", 3, 20, 21, pid=101)
        assert book.judged({"A": 3}).overlapped == 2

    def test_for_one_that_began_while_the_process_to_be_killed_was_running_it(self) -> None:
        book = Book().ran("A", 1, 0, None).ran("A", 1, 30, 35, pid=101)
        assert book.judged({"A": 1}, {HERE: 40 * MS}).overlapped == 1

    def test_for_a_message_that_was_not_pushed(self) -> None:
        found = Book().ran("A", 1, 0, 1).ran("A", 2, 2, 3).ran("Z", 1, 0, 1).judged({"A": 1})
        assert found.unexpected == 2
        assert not found.clean

    @pytest.mark.parametrize("fault", ["dead", "done", "states_equal", "states_read_by_spark", "problems"])
    def test_for_everything_that_the_ledger_does_not_show(self, fault: str) -> None:
        good = {"messages": 9, "tickets": 3, "done": 9, "dead": 0, "states_equal": 3, "findings": Findings()}
        worse = {"dead": 1, "done": 8, "states_equal": 2, "states_read_by_spark": 2, "problems": ("something",)}
        assert DemoVerdict(**good).ok  # type: ignore[arg-type]
        assert not DemoVerdict(**{**good, fault: worse[fault]}).ok  # type: ignore[arg-type]


class TestTheAuditTrail:
    @pytest.mark.parametrize(
        "worse", [{"done": 8}, {"dead": 1}, {"complete": 2}, {"findings": Findings(reordered=1)}], ids=str
    )
    def test_a_fault_of_it_makes_the_verdict_red(self, worse: dict[str, Any]) -> None:
        def verdict(**trail: Any) -> DemoVerdict:
            return DemoVerdict(9, 3, 9, 0, Findings(), 3, trail=TrailVerdict(**trail))

        good = {"done": 9, "dead": 0, "complete": 3, "findings": Findings()}
        assert verdict(**good).ok
        assert not verdict(**{**good, **worse}).ok

    def test_each_subscription_has_a_part_of_the_ledger(self) -> None:
        ledger = Book().ran("A", 1, 0, 1).ledger
        ledger.records += [record._replace(subscription="audit_trail") for record in ledger.records]
        assert len(ledger.of("audit_trail").records) == len(ledger.of("").records) == 2

    def test_a_trail_is_compared_with_what_spark_computed_from_the_log(self) -> None:
        event = {"activity": "New", "assignment_group": "G", "timestamp": "2024-03-04T08:00:00"}
        events = [{**event, "seq": str(seq)} for seq in (1, 2, 3)]
        state: dict[str, str] = {}
        for one in events:
            state = fold(state, one)
        lines = [line_of(one).encode() for one in events]
        good = {"A": lines}
        assert compare_trails({"A": state}, good) == (1, [])
        for bad in (lines[:2], [*lines, lines[2]], [lines[1], lines[0], lines[2]], [*lines[:2], b"other"], []):
            complete, differences = compare_trails({"A": state}, {"A": bad})
            assert complete == 0
            assert differences[0].startswith(f"audit trail of A: {len(bad)} events, not ")


class TestTimeToReroute:
    def test_it_is_from_the_kill_to_the_next_start_of_each_ticket(self) -> None:
        book = Book().ran("A", 1, 0, None).ran("B", 1, 1, None)  # fences 1 and 2
        book.ran("A", 1, 2010, 2011, pid=101).ran("B", 1, 2030, 2031, pid=101).ran("B", 2, 4000, 4001, pid=101)
        found = time_to_reroute(book.ledger, {"A": (1, 1), "B": (2, 1)}, {HERE}, 10 * MS)
        assert found is not None
        assert found.tickets == 2
        assert found.median_s == pytest.approx(2.01)
        assert found.max_s == pytest.approx(2.02)

    def test_a_run_that_had_ended_before_the_kill_waited_for_nothing(self) -> None:
        book = Book().ran("A", 1, 0, 1).ran("A", 2, 11, 12, pid=101)
        assert time_to_reroute(book.ledger, {"A": (1, 1)}, {HERE}, 10 * MS) is None

    def test_a_run_of_which_half_had_ended_did_wait(self) -> None:
        book = Book().ran("A", 1, 0, 1).ran("A", 2, 510, 512, pid=101)
        found = time_to_reroute(book.ledger, {"A": (1, 2)}, {HERE}, 10 * MS)
        assert found == Reroute(1, 0.5, 0.5)

    def test_other_tickets_do_not_count(self) -> None:
        book = Book().ran("C", 1, 20, 21, pid=101)
        assert time_to_reroute(book.ledger, {"A": (1, 1)}, {HERE}, 10 * MS) is None


class TestStates:
    def test_equal_ones_are_counted(self) -> None:
        assert compare_states({"A": {"seq": "1"}, "B": {}}, {"A": {"seq": "1"}, "C": {"seq": "9"}}) == (2, [])

    def test_a_difference_is_named(self) -> None:
        equal, differences = compare_states({"A": {"seq": "2", "status": "New"}}, {"A": {"seq": "1", "status": "New"}})
        assert equal == 0
        assert differences == ["state of A: seq is '1', not '2'"]

    def test_a_state_that_is_not_there_is_named(self) -> None:
        assert compare_states({"A": {"seq": "2"}}, {}) == (0, ["state of A: there is none"])

    def test_a_field_too_many_is_a_difference(self) -> None:
        assert compare_states({"A": {"seq": "2"}}, {"A": {"seq": "2", "x": "1"}})[0] == 0


class TestTheFile:
    def test_a_written_outcome_is_read(self, tmp_path: Path) -> None:
        process = Process(7, 6, "w1@here")
        records = [Record(Kind.START, 'a "ticket"\n', 1, 2**60, 3, 99, 7), Record(Kind.DONE, "b", 2, 5, 1, 100, 7)]
        lines = b"".join([process.encode(), *(record.encode() for record in records)])
        (tmp_path / file_name(7, 99)).write_bytes(lines)
        ledger = read_ledger(tmp_path)
        assert ledger.processes == [process]
        assert ledger.records == records
        assert ledger.children_of(6) == {7}
        assert ledger.children_of(7) == set()

    def test_a_line_that_was_being_written_at_the_kill_counts_as_not_written(self, tmp_path: Path) -> None:
        whole = Record(Kind.START, "a", 1, 2, 1, 99, 7).encode()
        (tmp_path / file_name(7, 99)).write_bytes(whole + whole[:-5])
        assert len(read_ledger(tmp_path).records) == 1

    @pytest.mark.parametrize("line", [b"nonsense", b'["began","a",1,2,1,99,7]', b'["start","a"]', b"{}", b""])
    def test_a_line_that_is_no_record_is_named(self, line: bytes, tmp_path: Path) -> None:
        whole = Record(Kind.START, "a", 1, 2, 1, 99, 7).encode()
        (tmp_path / file_name(7, 99)).write_bytes(whole + line + b"\n" + whole)
        with pytest.raises(InputError, match=r"7-99\.ledger, line 2: no record"):
            read_ledger(tmp_path)


#: Two incidents with follow-ups, and one without.
ONE, TWO = [f"T{n}" for n in range(2000) if has_follow_ups(f"T{n}")][:2]
NONE = next(f"T{n}" for n in range(2000) if not has_follow_ups(f"T{n}"))


def handled(book: Book, ticket: str, first: float, second: float) -> Book:
    """An event, and its follow-ups at these times in ms; the first one is due after 1000 ms."""
    return book.ran(ticket, 1, 0, 10).ran(ticket, FIRST, first, first + 5).ran(ticket, SECOND, second, second + 5)


@pytest.mark.parametrize(
    ("first", "second", "early", "reordered", "late_s"),
    [(1000, 2000, 0, 0, 0.0), (1500, 2100, 0, 0, 0.3), (900, 2000, 1, 0, 0.0), (2200, 2100, 0, 1, 0.65)],
    ids=["in time", "late", "early", "reordered"],
)
def test_follow_ups_come_in_time_and_in_order(
    first: float, second: float, early: int, reordered: int, late_s: float
) -> None:
    book = handled(Book(), ONE, first, second)
    found = judge_follow_ups(book.ledger, [ONE, NONE], 1.0)
    assert (found.wanted, found.came, found.early, found.reordered) == (2, 2, early, reordered)
    assert found.median_late_s == pytest.approx(late_s)
    assert found.ok == (not early and not reordered)
    # They are no events, and nothing is wrong with these.
    assert book.judged({ONE: 1}).clean


def test_a_follow_up_that_did_not_come_is_missed() -> None:
    book = handled(Book(), ONE, 1000, 2000).ran(TWO, 1, 0, 10).ran(TWO, FIRST, 1000, None)
    found = judge_follow_ups(book.ledger, [ONE, TWO], 1.0)
    assert (found.wanted, found.came, found.ok) == (4, 2, False)
    good = FollowUps(2, 2, 0, 0, 0.1, 0.2)
    assert DemoVerdict(9, 3, 9, 0, Findings(), 3, follow_ups=good).ok
    assert not DemoVerdict(9, 3, 9, 0, Findings(), 3, follow_ups=found).ok
    assert judge_follow_ups(Ledger(), [NONE], 1.0) == FollowUps(0, 0, 0, 0, 0.0, 0.0)


def test_a_follow_up_beside_another_execution_overlaps() -> None:
    book = Book().ran("A", 1, 0, 100).ran("A", FIRST, 50, 60, pid=101)
    assert book.judged({"A": 1}).overlapped == 1
