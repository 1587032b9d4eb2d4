"""Jobs one after the other, in one session.

python tests/integration/spark/spark_round.py MASTER URL FOLDER push,follow,archive,report,replay,messages [KEY=VALUE …]

A test starts it where each start of Spark would cost it seconds. FOLDER has the files ``log.csv`` and ``landing/*.csv``
and the archive ``lives``; the jobs write to ``archive`` and ``report``, the streams ``ticket_stream`` and ``again``.
``messages`` is ``archive`` with the table of this name only.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bridge.spark.archiving.place import ArchivePlace
from bridge.spark.archiving.reading import Range
from bridge.spark.archiving.run import CONF, Archive, Run
from bridge.spark.archiving.selection import Selection
from bridge.spark.archiving.tables import TABLES
from bridge.spark.job.failures import errors_in_one_line
from bridge.spark.job.session import job_session, parse_conf
from bridge.spark.pushing.batch import push
from bridge.spark.pushing.follow import follow
from bridge.spark.pushing.messages import Mapping
from bridge.spark.pushing.plan import Follow, PushPlan
from bridge.spark.replay import Replay, replay
from bridge.spark.report import Asked, report

STREAM, AGAIN = "ticket_stream", "again"


def main(master: str, url: str, folder: Path, jobs: list[str], conf: dict[str, str]) -> None:
    """Each job says what it did in JSON lines."""

    def plan(source: str, following: Follow | None = None) -> PushPlan:
        place = str(folder / source)
        return PushPlan(place, "csv", url, STREAM, Mapping(), {}, follow=following, progress="json")

    with job_session("a round", master=master, conf={**CONF, **conf}, log=folder / "spark.log") as session:
        for job in jobs:
            match job:
                case "push":
                    push(session, plan("log.csv"))
                case "follow":
                    follow(session, plan("landing", Follow(str(folder / "checkpoint"), available_now=True)))
                case "archive" | "messages":
                    place = ArchivePlace(str(folder / "archive"))
                    tables = tuple(table for table in TABLES if job in ("archive", table.name))
                    kept = Archive(place, url, STREAM, "group", tables, 200, None, None, "json")
                    with place.held():
                        kept.claim()
                        Run(session, kept).run()
                case "report":
                    report(session, Asked(str(folder / "lives"), folder / "report", Range()))
                case "replay":
                    options = {"url": url, "stream": AGAIN, "runId": "again"}
                    asked = Replay(str(folder / "archive"), Selection(Range()), AGAIN, "again", options)
                    replay(session, asked, "json")


if __name__ == "__main__":
    with errors_in_one_line(as_json=True):
        main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4].split(","), parse_conf(sys.argv[5:]))
