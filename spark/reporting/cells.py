"""HTML tables whose numbers can be sorted: what is shown is for people, ``data-v`` is the number behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from spark.reporting.charts import escaped
from spark.reporting.numbers import NONE, visible

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A column: its heading, the value's key in a row, how it is shown, and what the heading's tooltip says."""

    title: str
    key: str
    shown: Callable[[Any], str] | None = None
    help: str = ""
    #: A number above 0 is bad news.
    bad: bool = False

    @property
    def words(self) -> bool:
        """Whether it holds text."""
        return self.shown is None


def table(name: str, columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """The rows as a table; its first column names them."""
    head = "".join(
        f'<th scope="col"{_class("text" if column.words else "")}{_title(column.help)}>'
        f'<button type="button">{escaped(column.title)}</button></th>'
        for column in columns
    )
    lines = ("".join(_cell(column, row, column is columns[0]) for column in columns) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table id="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(column: Column, row: Row, first: bool) -> str:
    value = row[column.key]
    if column.shown is None:
        text = escaped(visible(value)) if value else NONE
        opening, closing = ('<th scope="row"', "</th>") if first else ("<td", "</td>")
        return f'{opening} class="text" data-v="{text if value else ""}"><bdi title="{text}">{text}</bdi>{closing}'
    look = "zero" if value == 0 else "bad" if column.bad and value else ""
    return f'<td{_class(look)} data-v="{_number(value)}">{column.shown(value)}</td>'


def _number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC).timestamp():.6f}"
    return repr(value)


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _title(text: str) -> str:
    return f' title="{escaped(text)}"' if text else ""
