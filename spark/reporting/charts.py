"""The charts of the page, as shapes of an SVG picture. The template writes them out, and escapes every text in them.

Colours and fonts are the style sheet's (classes, no attributes). Every mark has a title, which browsers show as a
tooltip and screen readers read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from bridge.routing.numbers import duration, significant

#: Size of the pictures, in units of about a pixel on a wide screen.
WIDTH, HEIGHT = 560, 240
_NARROW = 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 14, 34
#: Sizes of the texts in the style sheet: on axes and marks, and of names and numbers of bars.
TICK_PX, NAME_PX = 12.5, 13.5
#: Width of a character as a share of the font's size. No font is known here, so it is that of a wide one: a digit has
#: 0.64 in DejaVu Sans and Verdana.
_CHARACTER = 0.68
#: Between a text and its axis or bar.
_GAP = 8
_ZEROS = re.compile(r"\.0+(?!\d)|(?<=\.\d)0+(?!\d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_STEPS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, 86400, 2 * 86400, 7 * 86400, 30 * 86400, 365 * 86400),
)


@dataclass(frozen=True)
class Shape:
    """An element of a picture."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    #: What its tooltip says; empty: it has none.
    title: str = ""
    children: Sequence[Shape] = field(default=())


@dataclass(frozen=True)
class Mark:
    """A mark of a chart over time: from ``low`` to ``high`` in one bucket, or a point where both are the same."""

    low: float
    high: float
    #: Class of the style sheet.
    look: str


@dataclass(frozen=True)
class Bucket:
    """One bucket of time: its start in Unix seconds, its marks, and its tooltip."""

    start_s: float
    marks: Sequence[Mark]
    title: str


@dataclass(frozen=True)
class Bar:
    """One bar: its name, the text at its end, its parts (value, class), and its tooltip."""

    name: str
    label: str
    parts: Sequence[tuple[float, str]]
    title: str


@dataclass(frozen=True)
class Scale:
    """Turns values into places. ``ticks`` are the values with a line and a label."""

    place: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


def rounded(shown: str) -> str:
    """A number on an axis, without the zeros after its point: ``10 ms`` for ``10.0 ms``."""
    return _ZEROS.sub("", shown)


def nice_step(span: float, most: int) -> float:
    """The smallest of 1, 2, 5 · 10^n that cuts ``span`` into at most ``most`` pieces."""
    rough = span / most
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * (1 - 1e-9))


def linear(highest: float, shown: Callable[[float], str]) -> Scale:
    """Upwards from 0, in round steps."""
    step = nice_step(highest or 1.0, 4)
    top = step * max(1, math.ceil((highest or 1.0) / step - 1e-9))
    height = HEIGHT - _TOP - _BOTTOM
    ticks = [(i * step, rounded(shown(i * step))) for i in range(round(top / step) + 1)]
    return Scale(lambda value: HEIGHT - _BOTTOM - value / top * height, ticks)


def logarithmic(lowest: float, highest: float) -> Scale:
    """Upwards in decades, for times in ms. Times below a microsecond are drawn at the bottom."""
    low = math.floor(math.log10(max(lowest, 1e-3)) + 1e-9)
    high = max(low + 1, math.ceil(math.log10(max(highest, 1e-3)) - 1e-9))
    height = HEIGHT - _TOP - _BOTTOM
    every = max(1, math.ceil((high - low) / 5))
    ticks = [(10.0**power, rounded(duration(10.0**power))) for power in range(low, high + 1, every)]
    return Scale(
        lambda value: HEIGHT - _BOTTOM - (math.log10(max(value, 10.0**low)) - low) / (high - low) * height, ticks
    )


