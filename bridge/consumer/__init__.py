"""What every consumer of a lane needs: a lease, the list of runs that it holds, its registration, a writer of outcomes.

Imports `bridge.protocol` and what is below it, and no Celery. The consumer that is a Celery worker is in
`bridge.worker`. The leader's side of consumers is in `bridge.leader`. `HttpConsumer`, a consumer over HTTP for programs
without Celery, is a name of this room.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bridge.consumer.http_consumer import HttpConsumer
    from bridge.consumer.http_messages import GiveUp, Message, Refuse

__all__ = ["GiveUp", "HttpConsumer", "Message", "Refuse"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        # Loaded when it is asked for: workers have no use for it.
        module = "http_consumer" if name == "HttpConsumer" else "http_messages"
        return getattr(import_module(f"bridge.consumer.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
