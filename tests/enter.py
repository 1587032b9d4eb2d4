"""Stands for a process of tests that is a fork (`tests.collected`): hands its streams over and ends with the fork."""

import socket
import sys
from contextlib import suppress

with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
    connection.connect(sys.argv[1])
    socket.send_fds(connection, [b"streams"], [0, 1, 2])
    with suppress(KeyboardInterrupt):  # the fork gets it, too, and ends
        connection.recv(1)
