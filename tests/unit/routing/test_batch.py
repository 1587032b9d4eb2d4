"""The batch of a leader's step: whether there is anything in it to write."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from bridge.routing.batch import Batch

SOMETHING: dict[type, Any] = {str: "1-0", int: 1, list: ["1-0"], dict: {"a": 1}}


def test_a_new_batch_is_empty() -> None:
    assert not Batch()


@pytest.mark.parametrize("name", [one.name for one in fields(Batch)])
def test_a_batch_with_anything_in_it_is_not_empty(name: str) -> None:
    batch = Batch()
    setattr(batch, name, SOMETHING[type(getattr(batch, name))])
    assert batch
