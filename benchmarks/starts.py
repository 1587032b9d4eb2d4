"""What the task of the failover figures and its reader agree on."""

from __future__ import annotations

#: Environment variable with the leases of workers and leader, in seconds.
LEASE = "BENCHMARK_LEASE"
#: Hash ticket -> when its last execution began (seconds, the machine's monotonic clock, which all processes share).
STARTS = "starts"
#: Seconds that a message takes.
WORK_S = 0.04
