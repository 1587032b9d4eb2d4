"""What every job needs: a Java, a Spark session, its common options, progress, log files as input, errors in one line.

These modules may import ``spark.source``, ``spark.read``, ``spark.write``, ``spark.wire`` and ``routing``. What only
one job does is in that job's room: ``spark.pushing``, ``spark.archiving`` or ``spark.reporting``.
"""
