"""The push job: from the rows of a log to messages, in one batch or as files appear, with rejects and checkpoints.

These modules may import ``bridge.spark.job`` and the rooms below it, but not ``bridge.spark.archiving`` or
``bridge.spark.reporting``. The command's options are in ``bridge.spark.push``; the writer that sends the rows is in
``bridge.spark.write``.
"""
