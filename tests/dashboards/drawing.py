"""Draws a dashboard as SVG from what Prometheus answered to its panels' queries. It is not Grafana's drawing, and says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from release.dashboards.panel import SIZES, Dashboard, Panel

COLUMN, LINE = 50, 32  # pixels of one of Grafana's 24 columns, and of one unit of height
LEFT, WIDTH = 12, 24 * COLUMN
COLOURS = ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#66a61e", "#a6761d", "#444444")
#: Labels of a series that no table shows: the scrape's own, and those that only joins need.
OWN = ("__name__", "job_name", "fairlead", "uuid")
Found = Sequence[Mapping[str, Any]]
Ask = Callable[[Panel], Found]


class Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float


def number(value: float, unit: str) -> str:
    """Return a value as a panel shows it."""
    if math.isnan(value):
        return "no value"
    if unit in ("percent", "percentunit"):
        return f"{100 * value:.3g} %"
    if unit in ("bytes", "hertz"):
        power = min(4, int(math.log(abs(value), 1000))) if abs(value) >= 1 else 0
        return f"{value / 1000**power:.3g} {('', 'k', 'M', 'G', 'T')[power]}{'B' if unit == 'bytes' else 'Hz'}"
    end = {"seconds": " s", "celsius": " °C", "watts": " W", "kwatth": " kWh", "s": " s"}.get(unit, "")
    return f"{value:.4g}{end}" if abs(value) < 1e5 else f"{value:.3g}{end}"


def words(text: str, x: float, y: float, size: int = 12, **more: str) -> str:
    style = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}"{style}>{escape(text)}</text>'


def cut(text: str, pixels: float, size: int = 12) -> str:
    most = max(3, int(pixels / (0.56 * size)))
    return text if len(text) <= most else text[: most - 1] + "…"


def legend(panel: Panel, series: Mapping[str, Any]) -> str:
    """Return the name of a line: the panel's text with the labels in it."""
    text = panel.legend or "{{check}} {{device}}"
    for key, value in series["metric"].items():
        text = text.replace(f"{{{{{key}}}}}", value)
    return text


def picture(dashboard: Dashboard, ask: Ask, subtitle: str) -> str:
    """Return the picture. ``ask``: what the Prometheus answers to a panel's query."""
    out: list[str] = []
    y = 62.0
    for row in dashboard.rows:
        out.append(words(row.title, LEFT, y + 16, 15, font_weight="bold"))
        y += 26
        column, tallest = 0, 0
        for panel in row.panels:
            width, height = SIZES[panel.kind]
            width = 24 if panel.wide else width
            if column + width > 24:
                y, column, tallest = y + tallest * LINE + 8, 0, 0
            out += _panel(panel, ask(panel), Box(LEFT + column * COLUMN, y, width * COLUMN - 8, height * LINE - 4))
            column, tallest = column + width, max(tallest, height)
        y += tallest * LINE + 14
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 2 * LEFT} {y:g}" font-family="sans-serif" fill="#222">'
    top = ['<rect width="100%" height="100%" fill="#f4f5f5"/>', words(dashboard.title, LEFT, 28, 20, font_weight="bold")]
    return "\n".join([head, *top, words(subtitle, LEFT, 48, 12, fill="#555"), *out, "</svg>", ""])


def _panel(panel: Panel, found: Found, box: Box) -> Iterator[str]:
    x, y, width, height = box
    yield f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="#fff" stroke="#d5d5d5"/>'
    size = min(13, int((width - 16) / (0.62 * len(panel.title))))
    yield words(panel.title, x + 8, y + 18, size, font_weight="bold")
    draw = {"stat": _stat, "table": _table, "lines": _lines, "states": _states}[panel.kind]
    if not found:
        yield words("No data", x + width / 2 - 26, y + height / 2 + 8, 14, fill="#777")
        return
    yield from draw(panel, found, Box(x + 8, y + 28, width - 16, height - 36))


def _stat(panel: Panel, found: Found, box: Box) -> Iterator[str]:
    x, y, width, height = box
    each = width / len(found)
    for n, series in enumerate(found):
        shown = number(float(series["value"][1]), panel.unit)
        yield words(shown, x + n * each + each / 2, y + height / 2 + 12, 34, text_anchor="middle")
        if panel.legend:
            yield words(legend(panel, series), x + n * each + each / 2, y + height - 2, 13, text_anchor="middle", fill="#555")


