"""Writes a usage report as one static HTML page with plots. The page loads nothing and runs no script."""

from __future__ import annotations

from html import escape

from fairlead.cli.time_options import local
from fairlead.cli.usage_report import UsageReport, days
from fairlead.cli.usage_text import cost_cells, figure_rows, head, hours, mix_words, percent, row_cells, span_words
from fairlead.jobs.busy_definition import DEFINITION, Ladder

WIDTH, HEIGHT, LEFT, BOTTOM = 900, 260, 60, 24
ROWS_MAX = 50
STYLE = """body{font:15px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#172b4d;background:#fff}
table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:left;border-bottom:1px solid #dfe1e6}
svg{width:100%;height:auto}"""
#: Colours that people with a colour deficiency can tell apart (Okabe and Ito).
COLOURS = {"unmeasured": "#999999", "allocated": "#56b4e9", "busy": "#0072b2", "SM-active": "#e69f00", "at 0 %": "#d55e00"}


def page(report: UsageReport, by: str) -> str:
    """Return the page. Names come from Slurm and are escaped."""
    title = escape(f"GPU usage {report.period.name}")
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    body = [
        f"<h1>{title}</h1>",
        f"<p>{escape(span_words(report.period))}; definition {DEFINITION}; {report.sums.jobs} jobs with GPUs</p>",
    ]
    body += [_table(figure_rows(report.sums)), "<h2>GPU-hours by day</h2>", _legend(), by_day(report)]
    if report.rows:
        more = f"<p>{len(report.rows) - ROWS_MAX} more are in the text and in the CSV.</p>" if len(report.rows) > ROWS_MAX else ""
        rows = [row_cells(name, sums) for name, sums in report.rows[:ROWS_MAX]]
        body += [f"<h2>By {escape(by)}</h2>", by_name(report), _table([head(by), *rows]), more]
    body += ["<h2>Cost, energy, carbon</h2>", _table([("", "", "basis"), *map(cost_cells, report.costs)])]
    body += [f"<p>Allocated GPU-hours by kind of job: {escape(mix_words(report.mix))}</p>"]
    if report.mistakes:
        items = "".join(f"<li>{escape(line)}</li>" for line in report.mistakes[:ROWS_MAX])
        body += [f"<h2>Not read</h2><p>{len(report.mistakes)} lines</p><ul>{items}</ul>"]
    return (
        f'<!doctype html>\n<html lang="en"><head>{meta}{policy}<title>{title}</title><style>{STYLE}</style></head>\n<body>'
        + "\n".join(body)
        + "</body></html>\n"
    )


def _table(rows: list[tuple[str, ...]]) -> str:
    first, *rest = rows
    cells = ["<tr>" + "".join(f"<th>{escape(c)}</th>" for c in first) + "</tr>"]
    cells += ["<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rest]
    return f"<table>{''.join(cells)}</table>"


def _legend() -> str:
    items = [f'<span style="color:{colour}">&#9632;</span> {name}' for name, colour in COLOURS.items() if name != "at 0 %"]
    return f"<p>{' &nbsp; '.join(items)} (allocated is not busy, or not SM-active, where it is lighter)</p>"


def by_day(report: UsageReport) -> str:
    """Return a plot: for each day one bar of allocated GPU-hours, in it busy and SM-active, and on top what nobody measured."""
    periods = days(report.period)
    top = max([sums.capacity or sums.allocated for sums in report.days], default=0.0)
    if not top:
        return "<p>No GPU was allocated.</p>"
    step = (WIDTH - LEFT) / len(periods)
    out = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="GPU-hours by day">']
    for part in (0.0, 0.5, 1.0):
        y = _y(part * top, top)
        out.append(f'<path d="M{LEFT} {y:.0f}H{WIDTH}" stroke="#dfe1e6"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.0f}" font-size="11" text-anchor="end">{hours(part * top)}</text>')
    for i, (period, sums) in enumerate(zip(periods, report.days, strict=True)):
        out += _bars(sums, LEFT + i * step, max(1.0, step - 2), top, f"{local(period.begin_unix)[:10]}")
        if i % max(1, len(periods) // 8) == 0:
            label = local(period.begin_unix)[5:10]
            out.append(f'<text x="{LEFT + i * step:.0f}" y="{HEIGHT - 6}" font-size="11">{label}</text>')
    return "\n".join([*out, "</svg>"])


def _bars(sums: Ladder, x: float, width: float, top: float, day: str) -> list[str]:
    """Return the bars of one day, from the back to the front."""
    said = f"{day}: allocated {hours(sums.allocated)}, busy {hours(sums.busy)}, coverage {percent(sums.coverage)}"
    values = [("unmeasured", sums.allocated), ("allocated", sums.seen), ("busy", sums.busy), ("SM-active", sums.sm)]
    out = []
    for name, value in values:
        y = _y(min(value, top), top)
        height = HEIGHT - BOTTOM - y
        if height > 0:
            bar = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{COLOURS[name]}">'
            out.append(f"{bar}<title>{escape(said)}</title></rect>")
    return out


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 10) * value / top


def by_name(report: UsageReport) -> str:
    """Return a plot: for each name one bar of allocated GPU-hours, in it the busy part and the part at 0 %."""
    rows = report.rows[:20]
    top = max(sums.allocated for _, sums in rows)
    out = [f'<svg viewBox="0 0 {WIDTH} {len(rows) * 22 + 4}" role="img" aria-label="GPU-hours by name">']
    for i, (name, sums) in enumerate(rows):
        y = i * 22 + 4
        out.append(f'<text x="150" y="{y + 12}" font-size="12" text-anchor="end">{escape(name[:24] or "-")}</text>')
        for value, key in ((sums.allocated, "unmeasured"), (sums.seen, "allocated"), (sums.busy, "busy")):
            width = (WIDTH - 170) * value / top if top else 0.0
            said = f"{name}: allocated {hours(sums.allocated)}, busy {hours(sums.busy)}, at 0 % {hours(sums.zero)}"
            bar = f'<rect x="160" y="{y}" width="{width:.1f}" height="16" fill="{COLOURS[key]}">'
            out.append(f"{bar}<title>{escape(said)}</title></rect>")
    return "\n".join([*out, "</svg>"])
