"""What commands about the newest version of a stream say of the older ones, which they leave out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from bridge.routing.numbers import count

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.cli.target import Target
    from bridge.settings.lane import LaneSettings


def say_older(target: Target, thing: str, number_in: Callable[[LaneSettings], int], *words: str) -> None:
    """Prints how many things the older versions have that the command is not about, and the command ``words`` that
    lists them.
    """
    if target.version is not None:
        return
    found: Counter[str] = Counter()
    shown = {lane.settings.stream for lane in target.app_lanes}
    for lane in {older.stream: older for one in target.app_lanes for older in one.older}.values():
        number = 0 if lane.stream in shown else number_in(lane)
        if number:
            found[target.commands(lane).bridge(*words)] += number
    for command, number in found.items():
        click.echo(f"{count(number, thing)} of an older version: {command}")
