"""Plots: bars of text for a terminal, and PNG files where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from paceline.errors import ConfigError

WIDTH = 48


def text_bars(values: Mapping[str, float], unit: str, width: int = WIDTH) -> Iterator[str]:
    """Yield a line for each value: its name, a bar as long as it is great, and the value."""
    most = max(values.values(), default=0.0)
    size = max(map(len, values), default=0)
    for name, value in values.items():
        bar = "#" * max(1, round(width * value / most)) if most > 0 else ""
        yield f"{name.rjust(size)}  {bar} {value:.1f} {unit}"


def save_lines(
    path: Path,
    title: str,
    x_label: str,
    y_label: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    is_log: bool = False,
) -> None:
    """Draw lines through points into a PNG file, one panel.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    save_panels(path, {title: lines}, x_label, y_label, is_log=is_log)


def save_panels(
    path: Path,
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    x_label: str,
    y_label: str,
    *,
    is_log: bool = False,
) -> None:
    """Draw panels beside one another, each with its lines, into a PNG file.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    check_can_plot()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(panels), 4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for name, points in lines.items():
            # A name has its colour in all panels, also where it is missing in some.
            axis.plot(*zip(*points, strict=True), marker="o", label=name, color=f"C{names.index(name)}")
        axis.set(title=title, xlabel=x_label, ylabel=y_label)
        if is_log:
            values = sorted({x for points in lines.values() for x, _ in points})
            axis.set_xscale("log", base=2)
            axis.set_xticks(values, [f"{value:g}" for value in values], minor=False)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    try:
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise ConfigError(
            given=f"--plot {path} ({error})",
            expected="a file that can be written",
            remedy="Give another path",
        ) from None


def check_can_plot() -> None:
    """Raise a ConfigError, before anything is measured, if there is nothing to draw with."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ConfigError(
            given="--plot without matplotlib",
            expected="the extra `plot`",
            remedy="Install it with `pip install 'paceline[plot]'`, or leave --plot out",
        ) from None
