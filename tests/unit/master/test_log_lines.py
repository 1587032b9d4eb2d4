"""A log line of a master says which lane it is about, when there are several."""

from __future__ import annotations

import logging
import threading
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.app.lanes import AppLane
from bridge.master.log_lines import FORMAT, LaneOfThread, OneLine, name_thread
from bridge.settings.lane import LaneSettings


@pytest.mark.parametrize(
    ("several", "shown"), [(True, "INFO/shop] [billing on ticket_stream] hello\n"), (False, "INFO/shop] hello\n")]
)
def test_a_line_names_the_lane_of_its_thread(several: bool, shown: str) -> None:
    lane = AppLane(LaneSettings(group="billing"), frozenset(), frozenset(), is_subscription=several)
    out = StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.addFilter(LaneOfThread())

    def work() -> None:
        name_thread(lane)
        handler.handle(logging.makeLogRecord({"name": "shop", "levelname": "INFO", "msg": "hello"}))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert out.getvalue().endswith(shown)


@given(st.text(), st.booleans())
def test_a_message_is_one_line_whatever_a_ticket_is_named_and_a_traceback_is_shown_as_it_is(
    name: str, raised: bool
) -> None:
    record = logging.makeLogRecord({"name": "shop", "levelname": "INFO", "msg": "ticket %s waits", "args": (name,)})
    if raised:
        record.exc_info = (ValueError, ValueError("no"), None)
    LaneOfThread().filter(record)
    line, *others = OneLine(FORMAT).format(record).splitlines()
    assert line.endswith(" waits")
    assert "INFO/shop] ticket " in line
    assert others == (["ValueError: no"] if raised else [])
