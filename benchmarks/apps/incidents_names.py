"""The environment variable of the incidents' app. Apart, since the app is for worker processes only."""

#: The bridge is there if it is set.
BRIDGED = "BENCHMARK_BRIDGED"
