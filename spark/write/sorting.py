"""A whole partition in one order that does not depend on how it came together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from bridge.spark.write.layout import Layout

#: Rows per batch behind the sort: what Spark itself uses.
_BATCH_ROWS = 10_000


def sorted_rows(batches: list[pa.RecordBatch], columns: Sequence[str], layout: Layout) -> Iterator[pa.RecordBatch]:
    """The rows of all ``batches``, sorted by ``columns``, then by all else that is sent.

    By all else, since a shuffle hands the same rows over in another order each time: rows that are equal in ``columns``
    shall come in the same order in every attempt, and rows that are equal in everything need none. Holds the whole
    partition in memory, twice.
    """
    if not batches:
        return iter(())
    keys = dict.fromkeys((*columns, *filter(None, [layout.sequence]), layout.key, *layout.fields))
    table = pa.Table.from_batches(batches)
    wide = pa.schema([field.with_type(_wide(field.type)) for field in table.schema])
    table = table.cast(wide).sort_by([(column, "ascending") for column in keys])
    return iter(table.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS))


def _wide(kind: pa.DataType) -> pa.DataType:
    """The same type, but for columns that hold more than 2 GiB of text: sorting puts them together into one."""
    if pa.types.is_string(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(kind) else kind
