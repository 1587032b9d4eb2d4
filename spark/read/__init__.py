"""A stream into DataFrames: options, columns, how a range of ids is split among tasks, and the data source's readers.

These modules may import ``spark.wire`` and ``routing``, and nothing else of ``spark``. Copying a stream into Parquet is
in ``spark.archiving``; writing is in ``spark.write``.
"""
