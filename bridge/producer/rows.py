"""Reads rows of a CSV or JSON lines file as messages. A row that cannot be a message is refused, with its position.

One column (``key``) holds the ticket. The column ``task``, if the file has it, holds the task. Some columns are options
of the message (`bridge.producer.row_options`). The payload is the column ``payload`` if the file
has it, else an object of all other columns. In a CSV file all values are strings. In JSON lines they keep their types.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from bridge.producer.duplicate_keys import duplicate_key
from bridge.producer.options import NONE, Values
from bridge.producer.row_options import COLUMNS, RULE_COLUMNS, row_values
from bridge.producer.sources import Source
from bridge.routing.errors import ConfigurationError, InputError, PayloadError
from bridge.routing.messages import MAX_TICKET_BYTES, Refused, is_deep, why_refused
from bridge.routing.numbers import count

Format = Literal["csv", "json"]
FORMATS: tuple[Format, ...] = ("csv", "json")
_SUFFIXES: dict[str, Format] = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}

TASK = "task"
PAYLOAD = "payload"
#: A line has more bytes than its payload: names, quotes, escapes. Room for these, in bytes.
LINE_ROOM = 1024 * 1024
#: A number that may not fit 64 bits, and that orjson would round.
_LONG_NUMBER = re.compile(r"\d{19}")


@dataclass(frozen=True, slots=True)
class Row:
    """A row that becomes a message. ``line``: its first line, from 1. ``task``: None for the lane's default task.

    ``values``: its further fields, in the form of `bridge.producer.options`.
    """

    line: int
    ticket: bytes
    task: str | None
    payload: bytes
    values: Values = field(default_factory=lambda: NONE)

    @property
    def counts_from_now(self) -> bool:
        """Whether it is due, or expires, some time after it is pushed."""
        return any(value.startswith(b"+") for value in self.values.values())

    def fields(self, now_ms: int = 0) -> dict[str, bytes | str]:
        """The fields of its stream entry. ``now_ms``: the server's time, from which a delay counts."""
        found: dict[str, bytes | str] = {"ticket_id": self.ticket}
        if self.task is not None:
            found["task"] = self.task
        for name, value in self.values.items():
            found[name] = b"%d" % (now_ms + int(value)) if value.startswith(b"+") else value.removeprefix(b"=")
        found["payload"] = self.payload
        return found


@dataclass(frozen=True)
class Rules:
    """The rules for rows.

    - ``key``: the column of the ticket.
    - ``task``: the task of rows that name none.
    - ``default_task``: the lane's default task, or that of a subscription.
    - ``tasks``: all tasks that a row may name: those of the app's lanes.
    - ``max_payload``: most bytes of a payload, as JSON.
    - ``options``: when messages of rows that do not say it are due, as for `push`.
    """

    key: str
    task: str | None
    default_task: str | None
    tasks: Collection[str]
    max_payload: int
    delimiter: str = ","
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def longest_line(self) -> int:
        # Each byte of a payload may be six characters of JSON in the file (\\u0041).
        return max(LINE_ROOM, 6 * self.max_payload) + LINE_ROOM


