"""The request of a message that travels alone; those of bundles are in `bundle_requests`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from celery.app.task import Context

from bridge.protocol.headers import first_head
from bridge.protocol.outcomes import Kind
from bridge.worker.main.bundle_events import send_gathered, watched
from bridge.worker.main.requests import BridgeRequest, CarriedMessage
from bridge.worker.pool.delivery import failure_of


class TicketRequest(BridgeRequest):
    """The request of a message that travels alone."""

    @property
    def args(self) -> Any:
        return json.loads(self._message.body)[0]

    def info(self, safe: bool = False) -> dict[str, Any]:
        """What ``celery inspect`` shows."""
        shown: dict[str, Any] = super().info(safe)
        if not safe:
            # One that cannot be read is shown as its text.
            with suppress(ValueError, RecursionError):
                shown["args"] = self.args
        return shown

    def messages(self) -> Iterator[CarriedMessage]:
        run = first_head(self._request_dict)
        yield CarriedMessage(self.id, self.name, run.ticket, self.args[1], self.first_fence, run.attempt)

    def context_of(self, one: CarriedMessage) -> Context:
        del one
        return Context({**self._request_dict, "args": self.args, "kwargs": {}, "headers": {}})

    def announce(self) -> None:
        if not watched(self._eventer):
            return
        # The message may have been in a bundle before.
        send_gathered(self._eventer)
        self.send_event(
            "task-received",
            uuid=self.id,
            name=self.name,
            args=self.argsrepr,
            kwargs=self.kwargsrepr,
            root_id=self.root_id,
            parent_id=self.parent_id,
            retries=self._request_dict.get("retries", 0),
            eta=None,
            expires=None,
        )

    def send_event(self, kind: str, **fields: Any) -> None:
        fields.setdefault("uuid", self.id)
        uuid = fields.pop("uuid")
        if self._eventer and self._eventer.enabled and self.task.send_events:
            self._eventer.send(kind, uuid=uuid, **fields)

    def _outcome_kind(self, kind: Kind, one: CarriedMessage, running: int) -> Kind:
        if kind in (Kind.LOST, Kind.INTERRUPTED) and self.member.forks and running != one.fence:
            # The process ended before it started this message, or after it had written its outcome.
            return Kind.RETURNED
        return failure_of(self._request_dict) if kind is Kind.FAILED else kind
