"""Every line that ends in a mark has a mistake that a type checker must report."""

from celery import Celery

import bridge

app = bridge.install(Celery("shop", broker="redis://localhost:6379/0"))


@app.task(bind=True)
def apply_update(self: bridge.TicketTask, ticket_id: str, payload: dict[str, int]) -> None:
    self.ticket.effects.hsett(f"account:{ticket_id}", mapping=payload)  # wrong
    self.ticket.effects.hset(f"account:{ticket_id}", mapping=[payload])  # wrong
    self.ticket.attempts += 1  # wrong


def take(task: bridge.TicketTask) -> None:
    task.push(4.5)  # wrong
    n: int = task.push("T")  # wrong
    task.push_many(["T"])  # wrong
    task.pushh("T")  # wrong when Celery has types
    print(n)


apply_update.push(ticket="T")  # wrong
