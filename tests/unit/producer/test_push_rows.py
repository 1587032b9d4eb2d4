"""What a row becomes, and which rows are refused, with their line. Without a server."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import replace
from typing import BinaryIO, cast

import pytest

from bridge.producer.rows import Format, Row, Rules, format_of, rows
from bridge.producer.sources import Source, opened
from bridge.routing.errors import ConfigurationError, InputError

RULES = Rules("ticket_id", None, "shop.update", ("shop.update", "shop.once"), 1000)


def read(data: bytes | str, kind: Format, rules: Rules = RULES) -> list[Row]:
    raw = cast("BinaryIO", io.BytesIO(data.encode() if isinstance(data, str) else data))
    return list(rows(Source("log", raw, raw, None), kind, rules))


def payloads(data: bytes | str, kind: Format, rules: Rules = RULES) -> list[object]:
    return [json.loads(row.payload) for row in read(data, kind, rules)]


def rules(
    key: str = "ticket_id", task: str | None = None, default: str | None = "shop.update", delimiter: str = ","
) -> Rules:
    return Rules(key, task, default, RULES.tasks, 1000, delimiter)


def test_other_columns_are_the_payload_as_strings() -> None:
    (row,) = read("ticket_id,a,b\nT1,1,\n", "csv")
    assert row == Row(2, b"T1", None, b'{"a":"1","b":""}')
    assert row.fields() == {"ticket_id": b"T1", "payload": b'{"a":"1","b":""}'}


def test_other_keys_are_the_payload_as_they_are() -> None:
    (row,) = read('{"a": [1, null], "ticket_id": "T1", "b": {"c": 1.5}}', "json")
    assert row == Row(1, b"T1", None, b'{"a":[1,null],"b":{"c":1.5}}')


def test_a_payload_column_is_the_payload() -> None:
    assert payloads('ticket_id,payload,x\nT1,"[1, ""a""]",ignored\n', "csv") == [[1, "a"]]
    assert payloads('{"ticket_id":"T1","payload":null}\n{"ticket_id":"T1","payload":"text"}', "json") == [None, "text"]


def test_a_task_column_names_the_task_and_the_option_that_of_the_others() -> None:
    data = "ticket_id,task,a\nT1,shop.once,1\nT2,,2\n"
    assert [row.task for row in read(data, "csv")] == ["shop.once", None]
    assert [row.task for row in read(data, "csv", rules(task="shop.update"))] == ["shop.once", "shop.update"]
    assert payloads(data, "csv") == [{"a": "1"}, {"a": "2"}], "the task is no part of the payload"
    assert [row.task for row in read('{"ticket_id":"T","task":"shop.once"}', "json")] == ["shop.once"]


def test_another_column_may_name_the_ticket() -> None:
    assert read("number,ticket_id\nINC1,x\n", "csv", rules("number")) == [Row(2, b"INC1", None, b'{"ticket_id":"x"}')]


@pytest.mark.parametrize("key", ["task", "payload", "due", "priority"])
def test_the_column_that_names_the_ticket_is_nothing_else(key: str) -> None:
    wanted = [Row(2, b"T1", None, b'{"a":"1"}')]
    assert read(f"{key},a\nT1,1\n", "csv", rules(key)) == wanted
    assert read(f'\n{{"{key}":"T1","a":"1"}}', "json", rules(key)) == wanted


def test_a_whole_number_may_be_a_ticket_in_json() -> None:
    assert [row.ticket for row in read('{"ticket_id": 42}', "json")] == [b"42"]


def test_a_cell_may_hold_line_breaks_and_the_lines_go_on_counting() -> None:
    data = 'ticket_id,a\nT1,"x\r\ny\n"\n\nT2,"say ""hi"""\nT3\n'
    with pytest.raises(
        InputError, match=r"^log:7: the row has 1 cell, the header has 2 columns: column 'a' is missing"
    ):
        read(data, "csv")
    assert payloads(data.rsplit("T3", 1)[0], "csv") == [{"a": "x\r\ny\n"}, {"a": 'say "hi"'}]


def test_files_of_spreadsheets_are_read() -> None:
    assert payloads(b"\xef\xbb\xbfticket_id;a\r\nT1;1,5\r\n", "csv", rules(delimiter=";")) == [{"a": "1,5"}]


