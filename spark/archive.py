"""The job that archives a lane: its history, its dead letters and its messages, as Parquet.

    python -m bridge.spark.archive OUT --url redis://localhost:6379/0
    python -m bridge.spark.archive OUT --follow --every 300
    spark-submit spark/archive.py OUT --master yarn …

    OUT/history/date=2026-03-14/batch=7/part-….parquet       what became of every delivery
    OUT/dead/…                                               the dead letters
    OUT/messages/…                                           the messages themselves

Run again with the same folder, it goes on where it was, with each row once, however the last run ended. It only reads;
no consumer group is touched. With ``--progress json`` standard output is JSON lines, for a supervisor:

    {"event": "started", "out": …, "stream": …, "group": …, "tables": ["history", "dead", "messages"]}
    {"event": "archived", "table": "history", "epoch": 3, "rows": 1200}      the files of an epoch are in place
    {"event": "missing", "table": "messages", "epoch": 3, "entries": 12}     had left the stream: with --allow-data-loss
    {"event": "done", "rows": {"history": 1200, …}, "missing": {"messages": 12}, "seconds": 9.1}
    {"event": "failed", "error": "…"}                                        instead of "done"
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # Before all other imports. `start` says what for. A cluster may have a copy of this file alone, and the package.
    beside = not __package__ and Path(__file__).with_name("start.py").exists()
    importlib.import_module("start" if beside else "bridge.spark.start")

import click

from bridge.spark.archiving.place import ArchivePlace
from bridge.spark.archiving.tables import COLUMNS, TABLES
from bridge.spark.job.failures import errors_in_one_line
from bridge.spark.job.options import job_options
from bridge.spark.job.session import parse_conf
from bridge.spark.wire.address import check_server, check_url
from bridge.spark.wire.options import DEFAULT_STREAM, DEFAULT_URL

if TYPE_CHECKING:
    from bridge.spark.job.progress import Progress

DEFAULT_GROUP = "concurrency_stream_group"
#: Entries of one epoch: some hundred MB of Parquet at most, for messages of a usual size.
DEFAULT_MAX_ROWS = 200_000
#: Seconds between two epochs with --follow: each epoch makes files, and many small files are slow to read.
DEFAULT_EVERY_S = 60.0


@click.command()
@click.argument("out")
@click.option("--url", default=DEFAULT_URL, envvar="TICKET_BRIDGE_URL", help="The Redis server [default: localhost].")
@click.option("--stream", default=DEFAULT_STREAM, show_default=True, help="The stream of the lane.")
@click.option("--group", default=DEFAULT_GROUP, show_default=True, help="The consumer group of the lane.")
@click.option("--only", multiple=True, type=click.Choice([*COLUMNS]), help="This table only; may be repeated.")
@click.option(
    "--follow", is_flag=True, help="Go on until SIGTERM or Ctrl-C [default: archive the present entries, and end]."
)
@click.option(
    "--every", type=click.FloatRange(min=0.1), default=DEFAULT_EVERY_S, show_default=True,
    help="With --follow: seconds between two epochs.",
)  # fmt: skip
@click.option(
    "--fail-on-data-loss/--allow-data-loss", default=None,
    help="What to do about entries that left the server before they were archived: fail, or say how many "
    "[default: fail, but only say how many messages and dead letters, which leave in ordinary operation].",
)  # fmt: skip
@click.option(
    "--max-rows", type=click.IntRange(min=1), default=DEFAULT_MAX_ROWS, show_default=True, help="Entries of one epoch."
)
@job_options
def main(
    out: str,
    url: str,
    stream: str,
    group: str,
    only: tuple[str, ...],
    follow: bool,
    every: float,
    fail_on_data_loss: bool | None,
    max_rows: int,
    master: str | None,
    conf: tuple[str, ...],
    progress: Progress,
    spark_log: Path | None,
) -> None:
    """Archive a lane's history, dead letters and messages into the folder OUT, each row once."""
    with errors_in_one_line(as_json=progress == "json"):
        place = ArchivePlace(out)
        url = check_url(url, called="--url")
        # Checked first, since Java takes seconds to start.
        check_server(url, stream)
        configuration = parse_conf(conf)
        from bridge.spark.archiving.run import Archive, archive

        archive(
            Archive(
                place=place,
                url=url,
                stream=stream,
                group=group,
                tables=tuple(table for table in TABLES if not only or table.name in only),
                max_rows=max_rows,
                fail_on_data_loss=fail_on_data_loss,
                every_s=every if follow else None,
                progress=progress,
                master=master,
                log=spark_log,
                conf=configuration,
            )
        )


if __name__ == "__main__":
    main()
