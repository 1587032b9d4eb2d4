"""How the entries of an epoch, and the tasks of a read, are shared among the streams that are read. No I/O."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from bridge.spark.read.ranges import Range, TaskRanges


def share_rows(waiting: Sequence[int], most: int | None) -> list[int]:
    """How many entries each stream gives to an epoch of ``most`` entries, where so many wait.

    A stream with few entries gives them all, and the others the same number each. So one with a long backlog does not
    delay the others. Where ``most`` is smaller than the number of streams, the first of them give one each.
    """
    if most is None:
        return list(waiting)
    shares, left = [0] * len(waiting), most
    unread = [number for number, count in enumerate(waiting) if count]
    while unread and left:
        even = max(1, left // len(unread))
        for number in unread:
            more = min(even, waiting[number] - shares[number], left)
            shares[number] += more
            left -= more
        unread = [number for number in unread if shares[number] < waiting[number]]
    return shares


def share_tasks(entries: Sequence[int], tasks: int) -> list[int]:
    """How many ranges are made of each stream with so many entries: one at least, in all ``tasks`` if possible."""
    ranges = [min(1, count) for count in entries]
    # The stream whose ranges are largest comes first.
    largest = [(float(-count), number) for number, count in enumerate(entries) if count > 1]
    heapq.heapify(largest)
    for _ in range(min(tasks, sum(entries)) - sum(ranges)):
        _, number = heapq.heappop(largest)
        ranges[number] += 1
        if ranges[number] < entries[number]:
            heapq.heappush(largest, (-entries[number] / ranges[number], number))
    return ranges


def in_tasks(ranges: Sequence[Range], tasks: int, entries: Sequence[int]) -> list[TaskRanges]:
    """The ranges as the inputs of at most ``tasks`` tasks. ``entries``: about how many each range has."""
    if len(ranges) <= tasks:
        return [TaskRanges((one,)) for one in ranges]
    least = [(0, number) for number in range(tasks)]
    held: list[list[int]] = [[] for _ in range(tasks)]
    for place in sorted(range(len(ranges)), key=lambda place: -entries[place]):
        count, number = heapq.heappop(least)
        held[number].append(place)
        heapq.heappush(least, (count + entries[place], number))
    return [TaskRanges(tuple(ranges[place] for place in sorted(places))) for places in held]