def test_whole_numbers_of_any_length_stay_as_they_are() -> None:
    (row,) = read('{"ticket_id":"T","n":123456789012345678901234567890,"m":-18446744073709551617}', "json")
    assert row.payload == b'{"n":123456789012345678901234567890,"m":-18446744073709551617}'


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('{"ticket_id":"A","ticket_id":"B"}', "ticket_id"),
        ('{"ticket_id":"A","amount":1,"amount":2}', "amount"),
        ('{"ticket_id":"A","a":[{"b":{"c":1,"c":1}}]}', "c"),
        ('{"ticket_id":"A","n":123456789012345678901234567890,"n":1}', "n"),
        # As many quotes as the rest of it has when it is written again.
        ('{"ticket_id":"A","t":"\\u0022\\u0022","a":1,"a":2}', "a"),
        ('{"ticket_id":"A","t":"\\u0022","a":1,"\\u0061":2}', "a"),
    ],
)
def test_a_member_that_is_there_twice_is_refused_rather_than_one_of_the_two_chosen(line: str, name: str) -> None:
    with pytest.raises(InputError, match=rf"^log:1: key {name!r} occurs twice"):
        read(line, "json")


def test_names_and_quotes_in_values_are_no_members() -> None:
    line = r'{"ticket_id":"A","a":"\"a\":1","b":{"a":1},"c":[{"a":"\u0022"},{"a":"é\u00e9"}]}'
    (found,) = payloads(line, "json")
    assert found == {"a": '"a":1', "b": {"a": 1}, "c": [{"a": '"'}, {"a": "éé"}]}


