"""The demo: the stack with data, a worker killed on the way, and a verdict from evidence that is not the bridge's own.

Imports `bridge.stack` and what is below it. The tasks that it runs are the example app's, `tasks/`, and write the
ledger.
"""
