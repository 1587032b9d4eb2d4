"""Archives: how history, dead letters and messages get into Parquet, are read back, and are chosen for a replay.

These modules may import ``spark.job`` and the rooms below it, but not ``spark.pushing`` or ``spark.reporting``. The
commands' options are in ``spark.archive`` and ``spark.replay``; what is computed from an archive is in
``spark.reporting``.
"""
