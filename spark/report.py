"""The job that reports on an archive: tables on the terminal, Parquet, and one HTML page.

    python -m bridge.spark.report archive --out report
    spark-submit spark/report.py archive --out report --master yarn …

The page defines its terms: it shows the list in ``bridge.spark.reporting.definitions``.
``--out`` gets ``report.html``, which needs no network and no other file, and ``tables/<name>/``, Parquet. Everything is
aggregated by Spark; the driver sees no more than the rows that are shown.

With ``--progress json`` standard output is JSON lines, for a supervisor:

    {"event": "started", "archive": …, "out": …}
    {"event": "table", "name": "tasks", "rows": 3}                        as each is written
    {"event": "done", "messages": 141712, …, "page": "report/report.html", "seconds": 14.2}
    {"event": "failed", "error": "…"}                                     instead of "done"
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # Before all other imports. `start` says what for. A cluster may have a copy of this file alone, and the package.
    beside = not __package__ and Path(__file__).with_name("start.py").exists()
    importlib.import_module("start" if beside else "bridge.spark.start")

import click

from bridge.routing.errors import ConfigurationError, InputError
from bridge.spark.archiving.place import lane_of
from bridge.spark.archiving.reading import Range, check_archive
from bridge.spark.job.failures import emit, errors_in_one_line
from bridge.spark.job.options import job_options
from bridge.spark.job.session import job_session, parse_conf

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from bridge.spark.job.progress import Progress

#: The totals in the last line of output as JSON.
_TOLD = (
    *("messages", "tickets", "done", "dropped", "dead", "refused", "left_out", "skipped", "undone"),
    *("executions", "retries", "failures", "losses"),
)


@dataclass(frozen=True)
class Asked:
    """The options of one report."""

    archive: str
    out: Path
    within: Range
    #: Rows of a table that the terminal and the page show; Parquet has them all.
    top: int = 20
    #: The range as the user wrote it, for the page.
    start: str | None = None
    end: str | None = None


@click.command()
@click.argument("archive")
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder for the report.")
@click.option("--from", "start", help="Messages enqueued from this time on (UTC), or from this id on.")
@click.option("--to", "end", help="Messages enqueued before this time (UTC), or up to this id.")
@click.option("--stream", help="Refuse the archive of another stream.")
@click.option("--group", help="Refuse the archive of another consumer group.")
@click.option("--top", type=click.IntRange(1, 1000), default=20, show_default=True, help="Rows of a table to show.")
@job_options
def main(
    archive: str,
    out: Path,
    start: str | None,
    end: str | None,
    stream: str | None,
    group: str | None,
    top: int,
    master: str | None,
    conf: tuple[str, ...],
    progress: Progress,
    spark_log: Path | None,
) -> None:
    """Reports on ARCHIVE: how long messages waited and ran, what failed, which tickets are slow or hot."""
    with errors_in_one_line(as_json=progress == "json"):
        asked = Asked(archive, out, Range.of(start, end), top, start, end)
        configuration = parse_conf(conf)
        # Checked first, since Java takes seconds to start.
        check_archive(archive)
        check_lane(archive, stream, group)
        check_out(out)
        if importlib.util.find_spec("jinja2") is None:
            raise ConfigurationError("a report needs Jinja2: pip install 'ticket-bridge[spark]'")

        began = time.monotonic()
        if progress == "json":
            emit(event="started", archive=archive, out=str(out))
        from bridge.spark.job.progress import Display

        display = Display(progress)
        with job_session("ticket-bridge report", master=master, log=spark_log, conf=configuration) as session:
            found = report(session, asked, display.table)
        display.close()
        _tell_end(found, asked, progress, time.monotonic() - began)


def check_lane(archive: str, stream: str | None, group: str | None) -> None:
    """Raises ``InputError`` for an archive of another stream or group than the user named, or of an unknown one."""
    if stream is None and group is None:
        return
    found = lane_of(archive)
    if found is None:
        raise InputError(f"{archive} does not say which stream and group it is of; leave out -s, --stream and --group")
    if stream not in (None, found[0]) or group not in (None, found[1]):
        raise InputError(f"{archive} is the archive of stream {found[0]!r}, group {found[1]!r}")


def check_out(out: Path) -> None:
    """Makes the folder. Raises ``InputError`` when that fails, or the folder cannot be written to."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".report.html.new"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error.strerror}") from None


def report(session: SparkSession, asked: Asked, tell: Callable[[str, int], None] | None = None) -> dict[str, Any]:
    """Computes and writes the report. Returns the rows that the page shows, by table, at most ``asked.top`` of each.

    ``tell`` is called with the name and the number of rows of each table that was written. Raises ``InputError`` when
    the archive holds no history of the range.
    """
    from bridge.spark.reporting.page import page
    from bridge.spark.reporting.results import results

    found = results(session, asked.archive, asked.within, asked.top, asked.out / "tables", tell)
    text = page(
        found, archive=asked.archive, lane=lane_of(asked.archive), start=asked.start, end=asked.end, top=asked.top
    )
    made = asked.out / ".report.html.new"
    # A page appears whole or not at all.
    made.write_text(text, encoding="utf-8")
    made.replace(asked.out / "report.html")
    return found


def _tell_end(found: dict[str, Any], asked: Asked, progress: Progress, seconds: float) -> None:
    page = str(asked.out / "report.html")
    if progress == "json":
        counts = {name: found["totals"][name] for name in _TOLD}
        emit(event="done", **counts, page=page, seconds=round(seconds, 3))
    elif progress == "text":
        from bridge.spark.reporting.terminal import show

        show(found, lane_of(asked.archive))
        print(f"the page: {page}\nthe tables: {asked.out / 'tables'}/<name>, Parquet", flush=True)


if __name__ == "__main__":
    main()
