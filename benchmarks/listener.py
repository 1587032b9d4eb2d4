"""``python -m benchmarks.listener URL``: gets all task events, and does nothing with them.

What Flower itself does with an event costs a multiple of all that the bridge does for a message, so it is no measure of
the worker.
"""

from __future__ import annotations

import sys

import redis

#: The channels of Celery's events, as kombu names them in database 0.
CHANNELS = "/0.celeryev/*"


def main(url: str) -> None:
    """Gets events until it is ended."""
    heard = redis.Redis.from_url(url).pubsub()
    heard.psubscribe(CHANNELS)
    for _ in heard.listen():
        pass


if __name__ == "__main__":
    main(sys.argv[1])
