"""What `bridge.install` imports at once, and what later. Tested in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.testing.nodes import preloaded
from bridge.testing.nodes.process import ROOT

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
    done = ran(program)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ran(program: str) -> subprocess.CompletedProcess[str]:
    """``program`` in a process that has not loaded its app, and may have loaded the bridge."""
    return preloaded.run([sys.executable, "-c", program], cwd=ROOT, env=os.environ)


def test_a_process_that_only_produces_loads_neither_the_workers_part_nor_the_masters() -> None:
    done = subprocess.run([sys.executable, "-c", PRODUCER], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[]\n", done.stderr


def test_the_steps_that_make_a_worker_a_member_are_found_by_their_names() -> None:
    assert printed(STEPS) == "['JoinStep', 'MemberStep', 'ServerStep']"


def test_a_worker_goes_by_the_settings_that_a_receiver_of_celeryd_init_sets() -> None:
    assert printed(CONFIGURED) == "here orders redis://localhost/7 2"


#: An app with two subscriptions, whose tasks are in a module that only workers import.
SHOP = """
from celery import Celery
import bridge
app = bridge.install(Celery("shop", broker="redis://localhost/0", backend="redis://localhost/1"))
app.conf.include = ["shop_tasks"]
app.conf.bridge_subscriptions = {"audit": {"task": "shop_tasks.audit"}, "billing": {"task": "shop_tasks.pay"}}
"""
TASKS = """
from shop import app

@app.task(bind=True, ignore_result=True)
def audit(self, ticket_id, payload): ...

@app.task(bind=True)
def pay(self, ticket_id, payload): ...
"""
ASKS = "from shop import app; print(app.backend.get_key_for_task('1795793641919-0').decode())"


@pytest.mark.parametrize("first", ["", "import shop_tasks;"], ids=["not imported", "imported"])
def test_a_result_is_looked_for_in_the_same_subscription_whatever_was_imported(first: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "shop_tasks.py").write_text(TASKS)
    key = printed(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {first} {ASKS}")
    assert key == "celery-task-meta-ticket_stream::billing:1795793641919-0"


def test_a_result_is_not_looked_for_in_another_subscription_because_the_tasks_fail_to_load(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "shop_tasks.py").write_text("import missing_here")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {ASKS}"
    done = ran(program)
    assert "ConfigurationError: the tasks of the Celery app fail to load: ModuleNotFoundError" in done.stderr
