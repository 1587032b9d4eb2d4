"""The Spark side of Ticket Bridge: the data sources ``redisstream`` and ``redisstate``, and the programs around them.

The names below are the public API. The rooms:

- ``wire``: talking to the server. ``read``, ``write``: the two directions of the data source ``redisstream``, which is
  ``source``. ``states``: the other one, ``redisstate``, which is ``state_source``.
- ``job``: what all programs need. ``pushing``, ``archiving``, ``reporting``: what one of them does.
- ``push``, ``archive``, ``report``, ``replay``, ``incidents``, ``compare``, ``generate``: programs. Each imports
  ``start`` first.

Imports run one way: programs → ``reporting`` → ``archiving`` → ``job`` → ``source``, ``state_source`` → ``states`` →
``read``, ``write`` → ``wire``; ``pushing`` stands beside ``archiving``. The public names are loaded on first use:
importing this package costs no PySpark, so a command line that only starts a job as a process stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridge.spark.source import RedisStreamDataSource
    from bridge.spark.state_source import RedisStateDataSource
    from bridge.spark.write.order import by_ticket, in_ticket_order
    from bridge.spark.write.rejects import Checks, split_rejects

#: Public name → the module that has it.
_PLACES = {
    "Checks": "write.rejects",
    "RedisStateDataSource": "state_source",
    "RedisStreamDataSource": "source",
    "by_ticket": "write.order",
    "in_ticket_order": "write.order",
    "split_rejects": "write.rejects",
}

__all__ = ["Checks", "RedisStateDataSource", "RedisStreamDataSource", "by_ticket", "in_ticket_order", "split_rejects"]


def __getattr__(name: str) -> object:
    """Loads a public name; anything else is an ordinary missing attribute."""
    if name in _PLACES:
        return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
