"""The options of a push: what is pushed where, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping as Dictionary

    from pyspark.sql import DataFrame

    from bridge.spark.job.progress import Progress
    from bridge.spark.pushing.messages import Mapping, Messages

#: Option of the data source -> parameter of the command, for options that are passed on unchanged.
WRITER_OPTIONS = {
    "idempotence": "idempotence",
    "highWater": "high_water",
    "maxWait": "max_wait",
    "chunkSize": "chunk_size",
    "window": "window",
    "maxPayload": "max_payload",
    "guardTtl": "guard_ttl",
}


@dataclass(frozen=True)
class Follow:
    """The options that only a push that follows a folder has."""

    checkpoint: str
    #: End when the files that were present at the start are pushed.
    available_now: bool = False
    #: The columns as DDL; None: those of the present files.
    schema: str | None = None
    #: Files in one epoch at most.
    files: int = 100


@dataclass(frozen=True)
class PushPlan:
    """One push. The URL may hold a password, and the configuration may hold secrets: neither is shown."""

    #: File, folder or name of a table.
    source: str
    #: One of ``bridge.spark.job.eventlog.FORMATS``, or ``TABLE``.
    kind: str
    url: str = field(repr=False)
    stream: str
    mapping: Mapping
    #: Options of the data source, by their names there.
    writer: Dictionary[str, str]
    #: Folder for rows that cannot be pushed; None: one such row stops the push.
    rejects: str | None = None
    run_id: str | None = None
    again: bool = False
    follow: Follow | None = None
    #: Connections that write at once; None: as many as the session has cores.
    partitions: int | None = None
    master: str | None = None
    conf: Dictionary[str, str] = field(default_factory=dict, repr=False)
    progress: Progress = "text"
    log: Path | None = None

    @property
    def once(self) -> bool:
        """Whether a second attempt of a task writes nothing twice."""
        return self.writer.get("idempotence", "").strip().lower() != "none"

    def writer_options(self, sequence: str, fields: list[str] | None = None) -> dict[str, str]:
        """The options of the data source, without the name of the run."""
        options = {"url": self.url, "stream": self.stream, "seqColumn": sequence, **self.writer}
        return options if fields is None else {**options, "fields": ",".join(fields)}


def sent(messages: Messages, frame: DataFrame) -> DataFrame:
    """The columns that the data source needs, of a DataFrame of messages."""
    from bridge.spark.write.columns import column

    return frame.select(column(messages.key), column(messages.sequence), *map(column, messages.fields))
