"""A project that accepts only msgpack for its own messages and results."""

import os

from celery import Celery

import bridge

app = Celery("shop", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])
app.conf.update(task_serializer="msgpack", result_serializer="msgpack", accept_content=["msgpack"])
bridge.install(app)


@app.task(bind=True)
def append(self, ticket_id, payload):
    self.ticket.effects.rpush(f"log:{ticket_id}", payload["n"])
    return b"bytes, which JSON has not"


@app.task
def add(x, y):
    return x + y
