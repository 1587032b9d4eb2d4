"""A CSV whose last quote is never closed is found, as Spark reads it, and no other. Without Spark."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bridge.routing.errors import InputError
from bridge.spark.job import csv_quotes
from bridge.spark.job.csv_quotes import refuse_unclosed

HEADER = "ticket_id,x\n"
#: Rows, and the line whose quote is never closed. Spark reads the others without taking one row for a part of another,
#: or takes the end of the file for no part of a cell.
UNCLOSED = {
    'A,"x\nB,2\nC,3\n': 2,
    'A,1\nB,"x\nC,""3""\n': 3,
    'A,"1\n2"\nB,"\nC,3': 4,
    'A,1\r\nB,"x\r\nC,2\r\n': 3,
    'A,1\nB,"': 3,
}
CLOSED = (
    "A,1\nB,2\n",
    'A,"1\n2"\nB,"3, ""4"""\n',
    'A,"x,"\nB,""\n',
    'A,5" wide\nB, "x\n',
    'A,"x"y\nB,"x" \n',
    'A,"he said ,"hi\nB,2\n',
    'A,"x\nB,"2"\nC,3\n',
    'A,"x\\"\nB,"y"',
    "",
)


@pytest.fixture(params=[1, 5, csv_quotes.PIECE], ids=["bytes", "pieces", "whole"])
def _in_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_quotes, "PIECE", request.param)


@pytest.mark.usefixtures("_in_pieces")
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "mark"])
@pytest.mark.parametrize("packed", [False, True], ids=["text", "gzip"])
def test_a_quote_that_is_never_closed_is_named_with_its_line(tmp_path: Path, packed: bool, mark: str) -> None:
    path = tmp_path / ("log.csv.gz" if packed else "log.csv")

    def write(text: str) -> None:
        content = (mark + text).encode()
        path.write_bytes(gzip.compress(content) if packed else content)

    for rows, line in UNCLOSED.items():
        write(HEADER + rows)
        with pytest.raises(InputError) as refused:
            refuse_unclosed(path)
        assert str(refused.value) == (
            f"the quote that begins a cell in line {line} of {path} is never closed: all that follows would be one cell"
        )
    for rows in CLOSED:
        write(f'"ticket_id,","x"\n{rows}')
        refuse_unclosed(path)


def test_what_cannot_be_unpacked_here_is_left_to_spark(tmp_path: Path) -> None:
    for name in ("log.csv.bz2", "log.csv.zst", "log.csv.gz"):
        (tmp_path / name).write_bytes(b'a,"b\n')
        refuse_unclosed(tmp_path / name)
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b'a,"b\n')[:-9])
    refuse_unclosed(tmp_path / "cut.csv.gz")
