"""What a master knows of its lead when replies are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.exceptions import TimeoutError as NoReply

from bridge.master import election as under_test
from bridge.master.election import Election
from bridge.routing.errors import NotLeading
from bridge.settings.lane import LaneSettings

HOLDER = "here:7:abc"

#: What becomes of a script: it is answered; it never arrives; its reply is lost; it arrives before or after the next
#: command of the master.
ENDS = st.sampled_from(["answered", "lost before", "lost after", "late", "later"])


class Server:
    """The leader key and the term, as the scripts change them."""

    def __init__(self, ends: list[str]) -> None:
        self.ends = ends
        self.term = 1
        self.key: str | None = f"1 {HOLDER}"
        self._on_the_way: list[tuple[str, Callable[[], str]]] = []

    def _arrive(self, which: str) -> None:
        for one in [one for one in self._on_the_way if one[0] == which]:
            self._on_the_way.remove(one)
            try:
                one[1]()
            except NotLeading:
                continue

    def get(self, _key: str) -> bytes | None:
        self._arrive("late")
        found = None if self.key is None else self.key.encode()
        self._arrive("later")
        return found

    def begin_term(self, _redis: Any, _keys: Any, token: str, holder: str, _lease_ms: int) -> str:
        def script() -> str:
            if self.key != token:
                raise NotLeading("another master leads")
            self.term += 1
            self.key = f"{self.term} {holder}"
            return self.key

        end = self.ends.pop(0) if self.ends else "answered"
        if end == "answered":
            return script()
        if end == "lost after":
            script()
        elif end != "lost before":
            self._on_the_way.append((end, script))
        raise NoReply("timed out")

    def resign(self, _redis: Any, _keys: Any, token: str) -> bool:
        resigned, self.key = self.key == token, None if self.key == token else self.key
        return resigned


def election_at(server: Server) -> Election:
    election = Election(cast("Any", server), LaneSettings(), HOLDER)
    election.elected(f"1 {HOLDER}", 0.0)
    assert election.take_term(cast("Any", server)) == f"1 {HOLDER}"
    return election


@example(ends=["later"], stops_after=1)
@given(ends=st.lists(ENDS, max_size=8), stops_after=st.integers(0, 8))
def test_a_master_never_stands_by_behind_itself(ends: list[str], stops_after: int) -> None:
    """It leads in the term of the leader key; or it is deposed, or ends, and then no token of it is left there."""
    server = Server(list(ends))
    redis: Any = server
    with patch.multiple(under_test, begin_term=server.begin_term, resign=server.resign):
        election = election_at(server)
        for _ in range(stops_after):
            try:
                token = election.take_term(redis)
            except NoReply:
                continue
            except NotLeading:
                assert election.is_unsure
                break
            assert token == election.token == server.key
        election.resign()
        assert server.key is None


def test_the_term_of_another_master_or_program_is_left_alone() -> None:
    for other in ("2 there:8:def", "no token", "2"):
        server = Server(["lost before"])
        redis: Any = server
        with patch.multiple(under_test, begin_term=server.begin_term, resign=server.resign):
            election = election_at(server)
            with pytest.raises(NoReply):
                election.take_term(redis)
            server.key = other
            with pytest.raises(NotLeading):
                election.take_term(redis)
            election.resign()
        assert server.key == other
