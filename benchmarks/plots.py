"""Plots as SVG, drawn without a library: lines over two axes, and bars in groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

#: Colours that stay apart for most eyes, in the order in which series get them.
COLOURS = ("#1b6ac9", "#d1495b", "#e09f3e", "#3a7d44", "#7b4fa3", "#5c6670", "#00808a", "#a0522d")
WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 240, 46, 52
_FONT = 'font-family="system-ui, sans-serif" font-size="13"'


@dataclass(frozen=True)
class Axis:
    """``ticks``: where it has labels; its ends are the first and the last one."""

    title: str
    ticks: Sequence[float]
    log: bool = False

    def share(self, value: float) -> float:
        """Where ``value`` lies on the axis, from 0 to 1. A value beyond an end is placed at that end."""
        low, high = self.ticks[0], self.ticks[-1]
        value = min(max(value, low), high)
        if self.log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)


@dataclass(frozen=True)
class Line:
    """One series of points, with its name."""

    name: str
    points: Sequence[tuple[float, float]]


def lines(title: str, x: Axis, y: Axis, series: Sequence[Line], marks: Sequence[tuple[float, str]] = ()) -> str:
    """Lines, a legend, and marks: vertical lines at some x, with a letter each."""
    parts = [_frame(title, x, y)]
    for at, letter in marks:
        place = _x(x, at)
        parts.append(f'<line x1="{place}" x2="{place}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#bbb"/>')
        parts.append(_text(place, TOP - 4, letter, "middle", "#888"))
    for i, line in enumerate(series):
        points = " ".join(f"{_x(x, a)},{_y(y, b)}" for a, b in line.points)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{_colour(i)}" stroke-width="2"/>')
        parts.append(_legend(i, line.name))
    return _whole(parts)


def bars(title: str, y: Axis, groups: Sequence[str], series: Sequence[tuple[str, Sequence[float]]]) -> str:
    """For each name a group of bars, one bar for each series. Above each bar is its figure."""
    parts = [_frame(title, None, y)]
    room = (WIDTH - LEFT - RIGHT) / len(groups)
    width = 0.8 * room / len(series)
    for i, (name, values) in enumerate(series):
        for j, value in enumerate(values):
            left = LEFT + j * room + 0.1 * room + i * width
            top = _y(y, value)
            height = HEIGHT - BOTTOM - top
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{_colour(i)}"/>'
            )
            parts.append(_text(left + width / 2, top - 3, f"{value:g}", "middle", "#333", 10))
        parts.append(_legend(i, name))
    for j, group in enumerate(groups):
        parts.append(_text(LEFT + (j + 0.5) * room, HEIGHT - BOTTOM + 18, group, "middle"))
    return _whole(parts)


def ticks_to(highest: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers from 0 to at least ``highest``."""
    rough = max(highest, 1e-9) / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return [step * i for i in range(math.ceil(highest / step) + 1)] if highest > 0 else [0.0, 1.0]


def _frame(title: str, x: Axis | None, y: Axis) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [_text(LEFT, 20, title, "start", "#111", 15)]
    for tick in y.ticks:
        at = _y(y, tick)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#eee"/>')
        parts.append(_text(LEFT - 6, at + 4, f"{tick:g}", "end"))
    parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#666"/>')
    if x:
        parts += [_text(_x(x, tick), bottom + 18, f"{tick:g}", "middle") for tick in x.ticks]
        parts.append(_text((LEFT + right) / 2, HEIGHT - 12, x.title, "middle"))
    parts.append(
        f'<text {_FONT} fill="#444" transform="translate(16 {(TOP + bottom) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y.title)}</text>'
    )
    return "\n".join(parts)


def _x(axis: Axis, value: float) -> float:
    return round(LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT), 1)


def _y(axis: Axis, value: float) -> float:
    return round(HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - BOTTOM - TOP), 1)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _legend(number: int, name: str) -> str:
    y = TOP + 12 + 22 * number
    box = f'<rect x="{WIDTH - RIGHT + 16}" y="{y - 9}" width="14" height="10" fill="{_colour(number)}"/>'
    return box + _text(WIDTH - RIGHT + 36, y, name, "start")


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#444", size: int = 13) -> str:
    font = _FONT.replace("13", str(size))
    return f'<text x="{x:.1f}" y="{y:.1f}" {font} fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'


def _whole(parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', *parts, "</svg>", ""])
