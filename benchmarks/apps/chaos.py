"""What all peers that run in Python share under chaos: their task's work, and how they bear an absent server."""

from __future__ import annotations

import os
import time
from pathlib import Path

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from benchmarks.apps.chaos_names import PATIENCE, WORK
from benchmarks.apps.work import URL, Payload
from benchmarks.chaos.ledger import Ledger
from benchmarks.tally import FOLDER

ledger = Ledger(Path(os.environ[FOLDER]))
patience_s = float(os.environ[PATIENCE])
#: Tries again for ten seconds: a task whose server is away must not fail for it.
client = redis.Redis.from_url(os.environ[URL], retry=Retry(ConstantBackoff(0.2), 50))


def work(payload: Payload) -> None:
    """Begins, and takes its time."""
    ledger.began(payload["t"], payload["n"])
    time.sleep(float(os.environ[WORK]))


def done(payload: Payload) -> None:
    """Ends."""
    ledger.ended(payload["t"], payload["n"])


def effects_key(payload: Payload) -> str:
    """The list of a ticket's effects."""
    return f"effects:{payload['t']}"
