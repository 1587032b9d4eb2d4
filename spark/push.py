"""The job that pushes a log, a table or a growing folder into a ticket stream: each ticket in order, each row once.

    python -m bridge.spark.push events.csv.gz --url redis://localhost:6379/0
    python -m bridge.spark.push /landing --format json --follow --checkpoint /var/lib/push
    spark-submit spark/push.py events.csv.gz --master yarn …

Each row becomes one entry: ``ticket_id``, ``task`` where asked for, and ``payload``, a JSON object of the other
columns. With ``--progress json`` standard output is JSON lines, for a supervisor:

    {"event": "started", "file": …, "stream": …, "partitions": 2, "ordered_by": "column seq", "run": "push-…"}
    {"event": "pushed", "rows": 60000, "rows_per_s": 41200.0}            every half second while it writes
    {"event": "waiting", "reason": "…", "seconds": 12.5}                  while it cannot write
    {"event": "epoch", "epoch": 3, "rows": 500, "seconds": 0.4}           with --follow, after each
    {"event": "done", "rows": 141712, "rows_per_s": 43800.0, "seconds": 3.2, "already": 0, "rejected": 0}
    {"event": "failed", "error": "…"}                                     instead of "done"
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Before all other imports. `start` says what for. A cluster may have a copy of this file alone, and the package.
    beside = not __package__ and Path(__file__).with_name("start.py").exists()
    importlib.import_module("start" if beside else "bridge.spark.start")

import click

from bridge.routing.errors import ConfigurationError, InputError
from bridge.spark.job.eventlog import FORMATS, TABLE, check_readable, format_of
from bridge.spark.job.failures import errors_in_one_line
from bridge.spark.job.options import job_options
from bridge.spark.job.session import job_session, parse_conf
from bridge.spark.pushing.messages import Mapping, parse_map
from bridge.spark.pushing.plan import WRITER_OPTIONS, Follow, PushPlan
from bridge.spark.wire.address import check_server, check_url
from bridge.spark.wire.options import DEFAULT_STREAM, DEFAULT_URL
from bridge.spark.write.options import parse

#: Values of folder names (``store=007``) stay texts: as numbers, two tickets would become one.
_CONF = {"spark.sql.sources.partitionColumnTypeInference.enabled": "false"}
POSITIVE = click.IntRange(min=1)


@click.command()
@click.argument("source", metavar="FILE")
@click.option("--url", default=DEFAULT_URL, envvar="TICKET_BRIDGE_URL", help="The Redis server [default: localhost].")
@click.option("--stream", default=DEFAULT_STREAM, show_default=True, help="The stream to append to.")
@click.option("--format", "kind", type=click.Choice([*FORMATS, TABLE]), help="What FILE is [default: by its name].")
@click.option("--key", default="ticket_id", show_default=True, help="Column that names the ticket.")
@click.option("--seq", help="Column that orders a ticket's rows: whole numbers or times [default: seq, if any].")
@click.option("--order", help="Column of times. Messages of different tickets are written in the order of these times.")
@click.option("--task", help="Task to run for every message [default: the lane's].")
@click.option("--task-column", help="Column that names each message's task.")
@click.option("--due-column", help="Column that says when each message is due: times, or milliseconds since 1970.")
@click.option("--hold-column", help="Column that says whether the ticket waits until then: true or false.")
@click.option("--payload-column", help="Column that holds the payload, as JSON [default: made of the other columns].")
@click.option("--map", "renamed", multiple=True, metavar="MEMBER=COLUMN", help="A column's name in the payload.")
@click.option("--exclude", "excluded", multiple=True, metavar="COLUMN", help="Column that the payload leaves out.")
@click.option("--rejects", metavar="FOLDER", help="Folder for bad rows; without it, one bad row stops the push.")
@click.option(
    "--run-id",
    help="Name of this push: rows that a push of this name has written are not pushed again [default: by content].",
)
@click.option("--again", is_flag=True, help="Push again rows that were pushed before.")
@click.option("--idempotence", help="watermark, ticket or none: how a row is kept from being pushed twice.")
@click.option("--high-water", help="Wait while the stream holds this many entries.")
@click.option("--max-wait", help="Most seconds to wait without progress.")
@click.option("--chunk-size", help="Rows per send.")
@click.option("--window", help="Sends that may be unanswered at once.")
@click.option("--max-payload", help="Largest payload in bytes.")
@click.option("--guard-ttl", help="Seconds for which the server remembers what was written.")
@click.option("--partitions", type=POSITIVE, help="Connections that write at once [default: as many as cores].")
@click.option("--follow", is_flag=True, help="FILE is a folder: push files that appear there, until SIGTERM or Ctrl-C.")
@click.option(
    "--available-now", is_flag=True, help="With --follow: push the present files that are not pushed yet, and end."
)
@click.option("--checkpoint", metavar="FOLDER", help="With --follow: the folder that remembers what was pushed.")
@click.option("--schema", metavar="DDL", help="With --follow: the columns [default: those of the present files].")
@click.option("--files", type=POSITIVE, default=100, show_default=True, help="With --follow: most files in one epoch.")
@job_options
def main(**given: Any) -> None:
    """Pushes the rows of FILE into a stream, each ticket in order.

    FILE is a CSV, JSON lines (both also .gz) or Parquet, a folder of such, or with --format table the name of a table.
    The same push again adds nothing: it goes on where the first one ended.
    """
    with errors_in_one_line(as_json=given["progress"] == "json"):
        plan = plan_of(given)
        # Checked first, since Java takes seconds to start.
        if plan.kind != TABLE:
            check_readable(plan.source)
            if plan.follow is not None and Path(plan.source).is_file():
                raise InputError(f"--follow is for folders, and {plan.source} is a file: push it without --follow")
        check_server(plan.url, plan.stream)
        if plan.follow is not None:
            from bridge.spark.pushing.follow import follow as write
        else:
            from bridge.spark.pushing.batch import push as write
        with job_session(
            "ticket-bridge push", master=plan.master, log=plan.log, retries=plan.once, conf={**_CONF, **plan.conf}
        ) as session:
            write(session, plan)


def plan_of(given: dict[str, Any]) -> PushPlan:
    """The push from the options. Raises ``ConfigurationError`` for options that cannot work; reads no file."""
    writer = {name: given[option] for name, option in WRITER_OPTIONS.items() if given[option] is not None}
    if given["again"] and given["run_id"]:
        raise ConfigurationError("--again makes a new name, and --run-id gives one: leave one of them out")
    follow = _follow(given)
    plan = PushPlan(
        source=given["source"],
        kind=given["kind"] or format_of(given["source"]),
        url=check_url(given["url"], called="--url"),
        stream=given["stream"],
        mapping=Mapping(
            key=given["key"],
            seq=given["seq"],
            order=given["order"],
            task=given["task"],
            task_column=given["task_column"],
            due_column=given["due_column"],
            hold_column=given["hold_column"],
            payload_column=given["payload_column"],
            renamed=parse_map(given["renamed"]),
            excluded=given["excluded"],
        ),
        writer=writer,
        rejects=given["rejects"],
        run_id=given["run_id"],
        again=given["again"],
        follow=follow,
        partitions=given["partitions"],
        master=given["master"],
        conf=parse_conf(given["conf"]),
        progress=given["progress"],
        log=given["spark_log"],
    )
    # There is always a seqColumn. The log says which.
    parse({**plan.writer_options("seq"), **({"runId": plan.run_id} if plan.run_id else {})})
    if follow is not None and plan.kind == TABLE:
        raise ConfigurationError("--follow is for folders: name one, or push the table without it")
    return plan


def _follow(given: dict[str, Any]) -> Follow | None:
    if not given["follow"]:
        for option in ("available_now", "checkpoint", "schema"):
            if given[option]:
                raise ConfigurationError(f"--{option.replace('_', '-')} goes with --follow")
        return None
    for option in ("run_id", "again"):
        if given[option]:
            raise ConfigurationError(
                f"--{option.replace('_', '-')} does not go with --follow: its checkpoint names the push; "
                "another --checkpoint starts again"
            )
    if not given["checkpoint"]:
        raise ConfigurationError("--follow needs --checkpoint: a folder of its own, which remembers what was pushed")
    if given["kind"] is None:
        raise ConfigurationError(f"--follow needs --format {'|'.join(FORMATS)}")
    return Follow(given["checkpoint"], given["available_now"], given["schema"], given["files"])


if __name__ == "__main__":
    main()
