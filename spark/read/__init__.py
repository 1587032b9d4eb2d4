"""A stream into DataFrames: options, columns, how a range of ids is split among tasks, and the data source's readers.

These modules may import ``bridge.spark.wire`` and ``routing``, and nothing else of ``spark``. Copying a stream into
Parquet is in ``bridge.spark.archiving``; writing is in ``bridge.spark.write``.
"""
