"""What the terms of a report mean. The page shows this list; the modules that compute refer to it.

The list is here only. A change of a computation changes its definition here.
"""

from __future__ import annotations

DEFINITIONS = (
    (
        "message",
        "Counted once, however many attempts it had. Its outcome is that of its last row in the history: done, "
        "dropped, dead, refused, left out, skipped, or undone (it failed, was nacked, lost, given back or replayed,"
        " and comes again). Stale rows (the result of an execution whose fence was not current) do not decide an "
        "outcome. A message that has no other rows is counted as unknown: how it ended is not in the archive. A "
        "range of time takes a message with all its rows.",
    ),
    (
        "execution",
        "A delivery that began, or may have begun: it is done, dropped, failed, nacked or lost, or it ended in the "
        "dead letters. A delivery that was given back had not begun and is not counted. Neither is a message that "
        "went to the dead letters without another attempt.",
    ),
    (
        "retry",
        "An execution whose message had failed, been nacked or been lost just before. The first execution after a "
        "replay from the dead letters is no retry.",
    ),
    ("failure", "An execution that raised, or that ended in the dead letters."),
    (
        "dropped, nacked",
        "Dropped: the task dropped the message (`bridge.Drop`): it was acknowledged, and not handled. Nacked: the task "
        "refused the message without a charge, and it came again. Neither is a failure. Dropped messages are in the "
        "totals only.",
    ),
    ("loss", "An execution that was cut off, or may have been: its worker died, its lease ended, a time limit struck."),
    (
        "waiting",
        "The time from when the message was enqueued (the time in its id, by the server's clock) to the first start of "
        "an execution of it (by the worker's clock). Of a delayed message it begins when the message was due, if the "
        "archive has its entry. Where the clocks differ so much that it would be negative, it is 0.",
    ),
    (
        "service",
        "How long one execution ran, by the clock of its machine. An execution whose times are not known has none.",
    ),
    (
        "turnaround",
        "The time from when the message was enqueued, or was due, to the end of the execution that succeeded.",
    ),
    (
        "delayed",
        "A message that was due later than it was enqueued, if the archive has its entry: an entry may leave its "
        "stream before it is archived. A due time that an operator changed is not known.",
    ),
    (
        "percentiles",
        "p90 is the smallest time that at least 90 % do not exceed (nearest rank). Exact for up to 10,000 values; of "
        "more, the rank is off by at most 0.01 %. Counts, sums and maxima are always exact.",
    ),
    (
        "throughput",
        "Messages done per second, from the first start to the last end among the executions of that ticket, task, "
        "worker or of all; over time, by the moment the success was written.",
    ),
    (
        "utilisation",
        "Of a worker: how many executions ran at once on average (running: its busy time over its span), over the most "
        "that ever ran at once (peak). 1 is a worker whose processes were never idle between its first start and its "
        "last end.",
    ),
    ("imbalance", "Busy time of the busiest worker over the mean of all. 1.00 is a perfect balance."),
    (
        "slowest, hot",
        "The slowest tickets have the longest turnaround of a single message; hot tickets have the most messages.",
    ),
    (
        "refused",
        "A message that could never be processed. It has no ticket and no task in the history, so it is in the totals "
        "and among the dead letters only.",
    ),
    (
        "left out, skipped",
        "Left out: the subscription does not want the message, by its filter or its tasks. Skipped: the subscription "
        "was too far behind (bridge_max_lag). Neither was dispatched. They are in the totals only.",
    ),
    (
        "ids made by hand",
        "Ids before September 2001 or after the year 5000 are no times: such a message has no waiting and no "
        "turnaround.",
    ),
)