def over_time(buckets: Sequence[Bucket], bucket_s: float, scale: Scale, label: str) -> Shape:
    """A chart of marks per bucket of ``bucket_s`` seconds, time to the right in UTC."""
    first = min(bucket.start_s for bucket in buckets)
    last = max(bucket.start_s for bucket in buckets) + bucket_s
    left = _left_of(text for _, text in scale.ticks)
    width = WIDTH - left - _RIGHT

    def across(seconds: float) -> float:
        return left + (seconds - first) / (last - first) * width

    pieces = _horizontal_lines(scale, left)
    for at, text in _time_ticks(first, last, width):
        pieces += _below(across(at), HEIGHT - 12, text, WIDTH)
    step = bucket_s / (last - first) * width
    thick = max(1.0, min(step * 0.8, 24))
    floor = HEIGHT - _BOTTOM
    for bucket in buckets:
        middle = across(bucket.start_s + bucket_s / 2)
        drawn = [_rect("hit", middle - step / 2, _TOP, step, floor - _TOP)]
        for mark in bucket.marks:
            high, low = scale.place(mark.high), scale.place(mark.low)
            if mark.low == mark.high:
                wide = min(max(thick, 4), step)
                drawn.append(_rect(mark.look, middle - wide / 2, high - 1, wide, 2))
            else:
                tall = max(low - high, 0.75)
                drawn.append(_rect(mark.look, middle - thick / 2, high, thick, tall, rx=min(1.5, thick / 3)))
        pieces.append(_titled(bucket.title, drawn))
    return _svg(label, HEIGHT, pieces)


def bars(rows: Sequence[Bar], label: str, *, line: tuple[float, str] | None = None) -> Shape:
    """Horizontal bars on one scale from 0; ``line`` is a value marked through all of them, and its name."""
    high = 26
    name_width = max(190.0, _room((row.name for row in rows), NAME_PX) + 10)
    told_width = max(76.0, _room((row.label for row in rows), NAME_PX) + _GAP)
    most = max([sum(value for value, _ in row.parts) for row in rows] + ([line[0]] if line else [])) or 1.0
    width = WIDTH - name_width - told_width
    above = 20 if line else 4
    height = above + high * len(rows) + 4
    pieces: list[Shape] = []
    for i, row in enumerate(rows):
        y = above + i * high
        drawn = [
            _rect("hit", 0, y, WIDTH, high),
            _text("name end", name_width - 10, y + 17, row.name),
        ]
        x = float(name_width)
        for value, look in row.parts:
            wide = value / most * width
            if wide > 0:
                drawn.append(_rect(look, x, y + 5, max(wide, 0.75), 16, rx=2))
            x += wide
        drawn.append(_text("value", x + _GAP, y + 17, row.label))
        pieces.append(_titled(row.title, drawn))
    if line:
        x = name_width + line[0] / most * width
        pieces += [_line("mean", (x, above - 4), (x, height)), _text("tick mid", x, 12, line[1])]
    return _svg(label, height, pieces)


def histogram(
    bins: Sequence[tuple[float, float, int]],
    between: tuple[float, float],
    marks: Sequence[tuple[str, float]],
    label: str,
) -> Shape:
    """Bars of (from ms, to ms, how many) on a logarithmic axis ``between`` two times, with named times marked."""
    low, high = math.log10(between[0]), math.log10(between[1])
    above, height = 22, HEIGHT - 40
    floor = height - _BOTTOM
    most = max(n for _, _, n in bins)
    step = nice_step(most, 3)
    ticks = [(i * step, rounded(significant(i * step))) for i in range(math.floor(most / step) + 1)]
    left = _left_of(text for _, text in ticks)
    width = _NARROW - left - _RIGHT

    def across(ms: float) -> float:
        return left + (math.log10(max(ms, between[0])) - low) / (high - low) * width

    scale = Scale(lambda n: floor - n / most * (floor - above), ticks)
    pieces = _horizontal_lines(scale, left, _NARROW)
    every = max(1, math.ceil((high - low) / 5))
    for power in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1, every):
        place = 10.0**power
        pieces += _below(across(place), height - 12, rounded(duration(place)), _NARROW)
    for start, end, n in bins:
        x, wide = across(start), across(end) - across(start)
        tall = max(n / most * (floor - above), 0.75)
        bar = _rect("one", x + 0.75, floor - tall, max(wide - 1.5, 1), tall, rx=1.5)
        pieces.append(_titled(f"{duration(start)} to {duration(end)}: {n:,}", [bar]))
    beside = -math.inf
    for name, ms in marks:
        x = across(ms)
        pieces.append(_line("mark", (x, above - 4), (x, floor)))
        wide = _room([name], TICK_PX)
        # Where there is no room at the right edge, the name is a little beside its line.
        middle = min(x, _NARROW - wide / 2)
        if middle - beside > wide:
            pieces.append(_text("tick mid", middle, 12, name))
            beside = middle
    return _svg(label, height, pieces, _NARROW)


