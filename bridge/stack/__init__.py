"""The whole stack on one machine: an embedded server, masters, workers and Flower as child processes.

Imports `bridge.http` and what is below it. `demo` runs the stack with data and judges the run. A lane within a
test's own process is `bridge.testing`.
"""
