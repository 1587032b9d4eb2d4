"""The whole stack on one machine: an embedded server, masters, workers and Flower as child processes.

Imports everything but `bridge.testing` and `bridge.cli`. `demo` runs it with data and judges the run. A lane within
a test's own process is `bridge.testing`.
"""
