"""Lets a worker find its own queues whatever separator the app has for the priorities of Redis queues.

kombu names the lists of a queue's priorities ``QUEUE SEP PRIORITY``, with ``broker_transport_options["sep"]``. It takes
what stands before the last separator for the name of the queue, also where there is no priority. Celery's documentation
shows ``":"`` as the separator, and the names of the lane's queues contain it. kombu would find no consumer for a
message, and send it back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def name_queues_whole(consumer: Any, queues: Iterable[str]) -> None:
    """Makes the open connection of ``consumer`` (Celery's) know each of ``queues`` by its cut name, too."""
    channel = consumer.task_consumer.channel
    separator = getattr(channel, "sep", None)
    if not separator:
        # Another transport, as in tests.
        return
    whole = {name.rsplit(separator, 1)[0]: name for name in queues if separator in name}
    if not whole:
        return
    transport, cycle = channel.connection, channel._queue_cycle
    deliver, rotate = transport._deliver, cycle.rotate

    def deliver_to(message: Any, queue: str) -> None:
        deliver(message, queue if queue in transport._callbacks else whole.get(queue, queue))

    transport._deliver = deliver_to
    # So that the queues take turns.
    cycle.rotate = lambda last_used: rotate(whole.get(last_used, last_used))