def format_of(path: str) -> Format:
    """The format of a file, by its suffix. Raises `ConfigurationError` when the suffix is unknown."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    found = _SUFFIXES.get(suffixes[-1]) if suffixes else None
    if found is None:
        shown = "standard input" if path == "-" else path
        raise ConfigurationError(f"cannot tell the format of {shown} from its name: add --format csv or --format json")
    return found


def rows(source: Source, kind: Format, rules: Rules) -> Iterator[Row]:
    """The rows of ``source``, one by one. Raises `InputError` at the first row that cannot be a message."""
    return _Rows(source, rules, "column").of_csv() if kind == "csv" else _Rows(source, rules, "key").of_json()


class _Rows:
    def __init__(self, source: Source, rules: Rules, where: str) -> None:
        self._source = source
        self._rules = rules
        #: What errors call a value's place: a CSV file has columns, an object has keys.
        self._where = where

    # -- CSV ---------------------------------------------------------------------------------------------------------

    def of_csv(self) -> Iterator[Row]:
        source, rules = self._source, self._rules
        # The limit belongs to the module `csv`, not to the reader. It also ends a quoted cell without a closing quote.
        csv.field_size_limit(max(rules.max_payload, MAX_TICKET_BYTES) + 1)
        reader = csv.reader(source.lines(rules.longest_line), strict=True, delimiter=rules.delimiter)
        header = self._next(reader, 1)
        if header is None:
            return
        self._check_header(header)
        width = len(header)
        key = header.index(rules.key)
        task = header.index(TASK) if TASK in header and key != header.index(TASK) else None
        payload = header.index(PAYLOAD) if PAYLOAD in header and key != header.index(PAYLOAD) else None
        options = COLUMNS if payload is None else (*COLUMNS, *RULE_COLUMNS)
        own = [(i, name) for i, name in enumerate(header) if name in options and i != key]
        rest = [(i, name) for i, name in enumerate(header) if i not in (key, task) and (i, name) not in own]
        while True:
            line = source.line + 1
            cells = self._next(reader, line)
            if cells is None:
                return
            if not cells:
                continue  # an empty line
            if len(cells) != width:
                problem = f"the row has {count(len(cells), 'cell')}, the header has {count(width, 'column')}"
                if len(cells) > width:
                    raise source.refusal(f"{problem}; the first cell too many is {_shown(cells[width])}", line=line)
                raise source.refusal(f"{problem}: column {header[len(cells)]!r} is missing", line=line)
            if payload is not None:
                body = self._json_text(cells[payload], line)
            else:
                body = orjson.dumps({name: cells[i] for i, name in rest})
            named = cells[task] if task is not None else ""
            yield self._row(line, cells[key], named or None, body, {name: cells[i] for i, name in own})

    def _next(self, reader: Any, line: int) -> list[str] | None:
        try:
            cells: list[str] = next(reader)
        except StopIteration:
            return None
        except csv.Error as exc:
            said = str(exc)
            if "field larger than field limit" in said or "unexpected end of data" in said:
                said = f"a quoted cell does not end, or is longer than {csv.field_size_limit()} characters"
            raise self._source.refusal(f"not CSV: {said}", line=line) from None
        return cells

    def _check_header(self, header: list[str]) -> None:
        source, key = self._source, self._rules.key
        for at, name in enumerate(header):
            if not name.strip():
                raise source.refusal(f"column {at + 1} has no name", line=1)
            if name in header[:at]:
                raise source.refusal(f"column {name!r} occurs twice", line=1)
        if key not in header:
            raise source.refusal(
                f"there is no column {key!r}{_nearest(key, header)}; name the ticket's with --key", line=1
            )

    def _json_text(self, text: str, line: int) -> bytes:
        raw = text.encode()
        try:
            found = orjson.loads(raw)
        except orjson.JSONDecodeError as exc:
            flaw = _flaw("the cell", raw, exc)
            raise self._source.refusal(
                f"column {PAYLOAD!r}: {flaw}, at character {exc.colno} of the cell {_shown(text)}", line=line
            ) from None
        duplicate = duplicate_key(text, found)
        if duplicate is not None:
            raise self._source.refusal(f"column {PAYLOAD!r}: key {duplicate!r} occurs twice", line=line)
        return raw

    # -- JSON lines --------------------------------------------------------------------------------------------------

    def of_json(self) -> Iterator[Row]:
        source, rules = self._source, self._rules
        for text in source.lines(rules.longest_line):
            if not text.strip():
                continue
            found = self._object(text)
            ticket = found.pop(rules.key, None)
            if isinstance(ticket, int) and not isinstance(ticket, bool):
                ticket = str(ticket)
            if ticket is None:
                raise source.refusal(
                    f"there is no {rules.key!r}{_nearest(rules.key, list(found))}; name the ticket's key with --key"
                )
            if not isinstance(ticket, str):
                raise source.refusal(f"key {rules.key!r}: a ticket is a string or a whole number, not {_shown(ticket)}")
            task = found.pop(TASK, None)
            if not isinstance(task, str | None):
                raise source.refusal(f"key {TASK!r}: a task's name is a string, not {_shown(task)}")
            options = (*COLUMNS, *RULE_COLUMNS) if PAYLOAD in found else COLUMNS
            own = {name: found.pop(name) for name in options if name in found}
            payload = found.get(PAYLOAD, found)
            yield self._row(source.line, ticket, task or None, self._dump(payload), own)

    def _object(self, text: str) -> dict[str, Any]:
        try:
            # orjson is many times faster, but reads integers of more than 64 bits as floats.
            found = (
                json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
                if _LONG_NUMBER.search(text)
                else orjson.loads(text)
            )
        except (ValueError, RecursionError) as exc:
            raise self._not_an_object(text, exc) from None
        if not isinstance(found, dict):
            raise self._source.refusal(f"a line must hold a JSON object, not {_shown(found)}")
        duplicate = duplicate_key(text, found)
        if duplicate is not None:
            raise self._source.refusal(f"key {duplicate!r} occurs twice")
        return found

    def _not_an_object(self, text: str, exc: Exception) -> InputError:
        said = getattr(exc, "msg", "nested too deeply")
        try:
            orjson.loads(text)
        except orjson.JSONDecodeError as refusal:
            return self._source.refusal(_flaw("the line", text.encode(), refusal, said), column=refusal.colno)
        # orjson accepts the line, and Python's parser refuses it.
        return self._source.refusal(said)

    def _dump(self, payload: Any) -> bytes:
        try:
            return orjson.dumps(payload)
        except (TypeError, orjson.JSONEncodeError):
            # An integer of more than 64 bits; see `_object`.
            try:
                raw = json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
                orjson.loads(raw)
            except RecursionError:
                # The other reason why orjson did not write it.
                raise self._source.refusal(f"the {Refused.TOO_DEEP.value}") from None
            except UnicodeEncodeError:
                raise self._source.refusal("a text has half of a surrogate pair, which is not UTF-8") from None
            except orjson.JSONDecodeError as exc:
                # A master would refuse it.
                raise self._source.refusal(_flaw("the line", raw, exc)) from None
            return raw

    # -- both --------------------------------------------------------------------------------------------------------

    def _row(self, line: int, ticket: str, task: str | None, payload: bytes, own: Mapping[str, Any]) -> Row:
        source, rules, where = self._source, self._rules, self._where
        try:
            raw = ticket.encode()
        except UnicodeEncodeError:
            raise source.refusal(f"{where} {rules.key!r}: the ticket cannot be written as UTF-8", line=line) from None
        if not 0 < len(raw) <= MAX_TICKET_BYTES:
            what = f"{len(raw)} bytes long, at most {MAX_TICKET_BYTES} are allowed" if raw else "empty"
            raise source.refusal(f"{where} {rules.key!r}: the ticket is {what}", line=line)
        if task is not None and task not in rules.tasks:
            raise source.refusal(
                f"{where} {TASK!r}: there is no task {_shown(task)}{_nearest(task, rules.tasks)}", line=line
            )
        task = task or rules.task
        if task is None and rules.default_task is None:
            raise source.refusal("the row names no task: add --task NAME, or set bridge_default_task", line=line)
        if is_deep(payload):
            raise source.refusal(f"the {Refused.TOO_DEEP.value}", line=line)
        if len(payload) > rules.max_payload:
            raise source.refusal(
                f"the payload has {len(payload)} bytes of JSON, bridge_max_payload allows {rules.max_payload}",
                line=line,
            )
        if not own and not rules.options:
            return Row(line, raw, task, payload)
        try:
            return Row(line, raw, task, payload, row_values(own, rules.options))
        except PayloadError as exc:
            raise source.refusal(str(exc), line=line) from None


def _nearest(wanted: str, there: Collection[str]) -> str:
    near = difflib.get_close_matches(wanted, list(there), n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    names = [name for name in there if not name.startswith(("celery.", "bridge."))]
    if not names:
        return ""
    return f" (there are {', '.join(map(repr, names[:8]))}{', …' if len(names) > 8 else ''})"


def _flaw(what: str, text: bytes, exc: orjson.JSONDecodeError, said: str = "") -> str:
    """What is wrong with ``text``. ``exc``: orjson's error; ``said``: the message of another parser."""
    reason = why_refused(text, exc)
    if reason is Refused.BAD_JSON:
        return f"not JSON: {said or exc.msg}"
    return f"{what} {reason.value.removeprefix('payload ')}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise json.JSONDecodeError(f"{text} is too large for a number", "", 0)
    return number


def _refuse_constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is not JSON", "", 0)
