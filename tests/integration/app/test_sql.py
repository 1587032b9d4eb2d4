"""``bridge.sql``: effects in a real PostgreSQL happen exactly once, also over kills and under stale fences."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis
from sqlalchemy import Engine, MetaData, create_engine, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from bridge import ConfigurationError, StaleFence, sql
from bridge.app.context import TicketContext
from bridge.app.eager import CalledTicket
from bridge.routing.keys import LaneKeys
from bridge.settings.lane import LaneSettings
from bridge.stack.embedded import EmbeddedServer
from bridge.testing import handle
from bridge.testing.nodes.node import NodeYard
from bridge.testing.waiting import wait_until
from tests.calibration.mutation import Mutation, mutated
from tests.calibration.sql_mutations import FILE, SQL_MUTATIONS
from tests.integration.lanes import QUICK
from tests.integration.postgres import Postgres

APP = "tests.apps.accounts"
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "sql.md"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as running:
        yield running


@pytest.fixture
def engine(postgres: Postgres) -> Iterator[Engine]:
    """A database of the test's own, with the inbox and a table of effects."""
    made = create_engine(postgres.url)
    with made.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
        connection.execute(text("CREATE TABLE account (line serial PRIMARY KEY, ticket text, n integer)"))
    sql.Inbox().create(made)
    yield made
    made.dispose()


#: Newer versions of the stream `s`, and its partitions: its fences are theirs.
HOMES = {"s:v2": "s", "s:p1": "s"}


def message(id_: str, fence: int, ticket: str = "T1", group: str = "shop", stream: str = "s") -> TicketContext:
    lane = LaneSettings(stream=stream, group=group)
    home = HOMES.get(stream, stream)
    return TicketContext(ticket, id_, 1, fence, 5, lambda _: None, lambda: True, lane=lane, home=lambda: home)


def add(engine: Engine, ticket: TicketContext | None, n: int) -> bool:
    """What a task does: whether it added its line."""
    with engine.begin() as connection:
        first = sql.Inbox().first(connection, ticket)
        if first:
            connection.execute(text("INSERT INTO account (ticket, n) VALUES ('T1', :n)"), {"n": n})
    return first


def lines(engine: Engine, ticket: str = "T1") -> list[int]:
    with engine.begin() as connection:
        found = connection.execute(text("SELECT n FROM account WHERE ticket = :t ORDER BY line"), {"t": ticket})
        return list(found.scalars())


#: An execution: stream, ticket, number of its message, fence, and whether the task raises before the commit.
Execution = tuple[str, str, int, int, bool]
#: The last one belongs to another app, which has the default group, too.
STREAMS = ("s", *HOMES, "other")
#: Tickets with what PostgreSQL cannot store, and what could be taken for it.
TICKETS = ("T1", "\0", "\\0", "\\\0")


class Raised(Exception):
    """The task failed within its transaction."""


def follow(inbox: Any, engine: Engine, executions: Iterable[Execution]) -> None:
    """Handles messages as workers would, and compares each end with a model of what the inbox promises."""
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE account, bridge_inbox, bridge_fences"))
    fences: dict[tuple[str, str], int] = {}
    done: set[tuple[str, str, int]] = set()
    added: list[int] = []
    for stream, ticket, n, fence, raises in executions:
        at = (HOMES.get(stream, stream), ticket)
        is_stale = fence < fences.get(at, 0)
        is_first = (stream, ticket, n) not in done
        ended: object = None
        try:
            with engine.begin() as connection:
                # Messages of two tickets have two ids.
                id_ = f"{n}-{TICKETS.index(ticket)}"
                ended = inbox.first(connection, message(id_, fence, ticket, stream=stream))
                if ended:
                    connection.execute(text("INSERT INTO account (ticket, n) VALUES ('T1', :n)"), {"n": n})
                if raises:
                    raise Raised
        except StaleFence:
            ended = StaleFence
        except Raised:
            pass
        assert ended is (StaleFence if is_stale else is_first)
        if not is_stale and not raises:
            fences[at] = fence
            if is_first:
                done.add((stream, ticket, n))
                added.append(n)
        assert lines(engine) == added


