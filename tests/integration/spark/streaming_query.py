"""What Spark does with a streaming reader, without a JVM."""

from __future__ import annotations

import json
import pickle
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from bridge.spark.read.columns import default_schema
from bridge.spark.read.options import parse_read
from bridge.spark.read.stream_reader import RedisStreamStreamReader
from bridge.stack.embedded import EmbeddedServer

STREAM = "events"
JsonOffset = dict[str, Any]
T = TypeVar("T")


class Query(ABC, Generic[T]):
    """One query, epoch by epoch, with offsets as they come out of a checkpoint."""

    def __init__(self, server: EmbeddedServer, at: JsonOffset | None = None, /, **options: Any) -> None:
        parsed = parse_read({"url": server.url, "stream": STREAM, **options})
        self.reader = RedisStreamStreamReader(parsed, default_schema())
        self.at = kept(self.reader.initialOffset()) if at is None else at
        self.epochs: list[tuple[JsonOffset, JsonOffset]] = []
        #: How many tasks read the last epoch.
        self.tasks = 0

    @abstractmethod
    def row(self, id_: str) -> T:
        """What the tests compare of the row with this id."""

    def plan(self, most: int | None = None) -> JsonOffset:
        return kept(self.reader.latestOffset(self.at, ReadAllAvailable() if most is None else ReadMaxRows(most)))

    def read(self, start: JsonOffset, end: JsonOffset) -> list[T]:
        tasks = pickle.loads(pickle.dumps(list(self.reader.partitions(start, end))))
        in_task = pickle.loads(pickle.dumps(self.reader))
        self.tasks = len(tasks)
        return [self.row(id_) for task in tasks for rows in in_task.read(task) for id_ in rows["id"].to_pylist()]

    def epoch(self, most: int | None = None) -> list[T]:
        end = self.plan(most)
        if end == self.at:
            return []
        found = self.read(self.at, end)
        self.epochs.append((self.at, end))
        self.at = end
        return found


def kept(offset: JsonOffset) -> JsonOffset:
    """The offset as a checkpoint returns it."""
    loaded: JsonOffset = json.loads(json.dumps(offset))
    return loaded
