"""The limits of what is written, and how the refusal of a row begins. It imports nothing: any program may load it."""

from __future__ import annotations

#: Longest ticket in bytes of UTF-8: the contract of the stream, not an option.
MAX_TICKET_BYTES = 512
#: Largest sequence number that the server can compare with another one: its scripts have 53 bits for a number.
MAX_SEQUENCE = 2**53
#: Fields of a row: a script cannot put more words into one command.
MAX_FIELDS = 3900
#: Rows of a chunk: a server works on one chunk at a time, for about 3 µs a row.
MAX_CHUNK_ROWS = 10_000
#: Ten years, in seconds: what is kept for longer is kept forever, and servers refuse times that are too large.
MAX_GUARD_TTL_S = 10 * 366 * 24 * 3600
#: How an error begins that Spark SQL raises for a row that cannot be written. Spark adds words of its own around it,
#: and ``bridge.spark.job.failures`` finds the row's error by this beginning.
REFUSED = "refused before anything was written: "
