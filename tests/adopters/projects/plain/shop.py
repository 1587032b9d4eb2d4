"""The smallest project: an app, its bridge, a task."""

import os

from celery import Celery

import bridge

app = Celery("shop", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])
bridge.install(app)


@app.task(bind=True, ignore_result=True)
def append(self, ticket_id, payload):
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])


@app.task(bind=True)
def total(self, ticket_id, payload):
    self.ticket.effects.incrby(f"sum:{ticket_id}", payload["n"])
    return payload["n"]