@given(
    st.lists(
        st.tuples(
            st.sampled_from(STREAMS), st.sampled_from(TICKETS), st.integers(1, 3), st.integers(1, 6), st.booleans()
        ),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_sequence_of_executions_is_done_once_and_under_growing_fences(
    engine: Engine, executions: list[Execution]
) -> None:
    follow(sql.Inbox(), engine, executions)


def with_autocommit(inbox: Any, engine: Engine) -> None:
    """The id would stay although the task fails."""
    connecting = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with connecting as connection, pytest.raises(ConfigurationError, match="autocommit"):
        inbox.first(connection, message("9-0", 10, "T9"))


@pytest.mark.parametrize("mutation", SQL_MUTATIONS, ids=lambda one: one.name)
def test_each_defect_of_the_inbox_is_noticed(mutation: Mutation, engine: Engine) -> None:
    broken = ModuleType("broken")
    exec(compile(mutated(mutation)[FILE], FILE, "exec"), broken.__dict__)
    executions = [
        ("s", "T1", 1, 10, False),
        ("s", "T1", 1, 11, False),
        ("s", "T1", 2, 9, False),
        ("s", "T1", 2, 12, True),
        ("s", "T1", 2, 13, False),
        ("s", "T1", 3, 12, False),
        ("s", "\0", 1, 20, False),
        ("s", "\\0", 1, 15, False),
        ("other", "T1", 1, 5, False),
        ("s:v2", "T1", 1, 12, False),
    ]

    def judge(inbox: Any) -> None:
        follow(inbox, engine, executions)
        with_autocommit(inbox, engine)

    judge(sql.Inbox())
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        judge(broken.Inbox())


def test_the_page_of_calibration_names_each_defect() -> None:
    page = (PAGE.parents[1] / "explanation" / "calibration.md").read_text()
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| the inbox |")]
    assert [(name.strip(), test.strip(" `")) for _, name, test in rows] == [
        (mutation.name, mutation.caught_by[0]) for mutation in SQL_MUTATIONS
    ]


def test_sessions_carry_the_transaction_too(engine: Engine, postgres: Postgres) -> None:
    ticket = message("1-0", 10)
    with Session(engine) as session, session.begin():
        assert sql.Inbox().first(session, ticket)
    scoped = scoped_session(sessionmaker(engine))
    assert not sql.Inbox().first(scoped, ticket)
    scoped.remove()

    async def in_asyncio() -> bool:
        made = create_async_engine(postgres.url)
        async with AsyncSession(made) as session, session.begin():
            with pytest.raises(ConfigurationError, match="run_sync"):
                sql.Inbox().first(session, ticket)
            found = await session.run_sync(sql.Inbox().first, message("2-0", 11))
        await made.dispose()
        return found

    assert asyncio.run(in_asyncio())


def test_what_has_no_transaction_is_refused(engine: Engine) -> None:
    inbox, ticket = sql.Inbox(), message("1-0", 10)
    for wrong in (engine, "postgresql://", None):
        with pytest.raises(ConfigurationError, match="takes a connection or a session"):
            inbox.first(wrong, ticket)  # type: ignore[arg-type]
    other = create_engine("sqlite://")
    with pytest.raises(ConfigurationError, match="for PostgreSQL, and the database is sqlite"):
        inbox.create(other)
    with other.begin() as connection, pytest.raises(ConfigurationError, match="the database is sqlite"):
        inbox.first(connection, ticket)
    always = create_engine(engine.url, isolation_level="AUTOCOMMIT")
    with Session(always) as session, pytest.raises(ConfigurationError, match="autocommit"):
        inbox.first(session, ticket)
    always.dispose()
    assert add(engine, ticket, 1)


def test_a_message_is_done_once_under_whichever_fence_it_comes_again(engine: Engine) -> None:
    assert add(engine, message("1-0", 10), 1)
    assert not add(engine, message("1-0", 10), 1)
    assert not add(engine, message("1-0", 11), 1)
    assert add(engine, message("2-0", 12), 2)
    # A message that was replayed after it had been committed.
    assert not add(engine, message("1-0", 13), 1)
    assert lines(engine) == [1, 2]


def test_a_stale_fence_does_nothing(engine: Engine) -> None:
    assert add(engine, message("1-0", 10), 1)
    with pytest.raises(StaleFence, match="T1 was taken over while fence 9 ran"):
        add(engine, message("2-0", 9), 2)
    assert lines(engine) == [1]
    # And it left no trace by which the message would count as done.
    assert add(engine, message("2-0", 11), 2)


def test_what_was_rolled_back_was_never_done(engine: Engine) -> None:
    with engine.connect() as connection:
        assert sql.Inbox().first(connection, message("1-0", 10))
        connection.rollback()
    assert add(engine, message("1-0", 10), 1)


def test_an_older_execution_waits_for_the_newer_one_and_is_refused(engine: Engine) -> None:
    """Both have begun; the one with the newer fence is first to reach the inbox."""
    outcome: list[object] = []

    def late() -> None:
        try:
            outcome.append(add(engine, message("1-0", 10), 1))
        except StaleFence as stale:
            outcome.append(stale)

    thread = threading.Thread(target=late)
    with engine.begin() as connection:
        assert sql.Inbox().first(connection, message("1-0", 11))
        thread.start()
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
            wait_until(lambda: other.scalar(waiting) == 1, description="the older one to wait")
        assert outcome == []
    thread.join()
    assert [type(one) for one in outcome] == [StaleFence]


def test_an_execution_waits_for_the_transaction_of_a_lost_one_until_postgresql_ends_it(
    engine: Engine, postgres: Postgres
) -> None:
    """With the options that the page shows."""
    shown = re.search(r'^GUARDS = "(.*)"$', PAGE.read_text(), re.MULTILINE)
    assert shown is not None
    guards = shown[1].replace("idle_in_transaction_session_timeout=60s", "idle_in_transaction_session_timeout=1s")
    assert guards != shown[1]
    lost_engine = create_engine(postgres.url, connect_args={"options": guards})
    # The client says nothing any more, and its connection stays open.
    lost = lost_engine.connect()
    transaction = lost.begin()
    assert lost.scalar(text("SHOW tcp_keepalives_count")) == "3"
    assert sql.Inbox().first(lost, message("1-0", 10))
    assert add(engine, message("1-0", 11), 1)
    assert lines(engine) == [1]
    with pytest.raises(DBAPIError):
        lost.execute(text("SELECT 1"))
    transaction.close()
    lost.close()
    lost_engine.dispose()


def test_subscriptions_tickets_and_streams_are_apart(engine: Engine) -> None:
    assert add(engine, message("1-0", 10), 1)
    assert add(engine, message("1-0", 5, group="audit"), 2)
    assert add(engine, message("1-1", 5, ticket="T2"), 3)
    assert add(engine, message("1-0", 5, stream="other"), 4)


@pytest.mark.parametrize("stream", HOMES)
def test_fences_of_a_ticket_go_on_over_versions_and_partitions(stream: str, engine: Engine) -> None:
    assert add(engine, message("1-0", 10), 1)
    # The other stream may give the same id again.
    assert add(engine, message("1-0", 11, stream=stream), 2)
    for late in (message("2-0", 10), message("2-0", 10, stream=stream)):
        with pytest.raises(StaleFence):
            add(engine, late, 3)


def test_a_call_without_the_bridge_is_always_the_first(engine: Engine) -> None:
    assert add(engine, None, 1)
    assert add(engine, None, 1)
    # A plain call is no message: two of one millisecond have one id, and its fence is of this machine's clock.
    called = CalledTicket("T1", "1-0", 1, 1 << 59, 5, lambda _: None, lambda: True)
    assert add(engine, called, 1)
    assert add(engine, called, 1)
    assert add(engine, message("1-0", 10), 1)


def test_old_ids_can_be_forgotten_and_fences_stay(engine: Engine) -> None:
    add(engine, message("1-0", 10), 1)
    with engine.begin() as connection:
        now = datetime.now(UTC)
        assert sql.Inbox().forget(connection, now - timedelta(days=7)) == 0
        assert sql.Inbox().forget(connection, now + timedelta(days=1)) == 1
    with pytest.raises(StaleFence):
        add(engine, message("2-0", 9), 2)


def test_a_time_without_a_time_zone_forgets_nothing(engine: Engine) -> None:
    add(engine, message("1-0", 10), 1)
    with engine.begin() as connection, pytest.raises(ConfigurationError, match="time zone"):
        sql.Inbox().forget(connection, datetime.now() + timedelta(days=1))  # noqa: DTZ005 - that is refused
    assert not add(engine, message("1-0", 11), 1)


def test_tables_are_created_by_an_engine_or_a_connection_alone(engine: Engine, postgres: Postgres) -> None:
    asynchronous = create_async_engine(postgres.url)
    for other, kind in ((Session(engine), "orm.session.Session"), (asynchronous, "AsyncEngine"), ("x", "builtins.str")):
        with pytest.raises(ConfigurationError, match=f"an engine or a connection .*not .*{kind}"):
            sql.Inbox(prefix="other_").create(other)

    async def as_it_says() -> None:
        async with asynchronous.begin() as connection:
            await connection.run_sync(sql.Inbox(prefix="other_").create)
        await asynchronous.dispose()

    asyncio.run(as_it_says())
    assert "other_inbox" in inspect(engine).get_table_names()


def test_the_tables_are_the_users_to_name_and_to_migrate(engine: Engine) -> None:
    metadata = MetaData()
    inbox = sql.Inbox(prefix="shop_", schema="own", metadata=metadata)
    assert sorted(metadata.tables) == ["own.shop_fences", "own.shop_inbox"]
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA own"))
        inbox.create(connection)
        assert inbox.first(connection, message("1-0", 1))
    assert inspect(engine).get_table_names("own") == ["shop_fences", "shop_inbox"]


def test_the_page_shows_a_task_that_works(engine: Engine, postgres: Postgres) -> None:
    shown = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    there: dict[str, Any] = {"__name__": "shop"}
    exec(shown[1].replace("postgresql+psycopg://localhost/shop", postgres.url), there)
    there["inbox"].create(there["engine"])
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE account_of_page (name text, total integer)"))
        connection.execute(text("DROP TABLE account"))
        connection.execute(text("ALTER TABLE account_of_page RENAME TO account"))
        connection.execute(text("INSERT INTO account VALUES ('T42', 0)"))
    for amount in (3, 4):
        handle(there["pay"], "T42", {"amount": amount})
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT total FROM account")) == 7
        assert connection.scalar(text("SELECT count(*) FROM bridge_inbox")) == 2


def test_kills_before_and_after_the_commit_lose_and_double_nothing(
    engine: Engine, postgres: Postgres, nodes: NodeYard, own_server: EmbeddedServer
) -> None:
    older, newer = (LaneKeys(stream, "concurrency_stream_group") for stream in ("older_stream", "ticket_stream"))
    redis: Redis = own_server.client(decode_responses=True)
    pushed: dict[str, list[int]] = {}
    for n in range(60):
        ticket = f"T{n % 6}"
        payload: dict[str, Any] = {"n": n}
        if n % 11 == 3:
            payload["dies"] = "after" if n % 2 else "before"
        stream = older.stream if n < 30 else newer.stream
        redis.xadd(stream, {"ticket_id": ticket, "task": "accounts.add", "payload": json.dumps(payload)})
        pushed.setdefault(ticket, []).append(n)
    nodes.master("m1", app=APP, env={"ACCOUNTS_URL": postgres.url}, wait=False)
    arguments = ("--concurrency=2", *QUICK)
    nodes.worker("w1", app=APP, arguments=arguments, env={"ACCOUNTS_URL": postgres.url}, wait=False)

    def counted(what: str) -> int:
        return sum(int(redis.hget(keys.counts, what) or 0) for keys in (older, newer))

    wait_until(lambda: counted("done") == 60, description="all messages", timeout_s=90)
    assert {ticket: lines(engine, ticket) for ticket in pushed} == pushed
    # The kills took place: some messages were delivered again.
    assert counted("lost") + counted("retried") > 0
    # A ticket has one fence over both versions of the stream, under the name of the older one.
    with engine.begin() as connection:
        found = connection.execute(text("SELECT stream, ticket FROM bridge_fences"))
        assert sorted(map(tuple, found)) == [("older_stream", ticket) for ticket in sorted(pushed)]
    redis.close()
