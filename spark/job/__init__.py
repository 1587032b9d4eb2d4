"""What every job needs: a Java, a Spark session, its common options, progress, log files as input, errors in one line.

These modules may import ``bridge.spark.source``, ``bridge.spark.read``, ``bridge.spark.write``, ``bridge.spark.wire``
and ``routing``. What only one job does is in that job's room: ``bridge.spark.pushing``, ``bridge.spark.archiving`` or
``bridge.spark.reporting``.
"""
