"""What the words of a report mean, as the page says it; the docstrings of the modules that compute say the same."""

from __future__ import annotations

DEFINITIONS = (
    (
        "message",
        "Counted once, whatever it went through. Its outcome is that of its last row in the history: done, dead, "
        "refused, or undone (it failed, was lost, given back or replayed, and comes again). Rows that are stale (a "
        "result under a fence that was over) decide nothing; a message that has no other rows is counted as unknown.",
    ),
    (
        "execution",
        "A delivery that began, or may have: it is done, failed, lost, or went to the dead letters from it. What was "
        "given back had not begun and is none.",
    ),
    (
        "retry",
        "An execution whose message had failed or been lost before. The first execution after a replay from the dead "
        "letters is none.",
    ),
    ("failure", "An execution that raised, or that ended in the dead letters."),
    ("loss", "An execution that was cut off, or may have been: its worker died, its lease ended, a time limit struck."),
    ("waiting", "From when the message was enqueued (the time in its id) to the first start of an execution of it."),
    ("service", "How long one execution ran, by the clock of its machine. Where nobody knows, it has none."),
    ("turnaround", "From when the message was enqueued to the end of the execution that succeeded."),
    (
        "percentiles",
        "p90 is the smallest time that at least 90 % do not exceed (nearest rank). Exact for up to 10,000 values; of "
        "more, the rank is off by at most 0.01 %. The maximum is exact always.",
    ),
    (
        "throughput",
        "Messages done per second, from the first start to the last end among the executions of that ticket, task, "
        "worker or of all; over time, by the moment the success was written.",
    ),
    (
        "utilisation",
        "Of a worker: how many executions ran at once on average (running), over the most that ever did (peak), "
        "between its first start and its last end.",
    ),
    ("imbalance", "Busy time of the busiest worker over the mean of all. 1.00 is a perfect balance."),
    (
        "refused",
        "A message that could never be processed. It has no ticket and no task in the history, so it is in the totals "
        "and among the dead letters only.",
    ),
    ("ids made by hand", "Ids before September 2001 or after the year 5000 are no times: no waiting, no turnaround."),
)
