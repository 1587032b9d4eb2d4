"""Archives: how history, dead letters and messages get into Parquet, are read back, and are chosen for a replay.

These modules may import ``bridge.spark.job`` and the rooms below it, but not ``bridge.spark.pushing`` or
``bridge.spark.reporting``. The commands' options are in ``bridge.spark.archive`` and ``bridge.spark.replay``; what is
computed from an archive is in ``bridge.spark.reporting``.
"""
