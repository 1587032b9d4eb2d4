"""The page on changing a message's form, followed step by step (`tests.integration.pages.reader`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bridge.routing.keys import layout_key
from bridge.stack.embedded import EmbeddedServer
from tests.integration.pages.reader import Reader, steps

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "change-messages.md"


@pytest.mark.slow
def test_every_step_of_the_page_works_in_its_order(reader: Reader, own_server: EmbeddedServer) -> None:
    for step in steps(PAGE):
        reader.follow(step)
    redis: Any = own_server.client(decode_responses=True)
    paid = redis.lrange("paid:anna", 0, -1)
    assert paid[:3] == ["0 euro", "1 euro", "2 euro"]
    old, new = [f"{n} euro" for n in range(3)], [f"{n}00 cents" for n in range(3, 6)]
    assert sorted(paid) == sorted([*old, *old, *new])
    # The note that it was retired.
    left = [layout_key("payments")]
    assert [key for key in redis.scan_iter() if key == "payments" or key.startswith("{payments}")] == left
    assert "retired_ms" in redis.get(layout_key("payments"))


def test_every_block_of_the_page_says_what_to_do_with_it() -> None:
    blocks = re.findall(r"^```\w+$", PAGE.read_text(), re.MULTILINE)
    assert len(blocks) == len([step for step in steps(PAGE) if step.text])
