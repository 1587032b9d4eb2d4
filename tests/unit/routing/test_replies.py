"""Replies of the server that several parts read: a summary of the pending list, the leader's token, a push."""

from __future__ import annotations

import pytest

from bridge.routing.errors import KeyUsed
from bridge.routing.groups import PendingSummary, pending_summary
from bridge.routing.leadership import LeaderToken, read_token
from bridge.routing.producing import ids_in


def test_the_summary_of_a_pending_list_is_read_by_name() -> None:
    reply = [3, b"5-1", b"9-0", [[b"master", b"1"], [b"w\xff@a", b"2"]]]
    assert pending_summary(reply) == PendingSummary(3, "5-1", {b"master": 1, b"w\xff@a": 2})


@pytest.mark.parametrize("reply", [None, [0, None, None, None], [0, None, None, []]], ids=["no group", "null", "empty"])
def test_a_pending_list_may_be_empty_or_missing(reply: object) -> None:
    assert pending_summary(reply) == PendingSummary(0, None, {})


def test_a_token_names_the_term_and_its_master() -> None:
    assert read_token(b"12 host:7:abc") == LeaderToken(12, "host:7:abc")
    assert read_token("1 a b") == LeaderToken(1, "a b")


def test_other_messages_under_a_key_are_an_error_of_their_own() -> None:
    with pytest.raises(KeyUsed, match="other messages were pushed under the idempotency key 'k'"):
        ids_in([b"CHANGED"], "k")
