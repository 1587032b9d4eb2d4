"""Typed code of an adopter without mistakes."""

from typing import Any

from celery import Celery

import bridge

app = bridge.install(Celery("shop", broker="redis://localhost:6379/0"))


@app.task(bind=True)
def apply_update(self: bridge.TicketTask, ticket_id: str, payload: dict[str, int]) -> int:
    self.ticket.effects.hset(f"account:{ticket_id}", mapping=payload)
    print(self.ticket.id, self.ticket.attempt + 1, self.ticket.fence, self.ticket.lost)
    if self.ticket is None:
        return 0
    return self.ticket.fence


def send() -> None:
    message_id: str = apply_update.push("T42", {"amount": 3}, idempotency_key="a")
    ids: list[str] = apply_update.push_many([("T42", {"amount": 3}), (43, {"amount": 4})])
    print(message_id, ids)


async def asend() -> None:
    one: str = await apply_update.apush("T42", {"amount": 3})
    print(one)


class Update(bridge.TicketTask):
    name = "shop.update"

    def run(self, ticket_id: str, payload: dict[str, Any]) -> None:
        self.ticket.effects.incr("n")


update = app.register_task(Update())

try:
    send()
except bridge.Unanswered as error:
    print(error.pushed)
except (bridge.ServerUnavailable, bridge.PayloadError, bridge.TicketBridgeError):
    pass
