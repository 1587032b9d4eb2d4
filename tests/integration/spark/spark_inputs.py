"""What a round of jobs needs (`spark_round.py`): a log, a folder to follow, an archive."""

from __future__ import annotations

from pathlib import Path

from tests.integration.spark.archives import random_archive

#: Rows of the log, and of what is pushed by following; their tickets.
ROWS, MORE, TICKETS = 60, 20, 7


def write_inputs(folder: Path) -> None:
    """A log, a folder to follow, and the archive of a lane that had a life."""
    folder.mkdir()
    (folder / "landing").mkdir()

    def text(first: int, last: int) -> str:
        return "ticket_id,seq,x\n" + "".join(f"T{n % TICKETS},{n},v{n}\n" for n in range(first, last))

    (folder / "log.csv").write_text(text(0, ROWS))
    (folder / "landing" / "more.csv").write_text(text(ROWS, ROWS + MORE))
    random_archive(1, 60).write(folder / "lives")
