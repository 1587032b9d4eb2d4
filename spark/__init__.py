"""The Spark side of Ticket Bridge: the ``redisstream`` data source and the jobs of the pipeline.

``RedisStreamDataSource`` is loaded on first use: importing this package costs no PySpark, so a command line that only
starts a job as a process stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark.source import RedisStreamDataSource

__all__ = ["RedisStreamDataSource"]


def __getattr__(name: str) -> object:
    """Load the one public name; anything else is an ordinary missing attribute."""
    if name == "RedisStreamDataSource":
        from spark.source import RedisStreamDataSource

        return RedisStreamDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
