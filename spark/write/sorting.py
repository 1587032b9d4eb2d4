"""Sorts a whole partition, so that every attempt has its rows in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from bridge.spark.write.layout import Layout

#: Rows per batch after the sort: as many as Spark itself uses.
_BATCH_ROWS = 10_000


def sorted_rows(batches: list[pa.RecordBatch], columns: Sequence[str], layout: Layout) -> Iterator[pa.RecordBatch]:
    """The rows of all ``batches``, sorted by ``columns``, then by all else that is sent.

    A shuffle gives the same rows in another order each time. Rows that are equal in ``columns`` must have the same
    order in every attempt, so the other columns decide. Rows that are equal in all columns need no order. Holds the
    whole partition in memory, twice.
    """
    if not batches:
        return iter(())
    keys = dict.fromkeys((*columns, *filter(None, [layout.sequence]), layout.key, *layout.fields))
    table = pa.Table.from_batches(batches)
    wide = pa.schema([field.with_type(_wide(field.type)) for field in table.schema])
    table = table.cast(wide).sort_by([(column, "ascending") for column in keys])
    return iter(table.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS))


def _wide(kind: pa.DataType) -> pa.DataType:
    """The type for a column of any size: sorting joins the batches, and a column may have more than 2 GiB of text."""
    if pa.types.is_string(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(kind) else kind
