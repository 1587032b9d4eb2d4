"""One Spark for all tests of a process, which each test file sets as it needs it.

Its start, its warming up and the processes of its Python workers cost seconds each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from bridge.spark.job.session import local_session
from bridge.testing.waiting import wait_until

#: Two cores, as wherever these tests run. Nothing is tried twice (`trying` changes that).
MASTER = "local[2]"
#: Data is small here: one partition behind a shuffle, since each costs its tasks, and one plan for a query.
SMALL = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}
#: For what must be right however Spark deals out rows, and however often it plans again meanwhile.
DEALT_OUT = {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "true"}
#: Its Python processes are forked with what they import.
FORKED = {"spark.python.daemon.module": "tests.spark_daemon"}

#: What the file before this one has set.
_set: list[str] = []


def session_of(conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session, with these settings and no other file's. Not to be stopped: the next file goes on with it."""
    made = SparkSession.getActiveSession()
    if made is None:
        made = local_session("tests", master=MASTER, conf=FORKED)
    while _set:
        made.conf.unset(_set.pop())
    for name, value in {**SMALL, **(conf or {})}.items():
        made.conf.set(name, value)
        _set.append(name)
    return made


@contextmanager
def trying(session: SparkSession, times: int) -> Iterator[SparkSession]:
    """In the block, a task that fails is tried again: ``times`` attempts in all, as with the master ``local[2,3]``.

    That master would be another Spark, and the tests after it would start a third one. Both have the same scheduler,
    which keeps this number for itself.
    """
    scheduler = session.sparkContext._jsc.sc().taskScheduler()
    attempts = scheduler.getClass().getDeclaredField("maxTaskFailures")
    attempts.setAccessible(True)
    before = attempts.getInt(scheduler)
    attempts.setInt(scheduler, times)
    try:
        yield session
    finally:
        attempts.setInt(scheduler, before)


def wait_for_tasks() -> None:
    """Waits until no task runs any more: of a job that failed, some may.

    Such a task would go on writing into the emptied stream of the next test, whose server has lost the guard that would
    have refused it.
    """
    made = SparkSession.getActiveSession()
    if made is None:
        return
    store = made.sparkContext._jsc.sc().statusStore()

    def running() -> int:
        executors = store.executorList(True)
        return sum(int(executors.apply(number).activeTasks()) for number in range(executors.size()))

    wait_until(lambda: running() == 0, description="Spark's tasks to end", timeout_s=180)
