"""What every job needs: a Java, a Spark session, its common options, progress, log files as input, errors in one line.

These modules may import the data sources (``bridge.spark.source``, ``bridge.spark.state_source``) and the rooms below
them. What only one job does is in that job's room: ``bridge.spark.pushing``, ``bridge.spark.archiving`` or
``bridge.spark.reporting``.
"""
