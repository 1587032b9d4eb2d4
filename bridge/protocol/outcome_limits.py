"""Limits of a consumer's calls and of an outcome. For the port and for `bridge.consumer.HttpConsumer`, which needs the
standard library alone.
"""

from __future__ import annotations

#: Most messages that a consumer may take at once, and that one answer has.
MOST_SLOTS = 1000
#: Longest wait of a long poll, in seconds.
MOST_WAIT_S = 60
#: Characters of an error that are kept.
ERROR_CHARS = 2_048
#: Most characters of an error that the port takes.
MOST_ERROR_CHARS = 100_000
#: Most outcomes of one call.
MOST_ITEMS = 1000
#: Longest delay, in seconds: a hundred years.
MOST_DELAY_S = 100 * 365 * 86_400
