"""Plots as SVG that lies inside a page: lines and stacked bars, in the page's own colours and type.

Drawn here rather than by a plotting library, so that a report needs no extra package, scales with the page,
and follows its light and dark colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 420, 260
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 40
NUM_TICKS = 5


@dataclass(frozen=True, slots=True)
class Line:
    """Points joined by a line."""

    name: str
    points: Sequence[tuple[float, float]]
    color: int
    """Which of the page's series colours, from 1."""
    is_dashed: bool = False
    bands: Sequence[tuple[float, float]] | None = None
    """(low, high) at each point."""


def line_plot(
    lines: Sequence[Line],
    *,
    label: str,
    x_label: str,
    y_label: str,
    is_log: bool = False,
    y_most: float | None = None,
    mark: tuple[float, str] | None = None,
) -> Markup:
    """Return a plot of lines.

    Args:
        lines: with at least one point together.
        label: what the picture shows, for those who do not see it.
        x_label, y_label: of the axes.
        is_log: whether x is on a logarithmic scale of base 2.
        y_most: top of the scale; none takes the greatest value.
        mark: an x with a word, marked by a vertical line.
    """
    xs = sorted({x for line in lines for x, _ in line.points})
    most = y_most or nice(max((y for line in lines for _, y in line.points), default=1.0))
    place = _Axes(xs[0], max(xs[-1], xs[0] + (0 if is_log else 1)), most, is_log)
    parts = [place.grid(most), *place.x_ticks(xs)]
    if mark is not None and xs[0] <= mark[0] <= xs[-1]:
        x = place.x(mark[0])
        is_right = x > WIDTH * 0.7
        parts.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            f'<text class="marked" x="{x + (-5 if is_right else 5):.1f}" y="{TOP + 11}" '
            f'text-anchor="{"end" if is_right else "start"}">{escape(mark[1])}</text>'
        )
    parts += [place.line(line) for line in lines]
    return _picture(parts, label, x_label, y_label)


def bars(
    rows: Sequence[tuple[str, Mapping[str, float]]], *, label: str, unit: str, colors: Mapping[str, int]
) -> Markup:
    """Return stacked horizontal bars, one row each: a name, and parts by name."""
    height = 30 * len(rows) + 34
    most = nice(max((sum(parts.values()) for _, parts in rows), default=1.0))
    left, width = 104, WIDTH - 104 - 46
    found = [
        f'<line class="grid" x1="{left + width * i / 4:.1f}" x2="{left + width * i / 4:.1f}" y1="4" '
        f'y2="{height - 28}"/><text class="tick" x="{left + width * i / 4:.1f}" y="{height - 14}" '
        f'text-anchor="middle">{_number(most * i / 4)}</text>'
        for i in range(5)
    ]
    for place, (name, parts) in enumerate(rows):
        y, x = 8 + 30 * place, float(left)
        found.append(
            f'<text class="tick" x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>'
        )
        for part, value in parts.items():
            size = width * value / most
            title = f"<title>{escape(name)}, {escape(part)}: {value:.1f} {escape(unit)}</title>"
            found.append(
                f'<rect class="fill c{colors[part]}" x="{x:.1f}" y="{y}" width="{size:.1f}" height="18">'
                f"{title}</rect>"
            )
            x += size
        total = sum(parts.values())
        found.append(f'<text class="tick" x="{x + 5:.1f}" y="{y + 13}">{_number(total)}</text>')
    found.append(
        f'<text class="axis" x="{left + width / 2:.0f}" y="{height - 1}" text-anchor="middle">'
        f"{escape(unit)}</text>"
    )
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(found)}</svg>'
    )


def nice(value: float) -> float:
    """Return a round number not below a value."""
    if not value > 0:
        return 1.0
    size: float = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * size >= value * 0.999)


@dataclass(frozen=True, slots=True)
class _Axes:
    x_low: float
    x_high: float
    y_high: float
    is_log: bool

    def x(self, value: float) -> float:
        low, high, at = self.x_low, self.x_high, value
        if self.is_log:
            low, high, at = math.log2(low), math.log2(high), math.log2(value)
        share = (at - low) / (high - low) if high > low else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - min(value / self.y_high, 1.0) * (HEIGHT - TOP - BOTTOM)

    def grid(self, most: float) -> str:
        found = []
        for place in range(NUM_TICKS):
            value = most * place / (NUM_TICKS - 1)
            y = self.y(value)
            found.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>'
            )
        return "".join(found)

    def x_ticks(self, values: Sequence[float]) -> list[str]:
        found, last = [], -math.inf
        for value in values:
            x = self.x(value)
            if x - last < 24:
                continue
            last = x
            found.append(
                f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
                f"{_number(value)}</text>"
            )
        return found

    def line(self, line: Line) -> str:
        if not line.points:
            return ""
        places = [(self.x(x), self.y(y)) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dashed = ' stroke-dasharray="5 4"' if line.is_dashed else ""
        found = ""
        if line.bands is not None and len(places) > 1:
            high = [(x, self.y(band[1])) for (x, _), band in zip(places, line.bands, strict=True)]
            low = [(x, self.y(band[0])) for (x, _), band in zip(places, line.bands, strict=True)]
            around = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*high, *reversed(low)])
            found += f'<polygon class="band c{line.color}" points="{around}"/>'
        found += f'<polyline class="line c{line.color}" points="{path}"{dashed}/>'
        if not line.is_dashed:
            for (x, y), (at, value) in zip(places, line.points, strict=True):
                title = f"<title>{escape(line.name)}: {_number(value)} at {_number(at)}</title>"
                found += (
                    f'<circle class="dot c{line.color}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{title}</circle>'
                )
        return found


def _picture(parts: Sequence[str], label: str, x_label: str, y_label: str) -> Markup:
    middle = (HEIGHT - BOTTOM + TOP) / 2
    axes = (
        f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">'
        f'{escape(x_label)}</text><text class="axis" transform="translate(11 {middle:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}{axes}</svg>"
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"
