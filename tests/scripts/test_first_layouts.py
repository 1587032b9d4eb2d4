"""claim_layout.lua: the first layout of a new version has the generation of the versions that it follows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from bridge.routing.errors import ConfigurationError
from bridge.routing.keys import layout_copy_key, layout_key
from bridge.routing.layouts import Retired, check_layouts, claim_layout, find_layout, text_of_layout
from bridge.routing.partitions import Layout
from tests.chaos.run import default_seed
from tests.scripts.world import SPLIT as STREAM
from tests.scripts.world import World

pytestmark = pytest.mark.scripts

OLD = ("old", "older")


def older_state(dice: random.Random, client: Any, name: str) -> None:
    """An older version in one of the states that it may be in."""
    layout = Layout(dice.choice((1, 2, 4)), dice.choice((0, 0, 1, 3)), 1)
    text = text_of_layout(layout)
    kind = dice.choice(("none", "whole", "split", "split", "split", "lost", "retired")) if layout.is_split else "none"
    if kind == "whole":
        client.xgroup_create(name, "g", "0", mkstream=True)
    elif kind == "split":
        client.mset({layout_key(name): text, **({layout_copy_key(name): text} if layout.generation else {})})
    elif kind == "lost" and layout.generation:
        client.set(layout_copy_key(name), text)
    elif kind == "retired":
        client.set(layout_key(name), Retired(1, STREAM, text).text)


def looked_up(client: Any, partitions: int) -> Layout | None:
    """What a member goes by; None: it is refused."""
    try:
        found = find_layout(client, STREAM, partitions, OLD)
        for name in OLD:
            if b"retired_ms" not in (client.get(layout_key(name)) or b""):
                check_layouts(client, STREAM, found, name)
    except ConfigurationError:
        return None
    return found


def test_members_and_producers_agree_on_the_first_layout_of_a_new_version(fresh: World) -> None:
    seed = default_seed("LAYOUT_SEED")
    print(f"seed {seed}")
    dice, client = random.Random(seed), fresh.client
    agreed = refused = later = 0
    for _ in range(600):
        client.flushdb()
        for name in OLD:
            older_state(dice, client, name)
        if dice.random() < 0.1:
            client.xadd(STREAM, {"ticket_id": "T"})
        partitions = dice.choice((1, 2, 4))
        looked = looked_up(client, partitions)
        # When a producer claims one, whatever a member has looked at
        try:
            claimed = claim_layout(client, STREAM, partitions, OLD)
        except ConfigurationError:
            assert looked is None
            refused += 1
            continue
        # Then it is what a member goes by, unless that refuses to start
        assert find_layout(client, STREAM, partitions, OLD).shape == claimed.shape
        if looked is not None:
            assert looked.shape == claimed.shape
            agreed += 1
            later += claimed.generation > 0
        copied = text_of_layout(claimed).encode() if claimed.generation else None
        assert client.get(layout_copy_key(STREAM)) == copied
    client.flushdb()
    assert min(agreed, refused, later) > 10, (agreed, refused, later)


def test_no_setting_is_advised_where_the_number_is_right(fresh: World) -> None:
    client = fresh.client
    client.set(layout_key("old"), text_of_layout(Layout(2, 1, 1)))
    client.set(layout_key("older"), text_of_layout(Layout(2, 2, 1)))
    tries: list[Callable[[], Layout]] = [
        lambda: claim_layout(client, STREAM, 2, OLD),
        lambda: check_layouts(client, STREAM, find_layout(client, STREAM, 2, OLD), "older"),
    ]
    for refused in tries:
        with pytest.raises(ConfigurationError, match="name a new stream in bridge_stream, or") as caught:
            refused()
        assert "set bridge_partitions" not in str(caught.value)
    client.flushdb()
