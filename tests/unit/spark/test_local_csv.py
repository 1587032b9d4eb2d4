"""A CSV whose last quote is never closed, or whose lines end in several ways, is found, and no other. Without Spark."""

from __future__ import annotations

import gzip
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from bridge.routing.errors import InputError
from bridge.spark.job import local_csv
from bridge.spark.job.local_csv import header_of, refuse_flaws

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


#: Rows behind a header that ends in the first kind, and the line that has another end; None: all end alike.
ENDS = {
    ("\n", "A,1\nB,2\n"): None,
    ("\n", 'A,"1\r\n\r2"\nB,2\n'): None,
    ("\r\n", 'A,"1\n2\r3""\n"\r\nB,2'): None,
    ("\r", 'A,1\rB,"2\n"\r'): None,
    ("\n", 'A,"\r\n"\nB,2\r\nC,3\n'): 4,
    ("\n", "A,1\nB,2\rC,3\n"): 3,
    ("\r\n", 'A,"\n"\r\nB,2\nC,3\r\n'): 4,
    ("\r\n", "A,1\r\nB,2\rC,3\r\n"): 3,
    ("\r\n", 'A,"1"\n'): 2,
    ("\r", "A,1\rB,2\n"): 1,
    # Spark takes this for the end of all lines.
    (',"y\n"\r\n', "A,1,2\r\n"): 2,
}


def _first_end(rows: str) -> str:
    found = re.search(r"\r\n|\n", rows)
    return found[0] if found else "\n"


@pytest.fixture(params=[1, 5, local_csv.PIECE], ids=["bytes", "pieces", "whole"])
def _in_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_csv, "PIECE", request.param)


@pytest.mark.usefixtures("_in_pieces")
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "mark"])
@pytest.mark.parametrize("packed", [False, True], ids=["text", "gzip"])
def test_a_quote_that_is_never_closed_is_named_with_its_line(tmp_path: Path, packed: bool, mark: str) -> None:
    path = tmp_path / ("log.csv.gz" if packed else "log.csv")

    def write(text: str) -> None:
        content = (mark + text).encode()
        path.write_bytes(gzip.compress(content) if packed else content)

    for rows, line in UNCLOSED.items():
        write(f"ticket_id,x{_first_end(rows)}{rows}")
        with pytest.raises(InputError) as refused:
            refuse_flaws(path)
        assert str(refused.value) == (
            f"the quote that begins a cell in line {line} of {path} is never closed: all that follows would be one cell"
        )
    for rows in CLOSED:
        write(f'"ticket_id,","x"{_first_end(rows)}{rows}')
        refuse_flaws(path)


@pytest.mark.usefixtures("_in_pieces")
def test_a_line_that_ends_in_another_way_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    for (first, rows), line in ENDS.items():
        path.write_bytes(f"ticket_id,x{first}{rows}".encode())
        with nullcontext() if line is None else pytest.raises(InputError) as refused:
            refuse_flaws(path)
        if refused is not None:
            assert str(refused.value).startswith(f"line {line} of {path} does not end as the first line break"), rows


@pytest.mark.parametrize(
    ("content", "header"),
    [
        (b"ticket_id,x\nA,1\n", ["ticket_id", "x"]),
        (b"\r\n\xef\xbb\xbfa", ["\ufeffa"]),
        (b'\xef\xbb\xbf"a ""b""\n,", c ,\r\n1', ['a "b"\n,', " c ", ""]),
        (b"caf\xe9\n", ["caf\ufffd"]),
        (b"\n", None),
        (b"x" * 200_000, None),
    ],
    ids=["plain", "mark", "quotes", "bytes", "empty", "long"],
)
def test_the_header_is_the_first_row(tmp_path: Path, content: bytes, header: list[str] | None) -> None:
    (tmp_path / "log.csv").write_bytes(content)
    assert header_of(tmp_path / "log.csv") == header
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(content))
    assert header_of(tmp_path / "log.csv.gz") == header
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(content)[:-9])
    assert header_of(tmp_path / "cut.csv.gz") in (header, None)


def test_what_cannot_be_unpacked_here_is_left_to_spark(tmp_path: Path) -> None:
    for name in ("log.csv.bz2", "log.csv.zst", "log.csv.gz"):
        (tmp_path / name).write_bytes(b'a,"b\n')
        refuse_flaws(tmp_path / name)
        assert header_of(tmp_path / name) is None
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b'a,"b\n')[:-9])
    refuse_flaws(tmp_path / "cut.csv.gz")
