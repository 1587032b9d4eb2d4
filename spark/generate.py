"""A generated incident log that resembles a real one, for demos and tests without a data set.

    python -m bridge.spark.generate --events 20000 --tickets 3500 --seed 1 events.csv.gz

The columns are those of the incident log that the project is tested with. What makes such a log hard to process is
here too: few tickets have many events and most have few; some are hot, with a long run of events within hours; tickets
are opened in bursts that share a minute; neighbouring events of one ticket tie in time, so that only ``seq`` tells
their order; incidents are passed from group to group, wait, are resolved, reopened and closed. One seed gives the same
bytes on every machine.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO

if __name__ == "__main__":
    # Before all other imports. `start` says what for. A cluster may have a copy of this file alone, and the package.
    beside = not __package__ and Path(__file__).with_name("start.py").exists()
    importlib.import_module("start" if beside else "bridge.spark.start")

import click

from bridge.routing.errors import ConfigurationError, InputError
from bridge.spark.job.failures import errors_in_one_line

COLUMNS = (
    "ticket_id",
    "activity",
    "timestamp",
    "seq",
    "src_row",
    "sys_mod_count",
    "reassignment_count",
    "reopen_count",
    "active",
    "made_sla",
    "priority",
    "impact",
    "urgency",
    "category",
    "assignment_group",
    "contact_type",
    "opened_at",
)
START = datetime(2024, 3, 4)  # noqa: DTZ001 - the log's times have no zone
TICKETS_PER_DAY = 70
#: Of a thousand tickets, how many are hot, and how many times the events of an ordinary one they have.
HOT_PER_MILLE, HOT_FACTOR = 4, 12
#: Hours within which an incident should be closed, by priority from 1 (critical) to 4 (low).
SLA_HOURS = (8, 24, 120, 240)
PRIORITIES = ("1 - Critical", "2 - High", "3 - Moderate", "4 - Low")
LEVELS = ("1 - High", "2 - Medium", "3 - Low")
CONTACTS = (("Phone", 96), ("Self service", 2), ("Email", 1), ("IVR", 1))
AWAITING = (("Awaiting User Info", 90), ("Awaiting Vendor", 5), ("Awaiting Problem", 4), ("Awaiting Evidence", 1))
GROUPS, CATEGORIES = 78, 58
UNKNOWN = "?"


@dataclass
class _Ticket:
    """One incident before its events: what stays the same over its life."""

    opened: datetime
    events: int
    hot: bool


def incident_log(events: int, tickets: int, seed: int) -> list[dict[str, str]]:
    """The rows of a log of exactly ``events`` events of exactly ``tickets`` tickets, sorted by timestamp and src_row.

    Raises ``ConfigurationError`` when there would be a ticket without an event, or no ticket.
    """
    if tickets < 1 or events < tickets:
        raise ConfigurationError(f"every ticket needs an event: {events} events are too few for {tickets} tickets")
    rng = random.Random(seed)
    rows: list[dict[str, str]] = []
    for number, ticket in enumerate(_tickets(rng, events, tickets), start=1):
        for row in _life(rng, ticket):
            rows.append({"ticket_id": f"INC{number:07d}", **row, "src_row": str(len(rows) + 1)})
    rows.sort(key=lambda row: (row["timestamp"], int(row["src_row"])))
    return rows


def _tickets(rng: random.Random, events: int, tickets: int) -> list[_Ticket]:
    """The tickets by the time of their opening."""
    hot = {rng.randrange(tickets) for _ in range(max(1, tickets * HOT_PER_MILLE // 1000))}
    weights = [rng.lognormvariate(0.0, 0.7) * (HOT_FACTOR if index in hot else 1) for index in range(tickets)]
    counts = _shares(weights, events - tickets)
    minutes = max(2, tickets // TICKETS_PER_DAY) * 24 * 60
    bursts = [_office_minute(rng, minutes) for _ in range(1 + tickets // 150)]
    drafts = []
    for index in range(tickets):
        minute = rng.choice(bursts) if rng.random() < 0.25 else _office_minute(rng, minutes)
        drafts.append(_Ticket(START + timedelta(minutes=minute), 1 + counts[index], index in hot))
    return sorted(drafts, key=lambda ticket: ticket.opened)


def _shares(weights: Sequence[float], total: int) -> list[int]:
    """``total`` dealt out in proportion to the weights, as whole numbers that add up to it."""
    whole = sum(weights)
    exact = [total * weight / whole for weight in weights]
    dealt = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: dealt[index] - exact[index])
    for index in by_remainder[: total - sum(dealt)]:
        dealt[index] += 1
    return dealt


def _office_minute(rng: random.Random, minutes: int) -> int:
    """A minute of the period; nine of ten lie between 8 and 18 o'clock."""
    day = rng.randrange(minutes // (24 * 60))
    of_day = rng.randrange(8 * 60, 18 * 60) if rng.random() < 0.9 else rng.randrange(24 * 60)
    return day * 24 * 60 + of_day


def _life(rng: random.Random, ticket: _Ticket) -> Iterator[dict[str, str]]:
    """The events of one ticket in order, without its id and its row number."""
    impact, urgency = _level(rng), _level(rng)
    rank = min(3, impact + urgency)
    fixed = {
        "priority": PRIORITIES[rank],
        "impact": LEVELS[impact],
        "urgency": LEVELS[urgency],
        "category": f"Category {_skewed(rng, CATEGORIES)}",
        "contact_type": _pick(rng, CONTACTS),
        "opened_at": ticket.opened.isoformat(),
    }
    group = UNKNOWN if rng.random() < 0.1 else f"Group {_skewed(rng, GROUPS)}"
    at = ticket.opened + timedelta(minutes=rng.choice((0, 0, 0, 1, 4, 15)))
    limit = timedelta(hours=SLA_HOURS[rank])
    modified = reassigned = reopened = 0
    made_sla = True
    before = ""
    for seq, activity in enumerate(_activities(rng, ticket.events), start=1):
        if seq > 1:
            at += _pause(rng, before, ticket.hot)
            modified += 1 + (rng.random() < 0.1)
            if activity == "Active" and rng.random() < 0.35:
                group, reassigned = f"Group {_skewed(rng, GROUPS)}", reassigned + 1
        if before in ("Resolved", "Closed") and activity not in ("Resolved", "Closed"):
            reopened += 1
        made_sla = made_sla and at - ticket.opened <= limit
        yield {
            "activity": activity,
            "timestamp": at.isoformat(),
            "seq": str(seq),
            "sys_mod_count": str(modified),
            "reassignment_count": str(reassigned),
            "reopen_count": str(reopened),
            "active": "false" if activity == "Closed" else "true",
            "made_sla": "true" if made_sla else "false",
            "assignment_group": group,
            **fixed,
        }
        before = activity


def _activities(rng: random.Random, count: int) -> list[str]:
    """The states that a ticket goes through: New, work and waiting, Resolved, now and then reopened, Closed."""
    if count < 3 or rng.random() < 0.05:
        ending: list[str] = []  # too short, or still open when the log ends
    else:
        ending = ["Resolved", "Closed"]
    states = ["New"]
    while len(states) + len(ending) < count:
        chance = rng.random()
        if states[-1] == "Resolved":
            states.append("Active")
        elif chance < 0.15:
            states.append(_pick(rng, AWAITING))
        elif chance < 0.19:
            states.append("Resolved")
        elif chance < 0.27 and states[-1] == "New":
            states.append("New")
        else:
            states.append("Active")
    return states[:count] + ending


def _pause(rng: random.Random, before: str, hot: bool) -> timedelta:
    """Time to the next event, in whole minutes. None at all for one in eight: only ``seq`` orders those."""
    if before == "Resolved" and rng.random() < 0.8:
        return timedelta(days=5)  # closed automatically when the caller does not object
    if rng.random() < 0.125:
        return timedelta(0)
    hours = 0.2 if hot else 6.0
    return timedelta(minutes=int(rng.expovariate(1.0) * hours * 60))


def _level(rng: random.Random) -> int:
    return int(_pick(rng, (("1", 92), ("0", 3), ("2", 5))))


def _skewed(rng: random.Random, count: int) -> int:
    """A number from 1 to ``count``, small ones far more often."""
    return min(count, 1 + int(count * rng.random() ** 3))


def _pick(rng: random.Random, weighted: Sequence[tuple[str, int]]) -> str:
    """One of the names, by weight."""
    at = rng.random() * sum(weight for _, weight in weighted)
    for name, weight in weighted:
        at -= weight
        if at < 0:
            return name
    return weighted[-1][0]


def write_log(rows: Sequence[dict[str, str]], out: Path) -> None:
    """Writes a CSV, gzipped when the name ends in .gz; the file appears whole or not at all.

    Raises ``InputError`` when the place cannot be written.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}") from None
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if out.suffix == ".gz":
                # The header has no file name and no time, so that equal logs are equal files.
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
                    _write_csv(rows, packed)
            else:
                _write_csv(rows, file)
        temporary.chmod(0o644)
        temporary.replace(out)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_csv(rows: Sequence[dict[str, str]], file: IO[bytes] | gzip.GzipFile) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    text.detach()


@click.command()
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--events", default=20_000, show_default=True, help="Events in the log.")
@click.option("--tickets", default=3_500, show_default=True, help="Tickets that they belong to.")
@click.option("--seed", default=1, show_default=True, help="The same seed gives the same file.")
def main(out: Path, events: int, tickets: int, seed: int) -> None:
    """Writes a generated incident log to OUT, a CSV, gzipped when its name ends in .gz."""
    with errors_in_one_line():
        write_log(incident_log(events, tickets, seed), out)
        click.echo(f"{events:,} events of {tickets:,} tickets in {out}")


if __name__ == "__main__":
    main()
