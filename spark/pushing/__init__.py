"""The push job: from the rows of a log to messages, in one batch or as files appear, with rejects and checkpoints.

These modules may import ``spark.job`` and the rooms below it, but not ``spark.archiving`` or ``spark.reporting``. The
command's options are in ``spark.push``; the writer that sends the rows is in ``spark.write``.
"""
