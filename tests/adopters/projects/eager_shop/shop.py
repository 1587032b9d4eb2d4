"""A project whose tests need no server. Some of its tasks call others."""

from celery import Celery, Task

import bridge


class Counted(Task):
    calls = 0

    def __call__(self, *args, **kwargs):
        type(self).calls += 1
        return super().__call__(*args, **kwargs)


app = Celery("shop", broker="memory://", task_cls=Counted)
bridge.install(app)
app.conf.bridge_backoff = {"base": 60}


@app.task(bind=True)
def book(self, ticket_id, payload):
    if payload["n"] == 2 and self.ticket.attempt < 3:
        raise ValueError("the till is locked")
    if payload["n"] == 0:
        book.push(ticket_id, {"n": 9})
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])
    return payload["n"]


@app.task
def add(x, y):
    return x + y
