"""``bridge_follows``: its forms, the lanes that it makes, and a clear line for whatever cannot work."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from bridge.app.installation import install
from bridge.app.lanes import lane_of, lanes_of
from bridge.app.task_options import check_tasks
from bridge.routing.errors import ConfigurationError
from bridge.routing.partitions import MOST, Layout, is_partition


def app(**conf: Any) -> Celery:
    made = Celery("shop", broker="redis://127.0.0.1:6379/0", set_as_current=False)
    install(made)
    made.conf.update({"bridge_stream": "orders:v3", **conf})
    for name in ("shop.apply", "shop.apply_v1", "shop.search"):

        def apply(self: Any, ticket_id: str, payload: Any) -> None:
            """Does nothing."""

        made.task(bind=True, name=name, shared=False)(apply)
    return made


def refusal(**conf: Any) -> str:
    made = app(**conf)
    with pytest.raises(ConfigurationError) as caught:
        check_tasks(made)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_stream_without_older_versions_has_one_lane() -> None:
    [lane] = lanes_of(app())
    assert (lane.older, lane.newer) == ((), ())


def test_each_version_has_a_lane_with_its_own_task() -> None:
    made = app(
        bridge_default_task="shop.apply",
        bridge_max_attempts=2,
        bridge_follows=[{"stream": "orders", "task": "shop.apply_v1"}, "orders:v2"],
    )
    check_tasks(made)
    lanes = lanes_of(made)
    assert [lane.settings.stream for lane in lanes] == ["orders", "orders:v2", "orders:v3"]
    assert [lane.settings.default_task for lane in lanes] == ["shop.apply_v1", "shop.apply", "shop.apply"]
    assert {lane.settings.max_attempts for lane in lanes} == {2}
    settings = [lane.settings for lane in lanes]
    for place, lane in enumerate(lanes):
        assert list(lane.older) == settings[:place]
        assert list(lane.newer) == settings[place + 1 :]
    assert lane_of(made).settings.stream == "orders:v3"


def test_a_subscription_may_have_its_own_task_in_each_version() -> None:
    made = app(
        bridge_subscriptions={"billing": {"task": "shop.apply"}, "search": {"task": "shop.search"}},
        bridge_follows=[{"stream": "orders", "tasks": {"billing": "shop.apply_v1"}}],
    )
    check_tasks(made)
    found = {lane.title: (lane.settings.default_task, set(lane.tasks)) for lane in lanes_of(made)}
    billing = {"shop.apply", "shop.apply_v1"}
    assert found == {
        "billing on orders": ("shop.apply_v1", billing),
        "billing on orders:v3": ("shop.apply", billing),
        "search on orders": ("shop.search", {"shop.search"}),
        "search on orders:v3": ("shop.search", {"shop.search"}),
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param("orders", "must be a list of older streams", id="a text"),
        pytest.param(["orders:v3"], "a stream cannot follow itself", id="itself"),
        pytest.param(["orders", {"stream": "orders"}], "names the stream 'orders' twice", id="twice"),
        pytest.param(["{orders}"], "must not contain { or }", id="braces"),
        pytest.param([7], "not 7", id="a number"),
        pytest.param(["o\ud800"], "cannot be written as UTF-8", id="half of a pair"),
        pytest.param([{"stream": "o\ud800"}], "cannot be written as UTF-8", id="half of a pair in a dict"),
        pytest.param([""], "at most 512 characters", id="no name"),
        pytest.param(["o" * 513], "at most 512 characters", id="a long name"),
        pytest.param([{"task": "shop.apply"}], "names no stream", id="no stream"),
        pytest.param([{"stream": "orders", "tsk": "x"}], "did you mean 'task", id="an unknown option"),
        pytest.param([{"stream": "orders", "task": 7}], "not 7", id="a task that is no name"),
        pytest.param([{"stream": "orders", "task": "a", "tasks": {}}], "not both", id="both forms"),
        pytest.param([{"stream": "orders", "tasks": ["a"]}], "from subscription to task", id="tasks in a list"),
        pytest.param([f"orders{n}" for n in range(17)], "retire the oldest", id="too many"),
        pytest.param([{"stream": "orders", "task": "shop.gone"}], "'shop.gone' is not a task", id="no such task"),
        pytest.param([{"stream": "orders", "tasks": {"x": "shop.apply"}}], "no subscription 'x'", id="no subscription"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(given: Any, says: str) -> None:
    message = refusal(bridge_default_task="shop.apply", bridge_follows=given)
    assert says in message
    assert "bridge_follows" in message


names = st.text(st.characters(exclude_characters="{}", categories=("L", "N", "P")), min_size=1, max_size=20)
layouts = st.builds(Layout, st.integers(2, MOST), st.integers(0, 10**6))


@pytest.mark.parametrize("examples", [30, pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_a_partition_is_no_stream_of_an_app_whatever_its_layout(examples: int) -> None:
    @settings(max_examples=examples)
    @given(names, layouts, st.data(), st.sampled_from(["bridge_stream", "bridge_follows", "a dict"]))
    def is_refused(stream: str, layout: Layout, data: st.DataObject, key: str) -> None:
        partition = layout.stream(stream, data.draw(st.integers(0, layout.partitions - 1)))
        partition = data.draw(st.sampled_from([partition, f"{stream}:g{layout.generation}"]))
        conf: Any = {
            "bridge_stream": {"bridge_stream": partition},
            "bridge_follows": {"bridge_follows": ["orders", partition]},
            "a dict": {"bridge_follows": [{"stream": partition}]},
        }[key]
        message = refusal(bridge_default_task="shop.apply", **conf)
        assert "name the whole stream" in message
        assert repr(partition) in message
        assert message.startswith(next(iter(conf)))

    is_refused()


pieces = st.lists(st.sampled_from(["a", ":", "g", "p", "1", ":g1", ":p1"]), min_size=1, max_size=5)
shaped = st.builds("".join, pieces)
small = st.builds(Layout, st.integers(1, 3), st.integers(0, 2))


@pytest.mark.parametrize("examples", [150, pytest.param(2000, marks=pytest.mark.long)])
def test_streams_with_names_that_are_not_refused_share_no_partition(examples: int) -> None:
    @settings(max_examples=examples)
    @given(shaped, small, shaped, small)
    @example("a", Layout(2, 1), "a:g1", Layout(2))
    def share_none(one: str, its: Layout, other: str, theirs: Layout) -> None:
        assume(one != other and not is_partition(one) and not is_partition(other))
        assert not {one, *its.streams(one)} & {other, *theirs.streams(other)}

    share_none()


@pytest.mark.parametrize(
    "stream",
    [
        "orders:v2",
        "p0",
        "orders:p",
        "orders:p1:x",
        "orders-p1",
        "orders:px1",
        "orders:P1",
        "g1",
        "orders:g",
        "orders-g1",
    ],
)
def test_other_names_are_streams(stream: str) -> None:
    check_tasks(app(bridge_default_task="shop.apply", bridge_follows=[stream]))
    check_tasks(app(bridge_default_task="shop.apply", bridge_stream=stream))


def test_one_task_for_several_subscriptions_is_refused() -> None:
    message = refusal(
        bridge_subscriptions={"billing": {"task": "shop.apply"}, "search": {"task": "shop.search"}},
        bridge_follows=[{"stream": "orders", "task": "shop.apply_v1"}],
    )
    assert "give tasks, a dict from subscription to task" in message