def test_empty_lines_and_empty_files_have_no_rows() -> None:
    assert read('\n{"ticket_id":"T"}\n  \n', "json") == [Row(2, b"T", None, b"{}")]
    assert read("", "json") == read("", "csv") == read("ticket_id,a\n", "csv") == []


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("json", b'{"ticket_id":"T"}\n{"ticket_id":"T","a":}\n', r"^log:2:22: not JSON: "),
        ("json", b'{"ticket_id":"T"', r"^log:1:\d+: not JSON: "),
        ("json", b'{"ticket_id":"T","n":1234567890123456789012,}', r"^log:1:\d+: not JSON: "),
        ("json", b'{"ticket_id":"T","n":1234567890123456789012,"x":NaN}', r"^log:1:.*NaN"),
        (
            "json",
            b'{"ticket_id":"T","n":1234567890123456789012,"x":1e999}',
            r"^log:1:\d+: the line has a number that is too large$",
        ),
        ("json", b'{"ticket_id":"T","n":%b}' % (b"1" * 400), r"^log:1: the line has a number that is too large$"),
        ("json", b'{"ticket_id":"T","n":%b}' % (b"1" * 5000), r"^log:1:\d+: the line has a number that is too large$"),
        ("json", b'{"ticket_id":"T","n":1e400}', r"^log:1:22: the line has a number that is too large$"),
        ("json", b'{"ticket_id":"T","n":"\\ud800"}', r"^log:1:\d+: the line has half of a surrogate pair"),
        ("csv", b"ticket_id,payload\nT1,1e400\n", r"^log:2: column 'payload': the cell has a number that is too large"),
        ("json", b'{"ticket_id":"T","n":-Infinity}', r"^log:1:\d+: not JSON: "),
        ("json", b'{"ticket_id":true}', r"^log:1: key 'ticket_id': a ticket is a string or a whole number, not"),
        ("json", b'{"ticket_id":"T","n":NaN}', r"^log:1:\d+: not JSON: "),
        ("json", b"[1]\n", r"^log:1: a line must hold a JSON object, not \[1\]"),
        ("json", b'{"ticket":"T"}', r"^log:1: there is no 'ticket_id'; did you mean 'ticket'\?"),
        ("json", b'{"ticket_id":null}', r"^log:1: there is no 'ticket_id'"),
        ("json", b'{"ticket_id":1.5}', r"^log:1: key 'ticket_id': a ticket is a string or a whole number, not 1.5"),
        ("json", b'{"ticket_id":true}', r"^log:1: key 'ticket_id'.*not True"),
        ("json", b'{"ticket_id":""}', r"^log:1: key 'ticket_id': the ticket is empty"),
        ("json", b'{"ticket_id":"T","task":1}', r"^log:1: key 'task': a task's name is a string, not 1"),
        (
            "json",
            b'{"ticket_id":"T","task":"shop.updat"}',
            r"^log:1: key 'task': there is no task 'shop.updat'; did you mean 'shop.update'\?",
        ),
        ("json", b'{"ticket_id":"' + b"x" * 513 + b'"}', r"^log:1: .* 513 bytes long, at most 512"),
        ("json", b'{"ticket_id":"T","a":"' + b"x" * 1000 + b'"}', r"^log:1: the payload has 1008 bytes.*allows 1000"),
        ("json", b'{"ticket_id":"T"}\n{"ticket_id":"\xe4"}', r"^log:2:15: not UTF-8: byte 0xe4"),
        ("json", b"[" * 100_000, r"^log:1:\d+: the line is nested more than 200 levels deep$"),
        ("csv", b"ticket,a\nT1,1\n", r"^log:1: there is no column 'ticket_id'; did you mean 'ticket'\?"),
        ("csv", b"a;b\nT1;1\n", r"^log:1: there is no column 'ticket_id' \(there are 'a;b'\)"),
        ("csv", b"ticket_id,a,\nT1,1,2\n", r"^log:1: column 3 has no name$"),
        ("csv", b"ticket_id,,a\nT1,1,2\n", r"^log:1: column 2 has no name$"),
        ("csv", b"ticket_id, ,a\nT1,1,2\n", r"^log:1: column 2 has no name$"),
        ("csv", b"ticket_id,a,a\n", r"^log:1: column 'a' occurs twice"),
        ("csv", b"ticket_id,a\nT1,1,2\n", r"^log:2: the row has 3 cells.*the first cell too many is '2'"),
        ("csv", b"ticket_id,a\n,1\n", r"^log:2: column 'ticket_id': the ticket is empty"),
        ("csv", b'ticket_id,a\nT1,"x\nT2,y\n', r"^log:2: not CSV: a quoted cell does not end"),
        ("csv", b'ticket_id,a\nT1,"x"y\n', r"^log:2: not CSV: "),
        (
            "csv",
            b'ticket_id,a\nT1,"' + b"x\n" * 2000 + b'"',
            r"^log:2: not CSV: a quoted cell does not end, or is longer",
        ),
        ("csv", b"ticket_id,payload\nT1,{}\nT1,{1}\n", r"^log:3: column 'payload': not JSON: .*'\{1\}'"),
        ("csv", b'ticket_id,payload\nT1,"{""a"":1,""a"":2}"\n', r"^log:2: column 'payload': key 'a' occurs twice"),
        ("csv", b"ticket_id,a\nT1,\xe4\n", r"^log:2:4: not UTF-8: byte 0xe4"),
        ("csv", "ticket_id,a\nT1,x\n".encode("utf-16"), r"^log:1:1: not UTF-8"),
    ],
)
def test_a_bad_row_is_refused_with_its_place(kind: Format, data: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read(data, kind)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("levels", [200, 260, 900, 1000, 1020])
@pytest.mark.parametrize("column", ["payload", "a"])
def test_a_row_that_is_nested_too_deeply_for_any_parser_is_refused_with_its_place(column: str, levels: int) -> None:
    deep = f'{{"ticket_id":"T","{column}":{"[" * levels}1{"]" * levels}}}'
    if (column, levels) == ("payload", 200):
        assert len(read(deep, "json")) == 1
        return
    with pytest.raises(InputError, match=r"^log:2: the payload is nested more than 200 levels deep$"):
        read(f'{{"ticket_id":"T"}}\n{deep}', "json")


def test_a_row_without_a_task_is_refused_where_the_lane_has_no_default() -> None:
    with pytest.raises(InputError, match=r"^log:1: the row names no task: add --task"):
        read('{"ticket_id":"T"}', "json", rules(default=None))


def test_the_rows_before_a_bad_one_come_first() -> None:
    found = rows(_source(b'{"ticket_id":"T1"}\n{"ticket_id":"T2"}\noops'), "json", RULES)
    assert [next(found).ticket, next(found).ticket] == [b"T1", b"T2"]
    with pytest.raises(InputError):
        next(found)


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    class Endless(io.RawIOBase):
        given = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
            buffer[:] = b"x" * len(buffer)
            self.given += len(buffer)
            return len(buffer)

    endless = Endless()
    raw = cast("BinaryIO", io.BufferedReader(endless))
    with pytest.raises(InputError, match=r"^log:1: the line is longer than"):
        list(rows(Source("log", raw, raw, None), "json", RULES))
    assert endless.given < 2 * RULES.longest_line


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.csv", "csv"), ("a.CSV.gz", "csv"), ("a.jsonl", "json"), ("a.b.ndjson.gz", "json"), ("a.json", "json")],
)
def test_the_files_name_decides_the_format(name: str, kind: str) -> None:
    assert format_of(name) == kind


