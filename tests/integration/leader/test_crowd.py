"""Hundreds of consumers, some lost at once, and the leader killed. All messages run once and in order, and none is
falsely suspected.
"""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.crowd import Shape, run, show


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(Shape(50, 4, 2500, 10_000, lost=40, lease=2.0, policy="random"), id="small"),
        # Ten minutes on two quiet cores
        pytest.param(Shape(lost=60), id="full", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
def test_a_crowd_does_everything_once_and_in_order(shape: Shape) -> None:
    figures = run(shape)
    Console().print(show(shape, figures))
    assert (figures.done, figures.dead) == (shape.messages, 0)
    assert (figures.reordered, figures.repeated, figures.missing) == (0, 0, 0)
    # The lost consumers had messages, and count as one loss
    assert figures.rerouted > 0
    assert figures.suspects == 0
