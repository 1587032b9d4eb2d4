"""The charts of the page: plain SVG, drawn from rows. Colours and fonts are the style sheet's (classes, no attributes).

Every text that comes from outside goes through `escaped`. Every mark has a ``<title>``, which browsers show as a
tooltip and screen readers read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape

from spark.reporting.numbers import duration, significant

#: Places in the pictures, about a pixel each on a wide screen.
WIDTH, HEIGHT = 560, 240
_NARROW = 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 14, 34
_ZEROS = re.compile(r"\.0+(?!\d)|(?<=\.\d)0+(?!\d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_STEPS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, 86400, 2 * 86400, 7 * 86400, 30 * 86400, 365 * 86400),
)


@dataclass(frozen=True)
class Mark:
    """A mark of a chart over time: from ``low`` to ``high`` in one bucket, or a point where both are the same."""

    low: float
    high: float
    #: Class of the style sheet.
    look: str


@dataclass(frozen=True)
class Bucket:
    """One bucket of time: its start in Unix seconds, its marks, and what its tooltip says."""

    start_s: float
    marks: Sequence[Mark]
    title: str


@dataclass(frozen=True)
class Bar:
    """One bar: its name, what it says at its end, its parts (value, class), and its tooltip."""

    name: str
    told: str
    parts: Sequence[tuple[float, str]]
    title: str


@dataclass(frozen=True)
class Scale:
    """From values to places, with the values that get a line and a label."""

    place: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


def escaped(text: str) -> str:
    """Text fit for HTML and SVG, between tags and in attributes."""
    return escape(text, quote=True)


def rounded(shown: str) -> str:
    """A number on an axis, without the zeros behind its point: ``10 ms`` for ``10.0 ms``."""
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
    """Upwards in decades, for times in ms. What is below a microsecond is drawn at its foot."""
    low = math.floor(math.log10(max(lowest, 1e-3)) + 1e-9)
    high = max(low + 1, math.ceil(math.log10(max(highest, 1e-3)) - 1e-9))
    height = HEIGHT - _TOP - _BOTTOM
    every = max(1, math.ceil((high - low) / 5))
    ticks = [(10.0**power, rounded(duration(10.0**power))) for power in range(low, high + 1, every)]
    return Scale(
        lambda value: HEIGHT - _BOTTOM - (math.log10(max(value, 10.0**low)) - low) / (high - low) * height, ticks
    )


def over_time(buckets: Sequence[Bucket], bucket_s: float, scale: Scale, label: str) -> str:
    """A chart of marks per bucket of ``bucket_s`` seconds, time to the right in UTC."""
    first = min(bucket.start_s for bucket in buckets)
    last = max(bucket.start_s for bucket in buckets) + bucket_s
    width = WIDTH - _LEFT - _RIGHT

    def across(seconds: float) -> float:
        return _LEFT + (seconds - first) / (last - first) * width

    pieces = [_horizontal_lines(scale)]
    for at, text in _time_ticks(first, last):
        pieces.append(f'<text class="tick mid" x="{_n(across(at))}" y="{HEIGHT - 12}">{text}</text>')
    step = bucket_s / (last - first) * width
    thick = max(1.0, min(step * 0.8, 24))
    floor = HEIGHT - _BOTTOM
    for bucket in buckets:
        middle = across(bucket.start_s + bucket_s / 2)
        drawn = [
            f'<rect class="hit" x="{_n(middle - step / 2)}" y="{_TOP}" width="{_n(step)}" height="{floor - _TOP}"/>'
        ]
        for mark in bucket.marks:
            high, low = scale.place(mark.high), scale.place(mark.low)
            if mark.low == mark.high:
                wide = min(max(thick, 4), step)
                drawn.append(
                    f'<rect class="{mark.look}" x="{_n(middle - wide / 2)}" y="{_n(high - 1)}" width="{_n(wide)}" '
                    'height="2"/>'
                )
            else:
                drawn.append(
                    f'<rect class="{mark.look}" x="{_n(middle - thick / 2)}" y="{_n(high)}" width="{_n(thick)}" '
                    f'height="{_n(max(low - high, 0.75))}" rx="{_n(min(1.5, thick / 3))}"/>'
                )
        pieces.append(f"<g><title>{escaped(bucket.title)}</title>{''.join(drawn)}</g>")
    return _svg(label, HEIGHT, pieces)


def bars(rows: Sequence[Bar], label: str, *, line: tuple[float, str] | None = None) -> str:
    """Horizontal bars on one scale from 0; ``line`` is a value marked through all of them, and its name."""
    high, name_width, told_width = 26, 190, 76
    most = max([sum(value for value, _ in row.parts) for row in rows] + ([line[0]] if line else [])) or 1.0
    width = WIDTH - name_width - told_width
    above = 20 if line else 4
    height = above + high * len(rows) + 4
    pieces = []
    for i, row in enumerate(rows):
        y = above + i * high
        drawn = [
            f'<rect class="hit" x="0" y="{y}" width="{WIDTH}" height="{high}"/>',
            f'<text class="name end" x="{name_width - 10}" y="{y + 17}">{escaped(row.name)}</text>',
        ]
        x = float(name_width)
        for value, look in row.parts:
            wide = value / most * width
            if wide > 0:
                drawn.append(
                    f'<rect class="{look}" x="{_n(x)}" y="{y + 5}" width="{_n(max(wide, 0.75))}" height="16" rx="2"/>'
                )
            x += wide
        drawn.append(f'<text class="told" x="{_n(x + 8)}" y="{y + 17}">{escaped(row.told)}</text>')
        pieces.append(f"<g><title>{escaped(row.title)}</title>{''.join(drawn)}</g>")
    if line:
        x = name_width + line[0] / most * width
        pieces.append(f'<line class="mean" x1="{_n(x)}" x2="{_n(x)}" y1="{above - 4}" y2="{height}"/>')
        pieces.append(f'<text class="tick mid" x="{_n(x)}" y="12">{escaped(line[1])}</text>')
    return _svg(label, height, pieces)


def histogram(
    bins: Sequence[tuple[float, float, int]],
    between: tuple[float, float],
    marks: Sequence[tuple[str, float]],
    label: str,
) -> str:
    """Bars of (from ms, to ms, how many) on a logarithmic axis ``between`` two times, with named times marked."""
    low, high = math.log10(between[0]), math.log10(between[1])
    width, above = _NARROW - _LEFT - _RIGHT, 22
    height = HEIGHT - 40
    floor = height - _BOTTOM

    def across(ms: float) -> float:
        return _LEFT + (math.log10(max(ms, between[0])) - low) / (high - low) * width

    most = max(n for _, _, n in bins)
    step = nice_step(most, 3)
    pieces = []
    for i in range(math.floor(most / step) + 1):
        y = floor - i * step / most * (floor - above)
        pieces.append(f'<line class="grid" x1="{_LEFT}" x2="{_NARROW - _RIGHT}" y1="{_n(y)}" y2="{_n(y)}"/>')
        pieces.append(f'<text class="tick end" x="{_LEFT - 8}" y="{_n(y + 4)}">{rounded(significant(i * step))}</text>')
    every = max(1, math.ceil((high - low) / 5))
    for power in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1, every):
        text = rounded(duration(10.0**power))
        pieces.append(f'<text class="tick mid" x="{_n(across(10.0**power))}" y="{height - 12}">{text}</text>')
    for start, end, n in bins:
        x, wide = across(start), across(end) - across(start)
        tall = max(n / most * (floor - above), 0.75)
        title = f"{duration(start)} to {duration(end)}: {n:,}"
        pieces.append(
            f'<g><title>{escaped(title)}</title><rect class="one" x="{_n(x + 0.75)}" y="{_n(floor - tall)}" '
            f'width="{_n(max(wide - 1.5, 1))}" height="{_n(tall)}" rx="1.5"/></g>'
        )
    beside = -math.inf
    for name, ms in marks:
        x = across(ms)
        pieces.append(f'<line class="mark" x1="{_n(x)}" x2="{_n(x)}" y1="{above - 4}" y2="{floor}"/>')
        if x - beside > 26:
            pieces.append(f'<text class="tick mid" x="{_n(x)}" y="12">{escaped(name)}</text>')
            beside = x
    return _svg(label, height, pieces, _NARROW)


def _horizontal_lines(scale: Scale) -> str:
    lines = []
    for value, text in scale.ticks:
        y = scale.place(value)
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{_n(y)}" y2="{_n(y)}"/>')
        lines.append(f'<text class="tick end" x="{_LEFT - 8}" y="{_n(y + 4)}">{escaped(text)}</text>')
    return "".join(lines)


def _time_ticks(first: float, last: float) -> list[tuple[float, str]]:
    step = next((step for step in _TIME_STEPS_S if (last - first) / step <= 6), _TIME_STEPS_S[-1])
    found, at = [], math.ceil(first / step - 1e-9) * step
    while at <= last:
        time = _EPOCH + timedelta(seconds=at)
        if step >= 86_400:
            text = f"{time:%Y-%m-%d}"
        elif step >= 60:
            text = f"{time:%H:%M}" if last - first < 86_400 else f"{time:%m-%d %H:%M}"
        else:
            text = f"{time:%H:%M:%S}" if step >= 1 else f"{time:%H:%M:%S.%f}"[:-3]
        # Not where its text would leave the picture.
        if 0.02 < (at - first) / (last - first) < 0.97:
            found.append((at, text))
        at += step
    return found


def _svg(label: str, height: float, pieces: Sequence[str], width: int = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} {_n(height)}" role="img" aria-label="{escaped(label)}">{"".join(pieces)}</svg>'


def _n(number: float) -> str:
    """A coordinate: short, and never an exponent."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
