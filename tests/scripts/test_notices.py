"""A lane notes up to which dead letter it has told its receiver (notified.lua)."""

from __future__ import annotations

import pytest
from celery import Celery

import bridge
from bridge.master import dead_notices
from bridge.master.dead_notices import DeadNotices
from bridge.routing.connection import with_raw_replies
from bridge.routing.errors import NotLeading
from bridge.routing.notices import Notices, note_failed, note_told, notices_in
from tests.scripts.world import TOKEN, World

pytestmark = pytest.mark.scripts


def kept(world: World) -> Notices | None:
    return notices_in(world.client.hgetall(world.keys.notices))


def test_it_begins_behind_the_newest_letter(fresh: World) -> None:
    assert kept(fresh) is None
    for _ in range(2):
        newest = fresh.client.xadd(fresh.keys.dead, {"message_id": "1-0"}).decode()
    assert note_told(fresh.client, fresh.keys, TOKEN, 5) == newest
    fresh.client.xadd(fresh.keys.dead, {"message_id": "2-0"})
    assert note_told(fresh.client, fresh.keys, TOKEN, 6) == newest, "what is noted stays"
    assert kept(fresh) == Notices(told_to=newest)


def test_what_is_not_text_is_shown_all_the_same(fresh: World) -> None:
    note_told(fresh.client, fresh.keys, TOKEN, 5)
    fresh.client.hset(
        fresh.keys.notices, mapping={b"\xff": b"\xff", b"error": b"a\xff", b"told": b"\xff", b"error_ms": b"7"}
    )
    assert kept(fresh) == Notices(error="a\N{REPLACEMENT CHARACTER}", error_ms=7)


def test_a_lane_without_letters_begins_with_the_first(fresh: World) -> None:
    assert note_told(fresh.client, fresh.keys, TOKEN, 5) == "0-0"


def test_what_was_told_and_what_failed_is_counted(fresh: World) -> None:
    note_told(fresh.client, fresh.keys, TOKEN, 5)
    note_failed(fresh.client, fresh.keys, TOKEN, 6, "no answer")
    note_failed(fresh.client, fresh.keys, TOKEN, 7, "the receiver answered 500")
    assert kept(fresh) == Notices("0-0", 0, 2, None, "the receiver answered 500", 6)
    assert note_told(fresh.client, fresh.keys, TOKEN, 8, to="9-0", letters=3) == "9-0"
    assert kept(fresh) == Notices("9-0", 3, 2, 8, "", None)


def test_only_the_leader_notes_what_was_told(fresh: World) -> None:
    note_told(fresh.client, fresh.keys, TOKEN, 5)
    fresh.client.set(fresh.keys.leader, "8 another", px=60_000)
    with pytest.raises(NotLeading):
        note_told(fresh.client, fresh.keys, TOKEN, 6, to="9-0", letters=3)
    with pytest.raises(NotLeading):
        note_failed(fresh.client, fresh.keys, TOKEN, 6, "no")
    assert kept(fresh) == Notices("0-0")


def test_letters_that_were_written_by_hand_are_counted_as_all_others(
    fresh: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given several pages of letters, of which some name no message
    monkeypatch.setattr(dead_notices, "DESCRIBED", 2)
    monkeypatch.setattr(dead_notices, "PAGE", 3)
    for n in range(12):
        last = fresh.client.xadd(fresh.keys.dead, {"message_id": f"{n}-0"} if n % 4 else {"note": "x"}).decode()
    # When a master gathers them
    app = Celery("shop", broker="redis://")
    bridge.install(app)
    notices = DeadNotices(app, [])
    notices._lanes["lane"] = dead_notices._Lane(fresh.keys, TOKEN, "lane", "", "0-0")
    [(_, news)] = notices._gather(with_raw_replies(fresh.client))
    # Then all are in the notice
    assert (news.number, news.last) == (12, last)