@pytest.mark.parametrize("name", ["-", "a", "a.txt", "a.gz", ".csv.gz.bak"])
def test_a_name_without_a_known_suffix_needs_the_format_option(name: str) -> None:
    with pytest.raises(ConfigurationError, match="add --format csv or --format json"):
        format_of(name)


def test_gzip_is_known_by_its_content_too(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "log.csv"
    path.write_bytes(gzip.compress(b"ticket_id\nT1\n"))
    with opened(str(path)) as source:
        assert [row.ticket for row in rows(source, "csv", RULES)] == [b"T1"]


def _source(data: bytes) -> Source:
    raw = cast("BinaryIO", io.BytesIO(data))
    return Source("log", raw, raw, None)


# -- when a row is due ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "kind", "options", "values"),
    [
        ("ticket_id,due,a\nT,1900000000000,1", "csv", {}, {"due": b"1900000000000"}),
        ("ticket_id,due,hold,a\nT,1900000000000,1,1", "csv", {}, {"due": b"1900000000000", "hold": b"1"}),
        ("ticket_id,due,hold,a\nT,1900000000000,,1", "csv", {"hold": True}, {"due": b"1900000000000", "hold": b"1"}),
        ("ticket_id,due,hold,a\nT,1900000000000,no,1", "csv", {"hold": True}, {"due": b"1900000000000"}),
        ("ticket_id,due,a\nT,2030-03-17T17:46:40Z,1", "csv", {}, {"due": b"1900000000000"}),
        ("ticket_id,due,a\nT,2001-09-09T01:46:40Z,1", "csv", {}, {"due": b"1000000000000"}),
        ("ticket_id,delay,a\nT,1.5,1", "csv", {}, {"due": b"+1500"}),
        ("ticket_id,delay,a\nT,,1", "csv", {"delay": 7.0}, {"due": b"+7000"}),
        ("ticket_id,delay,due,a\nT,,,1", "csv", {}, {}),
        ("ticket_id,a\nT,1", "csv", {"delay": 7.0, "hold": True}, {"due": b"+7000", "hold": b"1"}),
        ("ticket_id,a\nT,1", "csv", {"hold": True}, {}),
        ('{"ticket_id": "T", "a": "1", "delay": 30, "hold": true}', "json", {}, {"due": b"+30000", "hold": b"1"}),
        ('{"ticket_id": "T", "a": "1", "due": 1900000000000}', "json", {"delay": 7.0}, {"due": b"1900000000000"}),
        ('{"ticket_id": "T", "a": "1", "due": null, "hold": null}', "json", {}, {}),
    ],
    ids=range(14),
)
def test_columns_say_when_a_row_is_due(
    data: str, kind: Format, options: dict[str, object], values: dict[str, bytes]
) -> None:
    [row] = read(data, kind, replace(RULES, options=options))
    assert row == Row(row.line, b"T", None, b'{"a":"1"}', values)


@pytest.mark.parametrize(
    ("data", "kind", "options", "values"),
    [
        ("ticket_id,payload,max_attempts,priority\nT,1,3,9", "csv", {}, {"max_attempts": b"3", "priority": b"9"}),
        ("ticket_id,payload,priority,timeout\nT,1,,", "csv", {"priority": 4}, {"priority": b"4"}),
        ("ticket_id,payload,timeout,due\nT,1,2.5,1900000000", "csv", {}, {"due": b"1900000000", "timeout": b"2500"}),
        ("ticket_id,payload,expires\nT,1,1900000000000", "csv", {"expires": 5.0}, {"expires": b"1900000000000"}),
        ("ticket_id,payload\nT,1", "csv", {"expires": 5.0}, {"expires": b"+5000"}),
        ('{"ticket_id":"T","payload":1,"priority":0,"max_attempts":2}', "json", {"priority":9}, {"max_attempts": b"2"}),
        ('{"ticket_id":"T","payload":1,"expires":"2030-03-17T17:46:40Z"}', "json", {}, {"expires": b"1900000000000"}),
    ],
    ids=range(7),
)  # fmt: skip
def test_beside_a_payload_columns_say_how_a_row_is_handled(
    data: str, kind: Format, options: dict[str, object], values: dict[str, bytes]
) -> None:
    [row] = read(data, kind, replace(RULES, options=options))
    assert row == Row(row.line, b"T", None, b"1", values)


