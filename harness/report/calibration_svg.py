"""The curves of a calibration as one SVG: panels of lines, drawn by a template."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.records import Record
from harness.report.calibration import Figures, size

TEMPLATE = Path(__file__).with_name("calibration.svg.j2")
WIDTH, HEIGHT = 460, 300
"""Of a panel, in pixels."""
LEFT, RIGHT, TOP, BOTTOM = 62, 28, 34, 78
"""Margins of a panel, in which its labels stand."""
HEAD = 40
COLUMNS = 2
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Told apart by colour-blind readers too: Okabe and Ito, Color Universal Design, 2008."""
TICKS = 5
"""Steps of the y axis, about."""
LABEL_WIDTH = 48
"""Room of a label on the x axis, in pixels."""


def _plain(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


@dataclass(frozen=True)
class Panel:
    """What one panel shows.

    Args:
        series: name -> x -> y.
        log: whether the x axis is logarithmic.
        label: how a number on the x axis is written.
        joined: whether a line joins the points.
    """

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Mapping[float, float]]
    log: bool = False
    label: Callable[[float], str] = _plain
    joined: bool = True


def panels(records: Iterable[Record]) -> list[Panel]:
    """The panels of which there are figures."""
    figures = Figures.of(records)
    curve = figures.curve
    times = {r.cell: r.value for r in figures.records if r.metric == "aa_us" and r.value}

    def spread(metric: str) -> dict[float, float]:
        found = {times[r.cell]: r.value for r in figures.records if r.metric == metric and r.value is not None and r.cell in times}
        return dict(sorted(found.items()))

    bandwidth = {"copy, cold": "copy_gbps", "read, cold": "read_gbps", "copy, warm": "warm_copy_gbps", "read, warm": "warm_read_gbps"}
    ring = {"copy": "ring_copy_gbps", "read": "ring_read_gbps"}
    true = curve("slowdown_true_percent")
    misread = {asked: read - true[asked] for asked, read in curve("slowdown_percent").items() if asked in true}
    lengths = curve("spin_true_us")
    added = {ns / 1000: us - lengths[ns] for ns, us in curve("spin_us").items() if ns in lengths}
    copies = {n: 2 * n / us / 1e3 for n, us in curve("copy_us").items()}
    made = (
        Panel("Bandwidth by size", "bytes of a buffer", "GB/s", {k: curve(v) for k, v in bandwidth.items()}, log=True, label=size),
        Panel("Cold curve", "ring, in last-level caches", "GB/s", {k: curve(v) for k, v in ring.items()}),
        Panel("Graphs of empty kernels", "nodes", "us a node in a row", {"us a node": curve("graph_node_us")}, log=True),
        Panel(
            "A/A: equal code",
            "us a call",
            "% of it",
            {"sd between launches": spread("aa_between_percent"), "se within a launch": spread("aa_within_percent")},
            log=True,
            joined=False,
        ),
        Panel("Spins: what reading adds", "us by their own timer", "us", {"read - true": added}, log=True),
        Panel("Slow-downs: read - injected", "injected, %", "points", {"read - true": misread}),
        Panel("Copies of known size", "bytes of a buffer", "GB/s", {"copy, cold": copies}, log=True, label=size),
    )
    return [panel for panel in made if any(panel.series.values())]


def render_svg(title: str, shown: Sequence[Panel]) -> str:
    """The panels as an SVG document.

    Args:
        shown: at least one panel.

    Raises:
        ValueError: no panel.
    """
    import jinja2

    if not shown:
        raise ValueError("render_svg: nothing to draw; give at least one panel")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    columns = min(COLUMNS, len(shown))
    drawn = [_place(panel, i % columns * WIDTH, HEAD + i // columns * HEIGHT) for i, panel in enumerate(shown)]
    height = HEAD + HEIGHT * math.ceil(len(shown) / columns)
    return environment.from_string(TEMPLATE.read_text()).render(title=title, width=WIDTH * columns, height=height, panels=drawn) + "\n"


def _place(panel: Panel, left: float, top: float) -> dict[str, object]:
    """A panel in pixels."""
    shown = {name: points for name, points in panel.series.items() if points}
    xs = [x for points in shown.values() for x in points]
    ys = [y for points in shown.values() for y in points.values()]
    low, high = min(0.0, *ys), max(0.0, *ys)
    y_ticks = _nice(low, high)
    low, high = min(low, y_ticks[0]), max(high, y_ticks[-1])
    scale = math.log if panel.log else float
    first, last = scale(min(xs)), scale(max(xs))
    x0, x1, y0, y1 = left + LEFT, left + WIDTH - RIGHT, top + HEIGHT - BOTTOM, top + TOP

    def x_at(x: float) -> float:
        return round((x0 + x1) / 2 if last == first else x0 + (scale(x) - first) / (last - first) * (x1 - x0), 1)

    def y_at(y: float) -> float:
        return round(y0 - (y - low) / (high - low or 1) * (y0 - y1), 1)

    return {
        "title": panel.title,
        "x_label": panel.x_label,
        "y_label": panel.y_label,
        "box": {"x": x0, "y": y1, "width": x1 - x0, "height": y0 - y1},
        "x_ticks": [{"at": at, "text": panel.label(x)} for at, x in _thinned([(x_at(x), x) for x in sorted(set(xs))])],
        "y_ticks": [{"at": y_at(y), "text": f"{y:g}"} for y in y_ticks],
        "series": [
            {
                "name": name,
                "colour": COLOURS[i % len(COLOURS)],
                "points": [(x_at(x), y_at(y)) for x, y in points.items()],
                "joined": panel.joined,
                "legend_x": x0 + i * (x1 - x0) / len(shown),
            }
            for i, (name, points) in enumerate(shown.items())
        ],
        "left": left,
        "bottom": top + HEIGHT,
    }


def _thinned(ticks: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The ticks, given as (pixel, value) in order, whose labels have room; the last is always among them."""
    kept: list[tuple[float, float]] = []
    for tick in ticks:
        if not kept or tick[0] - kept[-1][0] >= LABEL_WIDTH:
            kept.append(tick)
        elif tick == ticks[-1]:
            kept[-1] = tick
    return kept


def _nice(low: float, high: float) -> list[float]:
    """Round numbers that cover low to high, about TICKS of them."""
    span = (high - low) or 1.0
    raw = span / TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    begin, end = math.floor(low / step), math.ceil(high / step)
    return [round(i * step, 10) for i in range(begin, end + 1)]
