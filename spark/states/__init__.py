"""The states of tickets (``bridge.app.state``) as a table: options, which keys are states, and the reader.

These modules may import ``bridge.spark.wire``, ``bridge.spark.read`` and ``routing``, and nothing else of ``spark``.
The data source is ``bridge.spark.state_source``. A task's own state is in ``bridge.app.state``.
"""