def _room(texts: Iterable[str], size: float) -> float:
    """How wide the longest of the texts can be."""
    return max((len(text) for text in texts), default=0) * size * _CHARACTER


def _left_of(texts: Iterable[str]) -> float:
    """The place of a vertical axis that has these texts on its left."""
    return max(float(_LEFT), _room(texts, TICK_PX) + _GAP)


def _below(x: float, y: float, text: str, width: int) -> list[Shape]:
    """A text centred at ``x`` below an axis; nothing where it would leave a picture of this width."""
    half = _room([text], TICK_PX) / 2
    return [_text("tick mid", x, y, text)] if half <= x <= width - half else []


def _horizontal_lines(scale: Scale, left: float, width: int = WIDTH) -> list[Shape]:
    lines = []
    for value, text in scale.ticks:
        y = scale.place(value)
        lines += [_line("grid", (left, y), (width - _RIGHT, y)), _text("tick end", left - _GAP, y + 4, text)]
    return lines


def _time_ticks(first: float, last: float, width: float) -> list[tuple[float, str]]:
    """Times from ``first`` to ``last`` (Unix seconds) and their texts, so few that the texts have room in ``width``."""
    span = last - first
    fitting = (step for step in _TIME_STEPS_S if span / step <= 6 and _fits(first, step, span, width))
    step = next(fitting, _TIME_STEPS_S[-1])
    numbers = range(math.ceil(first / step - 1e-9), math.floor(last / step) + 1)
    return [(number * step, _time(number * step, step, span)) for number in numbers]


def _fits(first: float, step: float, span: float, width: float) -> bool:
    """Whether the texts of times that are ``step`` seconds apart do not touch."""
    return _room([_time(first, step, span)], TICK_PX) + _GAP <= step / span * width


def _time(at: float, step: float, span: float) -> str:
    """A time on an axis that is ``span`` seconds long, with as much of it as tells it from the next one."""
    time = _EPOCH + timedelta(seconds=at)
    if step >= 86_400:
        return f"{time:%Y-%m-%d}"
    if step >= 60:
        return f"{time:%H:%M}" if span < 86_400 else f"{time:%m-%d %H:%M}"
    return f"{time:%H:%M:%S}" if step >= 1 else f"{time:%H:%M:%S.%f}"[:-3]


def _svg(label: str, height: float, pieces: Sequence[Shape], width: int = WIDTH) -> Shape:
    box = {"viewBox": f"0 0 {width} {_n(height)}", "role": "img", "aria-label": label}
    return Shape("svg", box, children=pieces)


def _titled(title: str, shapes: Sequence[Shape]) -> Shape:
    return Shape("g", {}, title=title, children=shapes)


def _rect(look: str, x: float, y: float, width: float, height: float, *, rx: float | None = None) -> Shape:
    places = {"x": _n(x), "y": _n(y), "width": _n(width), "height": _n(height)}
    return Shape("rect", {"class": look, **places, **({} if rx is None else {"rx": _n(rx)})})


def _line(look: str, start: tuple[float, float], end: tuple[float, float]) -> Shape:
    return Shape("line", {"class": look, "x1": _n(start[0]), "x2": _n(end[0]), "y1": _n(start[1]), "y2": _n(end[1])})


def _text(look: str, x: float, y: float, text: str) -> Shape:
    return Shape("text", {"class": look, "x": _n(x), "y": _n(y)}, text)


def _n(number: float) -> str:
    """A coordinate: short, and never an exponent."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
