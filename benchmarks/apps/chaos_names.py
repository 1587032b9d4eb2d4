"""Environment variables of the apps under chaos. Apart, since the apps are for worker processes only."""

#: The seconds after which a peer takes a message for abandoned.
PATIENCE = "BENCHMARK_PATIENCE"
#: The seconds that a task takes.
WORK = "BENCHMARK_WORK"
#: There are locks if it is set.
LOCKS = "BENCHMARK_LOCKS"
