"""What `bridge.install` imports at once, and what later. Tested in a new process."""

from __future__ import annotations

import subprocess
import sys

#: Prints the modules of worker and master that a process imports which only produces.
PRODUCER = """
import sys
from celery import Celery
import bridge
shop = Celery("shop", broker="redis://localhost/0")
bridge.install(shop)
@shop.task(name="shop.update")
def update(ticket_id, payload): ...

update.push
foreign = ("bridge.worker.main.steps", "bridge.worker.main.member", "bridge.worker.main.strategy",
"bridge.leader.leader")
print([name for name in sys.modules if name.startswith(foreign)])
"""
#: Prints the steps that Celery finds by the registered names.
STEPS = """
from celery import Celery
from celery.utils.imports import symbol_by_name
import bridge
shop = bridge.install(Celery("shop", broker="redis://localhost/0"))
print(sorted(symbol_by_name(name).__name__ for steps in shop.steps.values() for name in steps))
"""
#: Prints the settings of a worker that a receiver of `celeryd_init` configures, as Celery's documentation has it. That
#: signal comes before Celery reads the broker's URL.
CONFIGURED = """
from types import SimpleNamespace
from celery import Celery, signals
import bridge
shop = bridge.install(Celery("shop", broker="redis://localhost/0"))

@signals.celeryd_init.connect
def configure(sender, instance, conf, **_):
    conf.update(bridge_health_file="here", bridge_stream="orders", bridge_partitions=2)
    conf.broker_url = "redis://localhost/7"

signals.celeryd_init.send(sender="w1@here", instance=SimpleNamespace(app=shop), conf=shop.conf, options={})
settings = shop.bridge.settings
print(settings.health_file, settings.lane.stream, settings.redis_url, shop.bridge.layout.partitions)
"""


def printed(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_process_that_only_produces_loads_neither_the_workers_part_nor_the_masters() -> None:
    assert printed(PRODUCER) == "[]"


def test_the_steps_that_make_a_worker_a_member_are_found_by_their_names() -> None:
    assert printed(STEPS) == "['JoinStep', 'MemberStep', 'ServerStep']"


def test_a_worker_goes_by_the_settings_that_a_receiver_of_celeryd_init_sets() -> None:
    assert printed(CONFIGURED) == "here orders redis://localhost/7 2"
