"""What lanes that have nothing to do cost one master: processor time, connections, threads, memory; and how soon the
first message of such a lane is done.

python -m benchmarks.sleeping [--lanes 200] [--partitions]

Server, master and worker are real. The lanes are subscriptions of one stream, or with ``--partitions`` partitions of
one stream. A message of a stream goes to all its subscriptions. Here all but one leave it out, by a filter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import click
import psutil

from bridge.stack.embedded import EmbeddedServer

APP = """
import json, os
from celery import Celery
import bridge

app = Celery("sleeping", broker=os.environ["CELERY_BROKER_URL"])
bridge.install(app)
app.conf.update(json.loads(os.environ["SLEEPING_CONF"]))

@app.task(bind=True, name="sleeping.work", ignore_result=True)
def work(self, ticket_id, payload):
    self.ticket.effects.set("done", payload["n"])
"""
#: Longest wait for anything, in seconds.
WAIT_S = 180.0


@click.command()
@click.option("--lanes", default=200, show_default=True, type=click.IntRange(5, 4096), help="Lanes without work.")
@click.option("--partitions", is_flag=True, help="Partitions of one subscription, in place of subscriptions.")
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(1), help="How long to measure.")
@click.option("--messages", default=3, show_default=True, type=click.IntRange(0), help="Single messages to time.")
def main(lanes: int, partitions: bool, seconds: float, messages: int) -> None:
    """Prints what a master with sleeping lanes costs."""
    names = ["s0"] if partitions else [f"s{n}" for n in range(lanes)]
    subscriptions = {name: {"task": "sleeping.work", "filter": {"to": [name]}} for name in names}
    conf: dict[str, Any] = {"bridge_subscriptions": subscriptions}
    if partitions:
        conf["bridge_partitions"] = lanes
    with EmbeddedServer(append_only=False) as server, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sleeping.py").write_text(APP)
        path = os.pathsep.join([folder, str(Path.cwd())])
        env = {**os.environ, "CELERY_BROKER_URL": server.url, "SLEEPING_CONF": json.dumps(conf), "PYTHONPATH": path}
        redis: Any = server.client(decode_responses=True)
        command = [sys.executable, "-m"]
        log = (Path(folder) / "log").open("w")
        master = subprocess.Popen([*command, "bridge", "-A", "sleeping", "run"], env=env, stdout=log, stderr=log)
        worker = None
        try:
            process = psutil.Process(master.pid)
            began = time.monotonic()
            _wait(lambda: _led(redis) == lanes, "all lanes to be led")
            click.echo(f"all {lanes} lanes led after {time.monotonic() - began:.1f} s")
            if messages:
                # One subscription is served: the others are for the master alone.
                options = ["-P", "threads", "--concurrency=2", "--without-mingle", "--without-gossip"]
                worker = subprocess.Popen(
                    [*command, "celery", "-A", "sleeping", "worker", "-n", "w1@%h", *options],
                    env={**env, "BRIDGE_SERVE": "s0"},
                    stdout=log,
                    stderr=log,
                )
                _wait(lambda: len(list(redis.scan_iter("*:s0:lease:*", count=5000))) > 0, "the worker")
            _wait(lambda: process.num_threads() <= 8, "all lanes to sleep")
            before, measured = sum(process.cpu_times()[:2]), time.monotonic()
            time.sleep(seconds)
            share = 100 * (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - measured)
            used = len(process.net_connections())
            known = len(redis.client_list())
            click.echo(f"processor: {share:.2f} % of a core; memory: {process.memory_info().rss >> 20} MiB")
            click.echo(f"connections: {used} of the master ({known} in CLIENT LIST); threads: {process.num_threads()}")
            for n in range(messages):
                ticket = f"T{n}"
                stream = f"ticket_stream:p{crc32(ticket.encode()) % lanes}" if partitions else "ticket_stream"
                sent = time.monotonic()
                redis.xadd(stream, {"ticket_id": ticket, "payload": json.dumps({"n": n, "to": "s0"})})
                _wait(lambda n=n: redis.get("done") == str(n), "the message")  # type: ignore[misc]
                click.echo(f"first message of a lane that slept: done after {1000 * (time.monotonic() - sent):.0f} ms")
                if n + 1 < messages:
                    _wait(lambda: process.num_threads() <= 8, "all lanes to sleep again")
        finally:
            for one in (worker, master):
                if one is not None:
                    one.terminate()
                    one.wait(30)


def _led(redis: Any) -> int:
    return sum(1 for _ in redis.scan_iter("*:leader", count=5000))


def _wait(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until:
            raise click.ClickException(f"waited {WAIT_S:g} s for {what}")
        time.sleep(0.002)


if __name__ == "__main__":
    main()
