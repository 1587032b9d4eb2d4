"""Archives made by hand in exactly the form that ``bridge.spark.archive`` writes, and a random one."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bridge.routing.ids import id_key

TIME = pa.timestamp("us", tz="UTC")
SCHEMAS = {
    "history": pa.schema(
        [
            *((name, pa.string()) for name in ("history_id",)),
            ("row", pa.int32()),
            *((name, pa.string()) for name in ("message_id", "ticket_id", "task", "consumer")),
            ("attempt", pa.int32()),
            ("fence", pa.int64()),
            *((name, TIME) for name in ("enqueued_at", "dispatched_at", "started_at")),
            ("service_ms", pa.float64()),
            ("what", pa.string()),
            ("written_at", TIME),
        ]
    ),
    "dead": pa.schema(
        [
            *((name, pa.string()) for name in ("letter_id", "message_id", "ticket_id", "task", "payload", "reason")),
            *((name, pa.string()) for name in ("error", "traceback")),
            ("attempts", pa.int32()),
            ("consumer", pa.string()),
            ("fence", pa.int64()),
            ("at", TIME),
            ("fields", pa.map_(pa.string(), pa.string())),
        ]
    ),
    "messages": pa.schema(
        [
            *((name, pa.string()) for name in ("message_id", "ticket_id", "task", "payload")),
            ("fields", pa.map_(pa.string(), pa.string())),
            ("enqueued_at", TIME),
        ]
    ),
}
_TIME_OF_ROW = {"history": "written_at", "dead": "at", "messages": "enqueued_at"}

Row = dict[str, Any]
START_MS = 1_773_480_287_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(us: float) -> datetime:
    """Unix microseconds as a time."""
    return EPOCH + timedelta(microseconds=int(us))


@dataclass
class Archive:
    """The rows of an archive."""

    history: list[Row] = field(default_factory=list)
    dead: list[Row] = field(default_factory=list)
    messages: list[Row] = field(default_factory=list)

    def write(self, folder: Path, *, batches: int = 2) -> Path:
        """Writes it, each table in ``batches`` batches; a table without rows has no folder."""
        for name, schema in SCHEMAS.items():
            files: dict[tuple[str, int], list[Row]] = defaultdict(list)
            for i, row in enumerate(getattr(self, name)):
                files[(f"{row[_TIME_OF_ROW[name]]:%Y-%m-%d}", i % batches)].append(row)
            for (date, batch), rows in files.items():
                path = folder / name / f"date={date}" / f"batch={batch}"
                path.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.Table.from_pylist(rows, schema=schema), path / "part-0.parquet")
        folder.mkdir(exist_ok=True)
        return folder


@dataclass
class Line:
    """One row of the history before it has its id. Times in microseconds, 0 where there is none."""

    at_us: int
    message_id: str
    ticket: str
    task: str
    what: str
    consumer: str = ""
    attempt: int = 0
    fence: int = 0
    started_us: int = 0
    service_ms: float = 0.0


def history(lines: Iterable[Line], *, rows_of_an_entry: int = 2) -> list[Row]:
    """The rows that a leader would have written, several to an entry, many entries to a millisecond."""
    rows: list[Row] = []
    # From <ms>-9 on: the next one of that millisecond comes before it as text.
    entries: dict[int, int] = defaultdict(lambda: 9)
    place = 0
    for line in sorted(lines, key=lambda one: one.at_us):
        ms = line.at_us // 1000
        if place % rows_of_an_entry == 0 or not rows or not rows[-1]["history_id"].startswith(f"{ms}-"):
            entries[ms] += 1
            place = 0
        ran = line.started_us > 0
        rows.append(
            {
                "history_id": f"{ms}-{entries[ms] - 1}",
                "row": place,
                "message_id": line.message_id,
                "ticket_id": line.ticket,
                "task": line.task,
                "consumer": line.consumer,
                "attempt": line.attempt,
                "fence": line.fence,
                "enqueued_at": moment(id_key(line.message_id)[0] * 1000),
                "dispatched_at": moment(line.started_us - 500) if ran else None,
                "started_at": moment(line.started_us) if ran else None,
                "service_ms": line.service_ms if ran else None,
                "what": line.what,
                "written_at": moment(ms * 1000),
            }
        )
        place += 1
    return rows


def letter(at_us: int, message_id: str, reason: str, **more: Any) -> Row:
    """One dead letter."""
    empty = {"ticket_id": None, "task": None, "payload": None, "error": "", "traceback": "", "attempts": 0}
    return {
        "letter_id": f"{at_us // 1000}-{at_us % 1000}",
        "message_id": message_id,
        "reason": reason,
        **empty,
        "consumer": "",
        "fence": 0,
        "at": moment(at_us),
        "fields": None,
        **more,
    }


def message(message_id: str, ticket: str | None, payload: str | None, **more: Any) -> Row:
    """One archived message."""
    at = moment(id_key(message_id)[0] * 1000)
    body = {"ticket_id": ticket, "task": None, "payload": payload, "fields": None, "enqueued_at": at}
    return {"message_id": message_id, **body, **more}


def random_archive(seed: int, count: int = 400) -> Archive:
    """``count`` messages whose lives hold everything that a history can: retries, losses, replays, refusals."""
    draw = random.Random(seed)
    made = Archive()
    lines: list[Line] = []
    tickets = [f"T-{i}" for i in range(12)] + ["<script>alert(1)</script>", "naïve ✓ ticket", "a\x00b\u202ec"]
    consumers = [f"w{i}@host" for i in range(1, 4)]
    at_us = START_MS * 1000
    fence = at_us
    for number in range(count):
        at_us += draw.choice((0, 0, 300, 2_000, 40_000))
        # Ids of one millisecond differ in their second number, beyond 9; one in a while is made by hand.
        message_id = f"{at_us // 1000}-{number}" if draw.random() < 0.97 else f"{number + 5}-{number}"
        ticket = draw.choice(tickets) if draw.random() < 0.7 else tickets[0]
        task = draw.choice(("shop.apply", "shop.notify", "shop.audit"))
        now = at_us
        if draw.random() < 0.04:
            now += draw.randrange(1, 9_000)
            lines.append(Line(now, message_id, "", "", "refused"))
            made.dead.append(
                letter(now, message_id, draw.choice(("payload is not JSON", "no ticket_id")), error="at 1")
            )
            continue
        if draw.random() < 0.02:
            lines.append(Line(now + 10, message_id, ticket, task, "stale"))
            continue
        for life in range(draw.choice((1, 1, 1, 2))):
            ended = False
            if life:
                now += draw.randrange(1, 50_000)
                lines.append(Line(now, message_id, ticket, task, "replayed"))
            for attempt in range(1, 5):
                fence += 1
                consumer = draw.choice(consumers)
                # Some come again at once: their rows are in one millisecond.
                quick = draw.random() < 0.3
                started = now if quick else now + draw.randrange(-200, 400_000)
                # Thousandths of a millisecond, as a worker's clock has them; some executions take none at all.
                ran_us = 0 if quick else draw.choice((0, draw.randrange(20, 900), draw.randrange(1_000, 200_000)))
                ends = {
                    "done": 60,
                    "dropped": 5,
                    "failed": 12,
                    "nacked": 6,
                    "lost": 8,
                    "returned": 8,
                    "dead": 6,
                    "stop": 2,
                }
                what = draw.choices(list(ends), list(ends.values()))[0]
                if what == "stop":
                    break
                known = what != "returned" and (what != "lost" or draw.random() < 0.5)
                now = max(started + ran_us, now) + (10 if quick else draw.randrange(100, 3_000))
                given_up = what == "dead" and draw.random() < 0.3
                if given_up:
                    lines.append(Line(now, message_id, ticket, task, "dead"))
                else:
                    times = (started, ran_us / 1000) if known else (0, 0.0)
                    lines.append(Line(now, message_id, ticket, task, what, consumer, attempt, fence, *times))
                if what == "lost" and draw.random() < 0.5:
                    lines.append(Line(now + 5, message_id, "", "", "stale", "", 0, fence, started, ran_us / 1000))
                if what == "dead":
                    fields = {"ticket_id": ticket, "task": task, "error": f"ValueError: {number}", "attempts": attempt}
                    made.dead.append(letter(now, message_id, f"gave up after {attempt} attempts", **fields))
                if what in ("done", "dropped", "dead"):
                    ended = what == "dead"
                    break
            if not ended:
                break
    # What the subscription did not want, and what it was too far behind for
    for number, what in enumerate(("left out", "skipped", "left out", "left out")):
        at_us += 1000
        lines.append(Line(at_us + 50, f"{at_us // 1000}-{count + number}", "", "", what))
    made.history = history(lines)
    draw.shuffle(made.history)
    for id_ in sorted({line.message_id for line in lines})[::7]:
        # Some were due before they were enqueued, which is no delay.
        due = str(max(0, id_key(id_)[0] + draw.randrange(-1000, 60_000)))
        made.messages.append(message(id_, "T", "1", fields={"due": due}))
    return made
