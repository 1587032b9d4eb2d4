"""What xdist starts in place of a Python with tests. It passes its stdin, stdout and stderr to the collecting process
(`tests.collected`), which forks a process of tests that uses them. It ends when that fork ends.
"""

import socket
import sys
from contextlib import suppress

with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
    connection.connect(sys.argv[1])
    socket.send_fds(connection, [b"streams"], [0, 1, 2])
    with suppress(KeyboardInterrupt):  # the fork gets it, too, and ends
        connection.recv(1)
