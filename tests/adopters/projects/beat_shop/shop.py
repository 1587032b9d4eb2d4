"""Beat pushes: an entry of the schedule, and one that is added when the app is configured."""

import os

from celery import Celery

import bridge

app = Celery("shop", broker=os.environ["REDIS_URL"])
bridge.install(app)
app.conf.beat_schedule = {
    "every half second": {"task": "bridge.push", "schedule": 0.5, "args": ("shop.tick", "T0", "scheduled")},
}


app.conf.bridge_schedule = {"own": {"task": "shop.tick", "ticket": "T2", "payload": "own", "every": 1}}


@app.on_after_configure.connect
def more(sender, **_):
    sender.add_periodic_task(0.5, sender.tasks["bridge.push"].s("shop.tick", "T1", "added"))


@app.task(bind=True, ignore_result=True)
def tick(self, ticket_id, payload):
    self.ticket.effects.rpush(f"log:{ticket_id}", payload)
