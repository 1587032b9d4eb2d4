"""DataFrames into a stream: options, the order of rows, what is refused, guards, and the writers of the data source.

These modules may import ``bridge.spark.wire`` and ``routing``, and nothing else of ``spark``. What a push job does
around a write (log files, progress, rejects folder) is in ``bridge.spark.pushing``; reading is in
``bridge.spark.read``.
"""
