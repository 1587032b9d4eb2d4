"""Workers, masters and servers as pytest-celery's nodes: processes of this machine, or containers, by one switch.

`plugin` holds the fixtures that a project names in its conftest. Imports `bridge.stack.embedded`, `bridge.testing` and
pytest-celery (the extra ``testing``). A lane in the process of the test, on threads, is `bridge.testing.lane`.
"""
