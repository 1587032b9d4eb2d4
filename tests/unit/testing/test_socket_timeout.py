"""What workers that end in this process leave as the default timeout of sockets is gone after a test."""

from __future__ import annotations

import socket

from celery.utils.threads import default_socket_timeout

from tests.conftest import pytest_runtest_teardown


def test_two_workers_that_end_at_once_leave_no_timeout() -> None:
    first, second = default_socket_timeout(5.0), default_socket_timeout(5.0)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert socket.getdefaulttimeout() == 5.0
    pytest_runtest_teardown()
    assert socket.getdefaulttimeout() is None
