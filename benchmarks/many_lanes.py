"""How long `bridge status` takes for an app with very many lanes at rest: once the reading, and the whole command.

python -m benchmarks.many_lanes [--lanes 1000] [--rounds 5]

The lanes are made by hand, each with the keys that a lane has after its first messages. Nothing leads them.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
from celery import Celery

import bridge
from bridge.app.lanes import subscriptions_of
from bridge.inspect.subscriptions import read_subscriptions
from bridge.link.connections import client
from bridge.routing.connection import with_raw_replies
from bridge.stack.embedded import EmbeddedServer

APP = """
import os
from celery import Celery
import bridge

app = Celery("many", broker=os.environ["CELERY_BROKER_URL"])
bridge.install(app)
app.conf.bridge_subscriptions = {{f"s{{n:04}}": {{"task": "many.work"}} for n in range({lanes})}}

@app.task(bind=True, name="many.work")
def work(self, ticket_id, payload):
    pass
"""
#: Messages of the stream, all of them done.
MESSAGES = 1000


@click.command()
@click.option("--lanes", default=1000, show_default=True, type=click.IntRange(2), help="Idle lanes on one stream.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Measure N times.")
def main(lanes: int, rounds: int) -> None:
    """Prints the medians."""
    with EmbeddedServer(append_only=False) as server, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "many.py").write_text(APP.format(lanes=lanes))
        app = _make(server.url, lanes)
        declared = {name: [lane.settings for lane in found] for name, found in subscriptions_of(app).items()}
        redis = with_raw_replies(client(server.url))
        reading, whole, processor = [], [], []
        for _ in range(rounds):
            began = time.perf_counter()
            found = read_subscriptions(redis, declared)
            reading.append(time.perf_counter() - began)
            assert len(found) == lanes
            assert all(one.exists and one.undone == 0 for one in found)
            env = {**os.environ, "CELERY_BROKER_URL": server.url, "PYTHONPATH": os.pathsep.join(sys.path)}
            began, used = time.perf_counter(), _of_children()
            command = [sys.executable, "-m", "bridge", "-A", "many", "status"]
            subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
            whole.append(time.perf_counter() - began)
            processor.append(_of_children() - used)
        shown = (("reading", reading), ("the command", whole), ("the command, processor time", processor))
        for what, times in shown:
            print(f"{lanes:,} lanes, {what}: {statistics.median(times):.3f} s ({min(times):.3f} to {max(times):.3f})")


def _of_children() -> float:
    """Processor time of the commands that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _make(url: str, lanes: int) -> Celery:
    app = Celery("many", broker=url, set_as_current=False)
    bridge.install(app)
    app.conf.bridge_subscriptions = {f"s{n:04}": {"task": "many.work"} for n in range(lanes)}

    def work(self: object, ticket_id: str, payload: object) -> None:
        del self, ticket_id, payload

    app.task(bind=True, name="many.work", shared=False)(work)
    app.finalize()
    with client(url) as redis, redis.pipeline(transaction=False) as pipe:
        for n in range(MESSAGES):
            pipe.xadd("ticket_stream", {"ticket_id": f"T{n}", "payload": "{}"})
        for (lane,) in subscriptions_of(app).values():
            keys = lane.settings.keys
            pipe.xgroup_create(keys.stream, keys.group, "$")
            pipe.hset(keys.about, mapping={"format": 1, "app": "many", "master": "{}"})
            pipe.hset(keys.counts, mapping={"done": MESSAGES})
            pipe.set(keys.term, 1)
            pipe.set(keys.fence, MESSAGES)
            pipe.set(keys.leader, "1 nobody", px=600_000)
        pipe.execute()
    return app


if __name__ == "__main__":
    main()
