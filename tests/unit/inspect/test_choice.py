"""Which lanes may have messages of a ticket."""

from __future__ import annotations

from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

import bridge
from bridge.app.lanes import lanes_of_subscription, newest_lanes_of
from bridge.inspect.choice import lane_of_ticket, lanes_with_ticket
from bridge.routing.partitions import Layout, partition_of

LAYOUTS = st.builds(
    lambda now, before: Layout(now, 1, older=Layout(before)) if before else Layout(now),
    st.integers(1, 6),
    st.integers(0, 6),
)


@given(layout=LAYOUTS, follows=st.lists(st.sampled_from(["v1", "v2", "v3"]), unique=True), ticket=st.text(min_size=1))
def test_a_ticket_is_in_one_lane_of_each_version_and_of_each_layout_oldest_first(
    layout: Layout, follows: list[str], ticket: str
) -> None:
    ticket = ticket.encode("utf-8", "replace").decode()
    app = Celery("choice", broker="redis://localhost/0", set_as_current=False)
    bridge.install(app)
    app.conf.bridge_stream = "newest"
    app.conf.bridge_follows = follows
    app.bridge.take_layout(layout)
    found = [lane.settings.stream for lane in lanes_with_ticket(lanes_of_subscription(app), ticket)]
    before = (
        [] if layout.older is None else [layout.older.stream("newest", partition_of(ticket, layout.older.partitions))]
    )
    now = partition_of(ticket, layout.partitions)
    assert found == [*before, *(layout.stream(version, now) for version in (*follows, "newest"))]
    assert found[-1] == lane_of_ticket(newest_lanes_of(app), ticket).settings.stream