def test_without_a_payload_column_they_are_the_payload() -> None:
    assert payloads("ticket_id,priority,timeout\nT,high,never", "csv") == [{"priority": "high", "timeout": "never"}]
    assert payloads('{"ticket_id":"T","expires":"soon"}', "json") == [{"expires": "soon"}]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ('"priority": "high"', "priority must be a whole number, not 'high'"),
        ('"priority": 10', "priority must be from 0 to 9, it is 10"),
        ('"max_attempts": 1.5', "max_attempts must be a whole number, not 1.5"),
        ('"timeout": "long"', "column 'timeout' must be a number of seconds, not 'long'"),
        ('"expires": -1', "column 'expires' must not be below 0, it is -1"),
        ('"expires": true', "column 'expires' must be milliseconds since 1970"),
        ('"expires": "soon"', "column 'expires' must be milliseconds since 1970 or a time such as .*, not 'soon'"),
        ('"due": 1900000000000, "expires": 1900000000000', "expires is not after the time when the message is due"),
        ('"due": "2033-05-18T03:33:20Z", "expires": 1999999999999', "expires is not after the time when the message"),
        ('"delay": 3000000000, "expires": 1999999999999', "expires is not after the time when the message is due"),
        ('"delay": 5, "expires": 1000000000000', "expires is not after the time when the message is due"),
    ],
    ids=range(11),
)
def test_a_bad_rule_of_a_row_is_refused_with_its_line(cells: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(f'{{"ticket_id": "T", "payload": 1, {cells}}}', "json")


def test_a_delay_counts_from_the_servers_time() -> None:
    row = Row(1, b"T", None, b"1", {"due": b"+1500", "hold": b"1"})
    assert row.counts_from_now
    assert row.fields(1_900_000_000_000)["due"] == b"1900000001500"
    assert not Row(1, b"T", None, b"1", {"due": b"1500"}).counts_from_now
    assert Row(1, b"T", None, b"1", {"due": b"=1500"}).fields(7)["due"] == b"1500"


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ('"due": "tomorrow"', "column 'due' must be milliseconds since 1970 or a time such as .*, not 'tomorrow'"),
        (
            '"due": "1795999999999.0"',
            "column 'due' must be milliseconds since 1970 or a time .*, not '1795999999999.0'",
        ),
        ('"due": "2030-01-31T12:00:00"', "column 'due': 2030-01-31T12:00:00 has no time zone, as 2030-01-31T12:00:00Z"),
        ('"due": "9999-01-31T12:00:00Z"', "column 'due' is more than 100 years away: 9999-01-31T12:00:00Z"),
        ('"due": -1', "column 'due' must not be below 0, it is -1"),
        ('"due": 9000000000000000', "column 'due' is more than 100 years away"),
        ('"due": 1e12', "column 'due' must be milliseconds since 1970 or a time"),
        ('"due": true', "column 'due' must be milliseconds since 1970 or a time"),
        ('"delay": "soon"', "column 'delay' must be a number of seconds, not 'soon'"),
        ('"delay": "nan"', "not NaN"),
        ('"delay": -1', "delay must not be below 0"),
        ('"delay": 1, "due": 1900000000000', "'due' and 'delay' both say"),
        ('"hold": "perhaps", "delay": 1', "column 'hold' must be true or false, not 'perhaps'"),
        ('"hold": [1], "delay": 1', "column 'hold' must be true or false"),
        ('"hold": true', "hold=True needs delay or eta"),
    ],
    ids=range(15),
)
def test_a_row_that_cannot_be_due_is_refused_with_its_line(cells: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        read(f'\n{{"ticket_id": "T", {cells}}}', "json")
    assert str(raised.value).startswith("log:2: ")
    assert "\n" not in str(raised.value)
