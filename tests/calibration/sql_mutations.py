"""Defects of the inbox in PostgreSQL (`bridge.sql`). With each of them, some sequence of executions breaks the model in
the inbox's tests.
"""

from __future__ import annotations

from tests.calibration.mutation import Edit, Mutation

#: They break promise 4 where effects are in PostgreSQL, and no invariant of a lane.
INBOX = "the inbox"
FILE = "bridge/sql/inbox.py"
TEST = "test_each_defect_of_the_inbox_is_noticed"


def _inbox(name: str, old: str, new: str) -> Mutation:
    return Mutation(name, INBOX, "", (TEST,), (Edit(FILE, old, new),))


SQL_MUTATIONS = [
    _inbox("the fence is not compared", "where=self._fences.c.fence <= fence.excluded.fence,", "where=None,"),
    _inbox("the fence is not kept", '{"fence": fence.excluded.fence}', '{"fence": self._fences.c.fence}'),
    _inbox(
        "the id is stored outside of the transaction",
        "        return connection.execute(stored).first() is not None",
        "        with connection.engine.begin() as own:\n            return own.execute(stored).first() is not None",
    ),
    _inbox(
        "an id that is stored already does not count",
        "return connection.execute(stored).first() is not None",
        "return True",
    ),
    _inbox("two tickets share a fence", 'text.replace("\\\\", "\\\\\\\\").replace', "text.replace"),
    _inbox("two streams share a fence", "storable(ticket.home), ", '"", '),
    _inbox("two versions have fences of their own", "storable(ticket.home), ", "stream, "),
    _inbox("autocommit is not noticed", '"autocommit", False) is True', '"autocommit", False) is None'),
]
