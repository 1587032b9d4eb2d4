"""The Spark data source ``redisstream``: DataFrames into a Redis stream and out of it, one entry per row.

This is only the entry. The options are in ``bridge.spark.write.options`` and ``bridge.spark.read.options``. What a task
does is in ``bridge.spark.write.writer``, ``bridge.spark.write.stream_writer``, ``bridge.spark.read.reader`` and
``bridge.spark.read.stream_reader``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from bridge.routing.errors import ConfigurationError
from bridge.spark.wire.address import without_secrets
from bridge.spark.wire.options import DEFAULT_STREAM, DEFAULT_URL, check_names, refuse_table
from bridge.spark.write.layout import Layout
from bridge.spark.write.options import parse, parse_streaming

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class RedisStreamDataSource(DataSource):
    """The data source ``redisstream``. Register it once per session. Then use
    ``df.write.format("redisstream").mode("append")``.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises ``ConfigurationError`` for an option that neither direction knows, and where there is none.

        ``writer``, ``reader`` and the others check the values: only they know the direction.
        """
        # The base class does not get them: it would keep the URL where a debugger or a log prints it.
        super().__init__(options={})
        self._given = {str(name): str(value) for name, value in options.items()}
        refuse_table(self._given)
        check_names(self._given)

    @classmethod
    def name(cls) -> str:
        """The name for ``format(…)``."""
        return "redisstream"

    def schema(self) -> StructType | str:
        """The columns of a read without a schema."""
        from bridge.spark.read.reader import schema_of

        return schema_of(self._given)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a batch.

        Raises ``ConfigurationError`` for ``mode("overwrite")``, for options of a read, and for columns that the options
        name and the DataFrame does not have.
        """
        from bridge.spark.write.writer import RedisStreamWriter

        if overwrite:
            raise ConfigurationError('a stream is appended to, never replaced; use mode("append")')
        options = parse(self._given)
        return RedisStreamWriter(options, Layout.of(schema, options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """The writer of one epoch of a streaming query. Raises as ``writer`` does."""
        from bridge.spark.write.stream_writer import RedisStreamStreamWriter

        if overwrite:
            raise ConfigurationError('a stream is appended to, never replaced; use outputMode("append")')
        options = parse_streaming(self._given)
        return RedisStreamStreamWriter(options, Layout.of(schema, options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch. Raises ``ConfigurationError`` for options of a write."""
        from bridge.spark.read.options import parse_read
        from bridge.spark.read.reader import RedisStreamReader

        return RedisStreamReader(parse_read(self._given), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader of a streaming query. Raises as ``reader`` does."""
        from bridge.spark.read.options import parse_read
        from bridge.spark.read.stream_reader import RedisStreamStreamReader

        return RedisStreamStreamReader(parse_read(self._given), schema)

    def __repr__(self) -> str:
        """Without the URL's secrets."""
        given = {name.lower(): value for name, value in self._given.items()}
        url = without_secrets(given.get("url", DEFAULT_URL))
        return f"RedisStreamDataSource({given.get('stream', DEFAULT_STREAM)} at {url})"
