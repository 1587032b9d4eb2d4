"""The counter app in a product with defects: messages of some tickets make a master or a worker raise. The error is the
failure of that message, and the process lives on.
"""

from __future__ import annotations

from typing import Any

from celery.worker.request import Request

from bridge.leader.picture.lane import Lane
from bridge.leader.picture.settling import Settling
from bridge.protocol.envelope import Envelopes
from bridge.routing.messages import EntryParser
from tests.apps.counter import app


class Defect(Exception):
    """The error of a defect."""


def _defective(owner: Any, name: str, ticket_of: Any, word: str) -> None:
    sound = getattr(owner, name)

    def raises(self: Any, *args: Any, **kwargs: Any) -> Any:
        if word in ticket_of(self, *args):
            raise Defect(word)
        return sound(self, *args, **kwargs)

    setattr(owner, name, raises)


def _in_flight(self: Any, outcome: Any, *_: Any) -> str:
    ticket = self._lane.in_flight.get(outcome.message_id)
    return str(ticket.id) if ticket is not None and outcome.kind.value == "S" else ""


_defective(EntryParser, "parse_entry", lambda _, entry: repr(entry[1]), "bad-parse")
_defective(Lane, "ingest", lambda _, message, *__: message.ticket, "bad-ingest")
_defective(Envelopes, "plain", lambda _, __, ___, message, *____: message.ticket, "bad-plain")
_defective(Envelopes, "bundle", lambda *args: repr(args[3]), "bad-plain")
_defective(Settling, "settle", _in_flight, "bad-settle")


class Picky(Request):
    """Raises in the worker's main process."""

    def __init__(self, message: Any, *args: Any, **kwargs: Any) -> None:
        if "bad-request" in repr(message.headers.get("bridge_runs")):
            raise Defect("bad-request")
        super().__init__(message, *args, **kwargs)


app.Task.Request = Picky
for _task in list(app.tasks.values()):
    _task.Request = Picky