def _table(panel: Panel, found: Found, box: Box) -> Iterator[str]:
    x, y, width, height = box
    hidden = {*OWN, *panel.hidden, *([] if any(s["metric"].get("job", "").isdecimal() for s in found) else ["job"])}
    names = [name for name in dict.fromkeys(name for s in found for name in sorted(s["metric"])) if name not in hidden]
    rows = [[s["metric"].get(name, "") for name in names] for s in found]
    if "Value" not in panel.hidden:
        names, rows = (
            [*names, "Value"],
            [[*r, number(float(s["value"][1]), panel.unit)] for r, s in zip(rows, found, strict=True)],
        )
    fit = int(height // 18) - 1
    wide = [max(len(name), *(len(r[n]) for r in rows)) for n, name in enumerate(names)]
    starts = [x + width * sum(wide[:n]) / max(1, sum(wide)) for n in range(len(names) + 1)]
    for at, cells in enumerate([names, *rows[:fit]]):
        line = y + 14 + 18 * at
        yield f'<line x1="{x:g}" x2="{x + width:g}" y1="{line + 5:g}" y2="{line + 5:g}" stroke="#eee"/>'
        for n, cell in enumerate(cells):
            yield words(cut(cell, starts[n + 1] - starts[n] - 4), starts[n], line, 12, fill="#555" if at == 0 else "#222")
    if len(rows) > fit:
        yield words(f"and {len(rows) - fit} more", x + width, y - 10, 12, text_anchor="end", fill="#777")


def _lines(panel: Panel, found: Found, box: Box) -> Iterator[str]:
    x, y, width, height = box
    begin, end = _span(found)
    values = [float(v) for s in found for _, v in s["values"]]
    top = max(max(values), 0.0) or 1.0
    x0, bottom, right = x + 56, y + height - 38, x + width
    for part in (0.0, 0.5, 1.0):
        at = bottom - part * (bottom - y - 4)
        yield f'<line x1="{x0:g}" x2="{right:g}" y1="{at:g}" y2="{at:g}" stroke="#eee"/>'
        yield words(number(top * part, panel.unit), x0 - 6, at + 4, 11, text_anchor="end", fill="#555")
    yield from _minutes(begin, end, x0, right, bottom + 14)
    named = x
    for n, series in enumerate(found):
        colour = COLOURS[n % len(COLOURS)]
        points = [
            (x0 + (right - x0) * (float(t) - begin) / (end - begin), bottom - (bottom - y - 4) * float(v) / top)
            for t, v in series["values"]
        ]
        for run in _unbroken(points, (right - x0) * 90 / (end - begin)):
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in run)
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6" stroke-linecap="square"/>'
        text = legend(panel, series)
        if named + 7 * len(text) + 22 < right:
            yield f'<rect x="{named:g}" y="{bottom + 22:g}" width="12" height="4" fill="{colour}"/>'
            yield words(text, named + 16, bottom + 28, 11)
            named += 7 * len(text) + 26


def _unbroken(points: Sequence[tuple[float, float]], gap: float) -> Iterator[list[tuple[float, float]]]:
    """Yield the parts of a line between gaps. A part of one point is drawn as a short dash."""
    run: list[tuple[float, float]] = []
    for point in points:
        if run and point[0] - run[-1][0] > gap:
            yield run if len(run) > 1 else [*run, (run[0][0] + 2, run[0][1])]
            run = []
        run.append(point)
    yield run if len(run) > 1 else [*run, (run[0][0] + 2, run[0][1])]


def _states(panel: Panel, found: Found, box: Box) -> Iterator[str]:
    x, y, width, height = box
    begin, end = _span(found)
    fit = found[: int((height - 20) // 20)]
    x0, right = x + 190, x + width
    step = (right - x0) * 60 / (end - begin)
    for n, series in enumerate(fit):
        yield words(cut(legend(panel, series), 185), x, y + 14 + 20 * n)
        for time, value in series["values"]:
            if float(value):
                at = x0 + (right - x0) * (float(time) - begin) / (end - begin)
                size = f'width="{min(step + 0.5, right - at):.1f}" height="15"'
                yield f'<rect x="{at:.1f}" y="{y + 2 + 20 * n:g}" {size} fill="{COLOURS[n % 8]}"/>'
    yield from _minutes(begin, end, x0, right, y + 16 + 20 * len(fit))


def _minutes(begin: float, end: float, left: float, right: float, y: float) -> Iterator[str]:
    for minute in range(0, int((end - begin) / 60) + 1, 10):
        at = left + (right - left) * 60 * minute / (end - begin)
        yield words(f"{minute} min", at, y, 11, text_anchor="end" if at > right - 20 else "middle", fill="#555")


def _span(found: Found) -> tuple[float, float]:
    """Return the first and the last time of the hour, which the query of a range begins and ends with."""
    begin, end = found[0]["span"]
    return float(begin), float(end)
