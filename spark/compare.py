"""The job that compares the states that tasks keep with those that they should be.

    python -m bridge.spark.compare states.jsonl --url redis://localhost:6379/0 --stream ticket_stream --group billing

``states.jsonl`` has a line ``{"ticket_id": …, "state": {…}}`` for each ticket, as ``bridge.spark.incidents`` writes it.
Values are compared as texts: 4 and "4" are equal. With ``--progress json`` the last line is

    {"event": "done", "tickets": 3500, "equal": 3500, "other": 0, "differences": []}

``other``: tickets that have a state and are not in the file. ``differences``: the first few tickets whose states
differ, or that have none. The exit code is 1 when there is any of them, unless ``--any-result`` is given.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # Before all other imports. `start` says what for. A cluster may have a copy of this file alone, and the package.
    beside = not __package__ and Path(__file__).with_name("start.py").exists()
    importlib.import_module("start" if beside else "bridge.spark.start")

import click

from bridge.spark.job.eventlog import check_readable
from bridge.spark.job.failures import emit, errors_in_one_line
from bridge.spark.job.options import job_options
from bridge.spark.job.session import job_session, parse_conf
from bridge.spark.wire.address import check_server, check_url
from bridge.spark.wire.options import DEFAULT_STREAM, DEFAULT_URL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bridge.spark.job.progress import Progress

#: Tickets that a result names.
NAMED = 3


@click.command()
@click.argument("expected")
@click.option("--url", default=DEFAULT_URL, envvar="TICKET_BRIDGE_URL", help="The Redis server [default: localhost].")
@click.option("--stream", default=DEFAULT_STREAM, show_default=True, help="The stream of the tickets.")
@click.option("--group", required=True, help="The subscription: the name of its consumer group.")
@click.option("--any-result", is_flag=True, help="Exit with 0 also when states are not equal.")
@job_options
def main(
    expected: str,
    url: str,
    stream: str,
    group: str,
    any_result: bool,
    master: str | None,
    conf: tuple[str, ...],
    progress: Progress,
    spark_log: Path | None,
) -> None:
    """Compares the states of tickets with those in the JSON lines EXPECTED."""
    with errors_in_one_line(as_json=progress == "json"):
        configuration = parse_conf(conf)
        check_readable(expected)
        # Checked first, since Java takes seconds to start.
        check_server(check_url(url, called="--url"), stream)
        options = {"url": url, "stream": stream, "group": group}
        with job_session("ticket-bridge compare", master=master, log=spark_log, conf=configuration) as session:
            result = compared(states(session, options), expected_states(session, expected))
    if progress == "json":
        emit(event="done", **result)
    elif progress == "text":
        print(f"{result['equal']:,} of {result['tickets']:,} states are equal; {result['other']:,} other tickets")
        for ticket in result["differences"]:
            print(f"not equal: {ticket}")
    if not any_result and (result["equal"] != result["tickets"] or result["other"]):
        sys.exit(1)


def states(session: SparkSession, options: dict[str, str]) -> DataFrame:
    """The states as they are, by `redisstate`: ``ticket_id`` and ``state``, a map of names to values as text.

    The state of a damaged one is null.
    """
    from pyspark.sql import functions as fn

    found = session.read.format("redisstate").options(**options, damaged="row").load()
    # A state's values are JSON. To get a JSON string without its quotes, it is put into an array, which is parsed as
    # array<string>.
    text = fn.transform_values(
        "state", lambda _, value: fn.from_json(fn.concat(fn.lit("["), value, fn.lit("]")), "array<string>")[0]
    )
    return found.select("ticket_id", text.alias("state"))


def expected_states(session: SparkSession, path: str) -> DataFrame:
    """The states of a file of JSON lines, with the columns of `states`."""
    from bridge.spark.job.paths import to_read

    lines = session.read.schema("ticket_id STRING, state MAP<STRING, STRING>").option("mode", "FAILFAST")
    return lines.json(to_read(path))


def compared(actual: DataFrame, expected: DataFrame) -> dict[str, Any]:
    """How many tickets have the expected state, and which have not. Both have the columns of `states`."""
    from pyspark.sql import functions as fn

    def sorted_entries(rows: DataFrame, name: str) -> DataFrame:
        # Maps cannot be compared, and have no order.
        return rows.select(
            "ticket_id", fn.sort_array(fn.map_entries("state")).alias(name), fn.lit(1).alias(f"has_{name}")
        )

    both = sorted_entries(expected, "wanted").join(sorted_entries(actual, "found"), "ticket_id", "full")
    is_expected = fn.col("has_wanted").isNotNull()
    is_equal = is_expected & fn.coalesce(fn.col("wanted") == fn.col("found"), fn.lit(False))
    differs = fn.when(is_expected & ~is_equal, fn.col("ticket_id"))
    row = both.agg(
        fn.count(fn.when(is_expected, 1)).alias("tickets"),
        fn.count(fn.when(is_equal, 1)).alias("equal"),
        fn.count(fn.when(~is_expected, 1)).alias("other"),
        fn.slice(fn.array_sort(fn.collect_set(differs)), 1, NAMED).alias("differences"),
    ).first()
    assert row is not None
    return row.asDict()


if __name__ == "__main__":
    main()
