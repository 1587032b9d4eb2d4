"""Tasks as classes with a base class of the project's own. The bridge is installed at the end of the module."""

import os

from celery import Celery, Task

import bridge


class Audited(Task):
    """The project's base class: it keeps a connection, and records each call."""

    abstract = True
    _connection = None

    @property
    def connection(self):
        if self._connection is None:
            self._connection = self.app.connection_for_write()
        return self._connection

    def __call__(self, *args, **kwargs):
        self.calls = getattr(self, "calls", 0) + 1
        return super().__call__(*args, **kwargs)

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        with self.connection.clone() as connection, connection.channel() as channel:
            channel.client.rpush("failures", f"{type(exc).__name__} {args[0]}")


class Append(Audited):
    name = "shop.Append"
    ignore_result = True
    max_retries = 1

    def run(self, ticket_id, payload):
        assert self.calls >= 1
        if payload == 3:
            raise ValueError("always")
        self.ticket.effects.rpush(f"log:{ticket_id}", payload)


app = Celery("shop", broker=os.environ["REDIS_URL"])
app.conf.bridge_backoff = {"base": 0.1}
append = app.register_task(Append())
bridge.install(app)
