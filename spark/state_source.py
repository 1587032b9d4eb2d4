"""The Spark data source ``redisstate``: the states of all tickets as a table, one row for each ticket and subscription.

This is only the entry. The options are in ``bridge.spark.states.options``, and what a task does is in
``bridge.spark.states.reader``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter

from bridge.routing.errors import ConfigurationError
from bridge.spark.states.options import parse_states
from bridge.spark.wire.options import refuse_table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class RedisStateDataSource(DataSource):
    """The data source ``redisstate``. Register it once per session. Then use ``spark.read.format("redisstate")``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises ``ConfigurationError`` for an option that is unknown or has a wrong value, and where there is none."""
        # The base class does not get them: it would keep the URL where a debugger or a log prints it.
        super().__init__(options={})
        refuse_table(options)
        self._options = parse_states({str(name): str(value) for name, value in options.items()})

    @classmethod
    def name(cls) -> str:
        """The name for ``format(…)``."""
        return "redisstate"

    def schema(self) -> StructType | str:
        """The columns of a read without a schema."""
        from bridge.spark.states.reader import SCHEMA

        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader. Raises ``ConfigurationError`` for columns that a read cannot fill."""
        from bridge.spark.states.reader import RedisStateReader

        return RedisStateReader(self._options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002 - Spark's names
        """Raises ``ConfigurationError``: only a task writes a state."""
        raise ConfigurationError(
            "redisstate is for reading: a state is saved with the success of a message, by its task"
        )

    def __repr__(self) -> str:
        """Without the URL's secrets."""
        return f"RedisStateDataSource({self._options.stream} at {self._options.shown_url})"
