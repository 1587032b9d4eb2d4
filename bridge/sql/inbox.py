"""An inbox in PostgreSQL, by which effects there happen exactly once.

A task may run again after its transaction was committed: its worker died before the success was written, or a frozen
one woke up after its ticket had moved. So the transaction itself must know whether it is the first one. `Inbox.first`
asks for that in the user's own transaction, and both tables change with it or not at all:

- The **fence** of the ticket is compared, and kept: a smaller one than the largest that was seen raises `StaleFence`.
  Fences grow over all versions and partitions of a stream, so the row has the name of the oldest version (its column
  ``stream``). Fences of two streams are independent: two apps may share a database and the default group.
  The row is locked until the end of the transaction, so two executions of a ticket wait for each other here.
- The **id of the message** is stored. If it is there already, its effects are, too.
"""

from __future__ import annotations

from datetime import datetime
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Protocol

from bridge.routing.errors import ConfigurationError, StaleFence

try:
    from sqlalchemy import BigInteger, Column, Connection, DateTime, Engine, MetaData, String, Table, delete, func
    from sqlalchemy.dialects.postgresql import insert
except ImportError as error:  # pragma: no cover
    needs = "bridge.sql needs SQLAlchemy and psycopg: pip install 'ticket-bridge[sql]'"
    raise ModuleNotFoundError(needs, name=error.name) from None

if TYPE_CHECKING:
    from sqlalchemy.sql import Executable

    from bridge.app.context import TicketContext


class Executes(Protocol):
    """A `Connection` or a `Session` of SQLAlchemy, within a transaction."""

    def execute(self, statement: Executable, /) -> Any: ...


class Inbox:
    """What was done to a database, and under which fences. One for each database; threads may share it."""

    def __init__(self, *, prefix: str = "bridge_", schema: str | None = None, metadata: MetaData | None = None) -> None:
        """The tables are ``<prefix>inbox`` and ``<prefix>fences``.

        Args:
            prefix: What their names begin with.
            schema: Where they are; None: in the first one of the search path.
            metadata: The user's own, so that migrations find the tables; None: one of its own.
        """
        self.metadata = metadata if metadata is not None else MetaData()
        self._fences = Table(
            f"{prefix}fences",
            self.metadata,
            Column("subscription", String, primary_key=True),
            Column("stream", String, primary_key=True),
            Column("ticket", String, primary_key=True),
            Column("fence", BigInteger, nullable=False),
            schema=schema,
        )
        self._inbox = Table(
            f"{prefix}inbox",
            self.metadata,
            Column("subscription", String, primary_key=True),
            Column("stream", String, primary_key=True),
            Column("message", String, primary_key=True),
            Column("at", DateTime(timezone=True), nullable=False, server_default=func.now(), index=True),
            schema=schema,
        )

    def create(self, engine: Any) -> None:
        """Creates the tables that do not exist. ``engine``: an engine or a connection. Raises `ConfigurationError` for
        what is neither, and for another database than PostgreSQL.
        """
        if not isinstance(engine, Engine | Connection):
            raise ConfigurationError(
                "Inbox.create takes an engine or a connection of SQLAlchemy (of an AsyncConnection: "
                f"await connection.run_sync(inbox.create)), not {_kind(engine)}"
            )
        _require_postgresql(engine)
        self.metadata.create_all(engine, tables=[self._fences, self._inbox])

    def first(self, connection: Executes, ticket: TicketContext | None) -> bool:
        """Whether this message's effects are still to be done, in the transaction of ``connection``.

        Call it before anything else of the transaction, once for each message. False: they were committed before.

        Args:
            connection: A connection or a session; its transaction carries the effects, too.
            ticket: ``self.ticket``. It is None in a task that is called without the bridge. For None, and for the
                ticket of a plain call (``task.run``), nothing is compared and the result is True.

        Raises:
            ConfigurationError: There can be no such transaction: autocommit, another database than PostgreSQL, or what
                is no connection or session.
            StaleFence: The ticket was taken over meanwhile, or may be, since the lease has ended. The transaction must
                be rolled back, as it is when the error leaves its block.
        """
        if ticket is None or not ticket.pushed:
            # The fence of a plain call is of this machine's clock, and two calls may have one id.
            return True
        subscription = storable(ticket.subscription)
        stream = storable(ticket.lane.stream) if ticket.lane is not None else ""
        home, id_ = storable(ticket.home), storable(ticket.id)
        fence = insert(self._fences).values(subscription=subscription, stream=home, ticket=id_, fence=ticket.fence)
        _require_transaction(connection, fence)
        kept = fence.on_conflict_do_update(
            index_elements=["subscription", "stream", "ticket"],
            set_={"fence": fence.excluded.fence},
            where=self._fences.c.fence <= fence.excluded.fence,
        )
        if connection.execute(kept.returning(self._fences.c.fence)).first() is None:
            raise StaleFence(f"ticket {ticket.id} was taken over while fence {ticket.fence} ran; roll back")
        message = insert(self._inbox).values(subscription=subscription, stream=stream, message=ticket.message_id)
        stored = message.on_conflict_do_nothing().returning(self._inbox.c.message)
        return connection.execute(stored).first() is not None

    def forget(self, connection: Executes, before: datetime) -> int:
        """Deletes the ids that were stored before a time, and returns how many.

        What is deleted must be settled: no message that old may still be undone, dead or replayed. Raises
        `ConfigurationError` for a time without a time zone: PostgreSQL would take it for one of its session's zone.
        """
        if before.tzinfo is None:
            raise ConfigurationError(f"Inbox.forget needs a time with a time zone, not {before!r}: datetime.now(UTC)")
        return int(connection.execute(delete(self._inbox).where(self._inbox.c.at < before)).rowcount)


def storable(text: str) -> str:
    """``text`` as PostgreSQL can store it: without NUL. No two texts become one."""
    return text.replace("\\", "\\\\").replace("\0", "\\0")


def _require_transaction(given: Any, statement: Executable) -> None:
    """Raises `ConfigurationError` where effects would not be committed together with what ``statement`` writes."""
    connection = given
    if not isinstance(given, Connection):
        # A session, also one that is scoped. It may have several databases, and the statement says which.
        connect = getattr(type(given), "connection", None)
        if not callable(connect) or iscoroutinefunction(connect):
            raise ConfigurationError(
                "Inbox.first takes a connection or a session of SQLAlchemy (of an AsyncSession: "
                "await session.run_sync(inbox.first, self.ticket)), "
                f"not {_kind(given)}"
            )
        connection = given.connection(bind_arguments={"clause": statement})
    _require_postgresql(connection)
    if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        raise ConfigurationError(
            "the connection is in autocommit: the id of the message would be stored although its effects may fail; "
            "give Inbox.first a connection with a transaction"
        )


def _kind(given: Any) -> str:
    return f"{type(given).__module__}.{type(given).__name__}"


def _require_postgresql(engine: Any) -> None:
    if engine.dialect.name != "postgresql":
        raise ConfigurationError(f"the inbox is for PostgreSQL, and the database is {engine.dialect.name}")
