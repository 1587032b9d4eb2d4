"""The job that computes the final state of every incident from an incident log alone.

    python -m bridge.spark.incidents events.csv.gz --out states.jsonl

With ``--priority``, given once or more, it also names the events of each incident that have one of these priorities.

The workers keep the same state event by event. This job shares no code with them, so a mistake in either shows.
Everything is built from Spark's own functions, over each ticket's events as a sorted array.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # Before all other imports. `start` says what for. A cluster may have a copy of this file alone, and the package.
    beside = not __package__ and Path(__file__).with_name("start.py").exists()
    importlib.import_module("start" if beside else "bridge.spark.start")

import click

from bridge.routing.errors import InputError
from bridge.spark.job.eventlog import FORMATS, check_readable, format_of
from bridge.spark.job.failures import errors_in_one_line

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The columns of an incident log that its state depends on.
COLUMNS = (
    "ticket_id",
    "seq",
    "activity",
    "assignment_group",
    "timestamp",
    "opened_at",
    "priority",
    "made_sla",
)
#: The clock of the service level stops in these states, and in all that begin with the word below.
DONE_STATES = ("Resolved", "Closed")
WAITING_PREFIX = "Awaiting"


def expected_states(events: DataFrame, priorities: Sequence[str] = ()) -> DataFrame:
    """Per incident its final state: columns ``ticket_id`` and ``state``, a struct of strings.

    With ``priorities`` there is a third column, ``seqs``: the numbers of the events with one of these, in order.

    ``events`` needs ``COLUMNS``; nulls count as empty strings. The order is that of ``seq``, a whole number, which no
    event may lack; a ``timestamp`` may be empty. The members of ``state``: ``seq``, ``status`` (its activity),
    ``assignment_group``, ``updated_at`` (its timestamp), ``opened_at``, ``priority`` and ``made_sla`` of the last event
    as in the log; ``events``, how many; ``reassignments``, events whose group differs from the event before;
    ``reopenings``, events that leave Resolved or Closed for another state; ``sla_seconds``, whole seconds between
    neighbouring events while the state before was neither done nor awaiting something (never less than 0 for a pair,
    and 0 where one of them has no time); ``digest``, a fingerprint of all events in order:
    d ← (31 d + crc32("seq|activity|group|time")) mod 2^32, from 0.
    """
    from pyspark.sql import functions as fn

    for name in COLUMNS:
        if name not in events.columns:
            raise InputError(f"the log has no column {name!r}, which the state of an incident depends on")
    texts = {name: fn.coalesce(fn.col(name).cast("string"), fn.lit("")) for name in COLUMNS}
    time = _read(texts, "timestamp", "timestamp", "time")
    event = fn.struct(
        _read(texts, "seq", "long", "whole number").alias("place"),  # first: the array is sorted by it
        *(texts[name].alias(name) for name in COLUMNS if name != "ticket_id"),
        fn.when(texts["timestamp"] != "", fn.unix_timestamp(time)).alias("second"),
    )
    per_ticket = events.groupBy(texts["ticket_id"].alias("ticket_id"))
    grouped = per_ticket.agg(fn.sort_array(fn.collect_list(event)).alias("es"))
    es = fn.col("es")
    last = fn.element_at(es, -1)

    def before(place: Column) -> Column:
        return fn.get(es, place - 1)

    def is_done(status: Column) -> Column:
        return status.isin(*DONE_STATES)

    reassigned = fn.filter(es, lambda e, i: (i > 0) & (e["assignment_group"] != before(i)["assignment_group"]))
    reopened = fn.filter(es, lambda e, i: (i > 0) & is_done(before(i)["activity"]) & ~is_done(e["activity"]))

    def on_the_clock(e: Column, i: Column) -> Column:
        earlier = before(i)
        runs = (i > 0) & ~is_done(earlier["activity"]) & ~earlier["activity"].startswith(WAITING_PREFIX)
        return fn.when(runs, fn.greatest(e["second"] - earlier["second"], fn.lit(0))).otherwise(fn.lit(0))

    sla = fn.aggregate(fn.transform(es, on_the_clock), fn.lit(0).cast("long"), lambda total, s: total + s)

    def chain(digest: Column, e: Column) -> Column:
        text = fn.concat_ws("|", e["seq"], e["activity"], e["assignment_group"], e["timestamp"])
        return fn.pmod(digest * 31 + fn.crc32(text.cast("binary")), fn.lit(2**32))

    state = {
        "seq": last["seq"],
        "events": fn.size(es),
        "status": last["activity"],
        "assignment_group": last["assignment_group"],
        "updated_at": last["timestamp"],
        "opened_at": last["opened_at"],
        "priority": last["priority"],
        "made_sla": last["made_sla"],
        "reassignments": fn.size(reassigned),
        "reopenings": fn.size(reopened),
        "sla_seconds": sla,
        "digest": fn.aggregate(es, fn.lit(0).cast("long"), chain),
    }
    columns = [fn.struct(*(value.cast("string").alias(name) for name, value in state.items())).alias("state")]
    if priorities:
        wanted = fn.filter(es, lambda e: e["priority"].isin(*priorities))
        columns.append(fn.transform(wanted, lambda e: e["place"]).alias("seqs"))
    return grouped.select("ticket_id", *columns)


def _read(texts: Mapping[str, Column], name: str, kind: str, what: str) -> Column:
    """The column ``name`` as a value of this kind. Spark ends with an error of one line where it is none."""
    from pyspark.sql import functions as fn

    from bridge.spark.write.columns import in_one_line
    from bridge.spark.write.limits import REFUSED

    ticket, value = (fn.substring(in_one_line(texts[column]), 1, 60) for column in ("ticket_id", name))
    said = fn.format_string(f"{REFUSED}an event of ticket '%s' has no {what} as its {name}: '%s'", ticket, value)
    return fn.coalesce(texts[name].try_cast(kind), fn.raise_error(said))


def write_states(states: DataFrame, out: str) -> int:
    """Writes one JSON line per incident, by ticket, to ``out`` (``-``: standard output); returns how many.

    A file appears whole or not at all.
    """
    from pyspark.sql import functions as fn

    lines = states.orderBy("ticket_id").select(fn.to_json(fn.struct(*states.columns)))
    if out == "-":
        return sum(1 for row in lines.toLocalIterator() if print(row[0]) is None)
    target = Path(out)
    try:
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            count = 0
            for row in lines.toLocalIterator():
                file.write(row[0] + "\n")
                count += 1
        whole = Path(temporary)
        whole.chmod(0o644)
        whole.replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return count


@click.command()
@click.argument("events")
@click.option("--out", required=True, help="File for the JSON lines; - for standard output.")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="Format of EVENTS [default: by its name].")
@click.option("--priority", multiple=True, help='Also name the events with this priority: "seqs": [1, 2, …].')
@click.option("--master", help="Spark master [default: local[*]].")
@click.option("--spark-log", type=click.Path(path_type=Path), help="Keep Spark's own output in this file.")
def main(
    events: str, out: str, kind: str | None, priority: tuple[str, ...], master: str | None, spark_log: Path | None
) -> None:
    """Computes the final state of every incident in EVENTS, as JSON lines {"ticket_id": …, "state": {…}}."""
    with errors_in_one_line():
        kind = kind or format_of(events)
        check_readable(events)

        from bridge.spark.job.eventlog import read_events
        from bridge.spark.job.session import job_session

        with job_session("ticket-bridge incidents", master=master, log=spark_log) as session:
            count = write_states(expected_states(read_events(session, events, kind), priority), out)
        print(f"{count:,} incidents", file=sys.stderr)


if __name__ == "__main__":
    main()
