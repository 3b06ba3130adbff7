"""Writes the report of the fleet as one static HTML page with plots. The page loads nothing and runs no script."""

from __future__ import annotations

from html import escape

from fairlead.cli.fleet_sections import FleetSection, causes_of, sections, span_words
from fairlead.cli.usage_page import HEIGHT, LEFT, STYLE, WIDTH
from fairlead.fleet.fleet_report import FleetReport
from fairlead.fleet.incident_rates import Month

BOTTOM = 24
MISTAKES_MAX = 50
CAUSES_MAX = 15
#: Colours that people with a colour deficiency can tell apart (Okabe and Ito).
BLUE, ORANGE, RED, GREY, LINE = "#0072b2", "#e69f00", "#d55e00", "#999999", "#dfe1e6"


def page(report: FleetReport) -> str:
    """Return the page. Names come from nodes and from Slurm and are escaped."""
    title = escape(f"Fleet report {report.timeframe.name}")
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    style = f"{STYLE}\n.definition{{color:#5e6c84}}table{{margin:.5rem 0}}.wide{{overflow-x:auto}}td{{vertical-align:top}}"
    plots = {"Incidents by cause": by_cause, "Availability": by_column, "Trend by month": by_month}
    body = [f"<h1>{title}</h1>", f"<p>{escape(span_words(report))}</p>"]
    for section in sections(report):
        plot = plots.get(section.title)
        body += [f"<h2>{escape(section.title)}</h2>", f'<p class="definition">{escape(section.definition)}</p>']
        body += [plot(report)] if plot is not None else []
        body += [_table(section)] if section.rows else []
        body += [f"<p>{escape(note)}</p>" for note in section.notes]
    if report.troubles:
        items = "".join(f"<li>{escape(line)}</li>" for line in report.troubles[:MISTAKES_MAX])
        body += [f"<h2>What does not fit together</h2><p>{len(report.troubles)} lines</p><ul>{items}</ul>"]
    return (
        f'<!doctype html>\n<html lang="en"><head>{meta}{policy}<title>{title}</title><style>{style}</style></head>\n<body>'
        + "\n".join(body)
        + "</body></html>\n"
    )


def _table(section: FleetSection) -> str:
    cells = ["<tr>" + "".join(f"<th>{escape(c)}</th>" for c in section.head) + "</tr>"]
    cells += ["<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in section.rows]
    return f'<div class="wide"><table>{"".join(cells)}</table></div>'


def by_cause(report: FleetReport) -> str:
    """Return a plot: for each cause one bar."""
    causes = causes_of(report)[:CAUSES_MAX]
    if not causes:
        return "<p>There was no incident.</p>"
    top = max(count for _, count in causes)
    out = [f'<svg viewBox="0 0 {WIDTH} {len(causes) * 22 + 4}" role="img" aria-label="Incidents by cause">']
    for i, (name, count) in enumerate(causes):
        y = i * 22 + 4
        width = (WIDTH - 220) * count / top
        out.append(f'<text x="150" y="{y + 12}" font-size="12" text-anchor="end">{escape(name[:24])}</text>')
        out.append(f'<rect x="160" y="{y}" width="{width:.1f}" height="16" fill="{BLUE}"/>')
        out.append(f'<text x="{166 + width:.1f}" y="{y + 12}" font-size="12">{count}</text>')
    return "\n".join([*out, "</svg>"])


def by_column(report: FleetReport) -> str:
    """Return a plot: for faults, maintenance and people one bar of the owned node-time that they took. The longest bar, or 1 % if
    all are shorter, has the whole width."""
    known = report.availability
    if known.owned_seconds <= 0:
        return "<p>Nothing is known.</p>"
    parts = (
        ("faults", known.fault_seconds, RED),
        ("maintenance", known.maintenance_seconds, BLUE),
        ("people's drains", known.person_seconds, ORANGE),
    )
    top = max(0.01 * known.owned_seconds, *(seconds for _, seconds, _ in parts))
    out = [f'<svg viewBox="0 0 {WIDTH} 70" role="img" aria-label="Node-time out of service">']
    for i, (name, seconds, colour) in enumerate(parts):
        y, width = i * 22 + 4, (WIDTH - 300) * seconds / top
        out.append(f'<text x="150" y="{y + 12}" font-size="12" text-anchor="end">{name}</text>')
        out.append(f'<rect x="160" y="{y}" width="{width:.1f}" height="16" fill="{colour}"/>')
        words = f"{100 * seconds / known.owned_seconds:.2f} % of owned"
        out.append(f'<text x="{166 + width:.1f}" y="{y + 12}" font-size="12">{words}</text>')
    return "\n".join([*out, "</svg>"])


def by_month(report: FleetReport) -> str:
    """Return a plot: for each month the rate with its interval, or the count where there are too few; a mark where drivers or
    checks have changed."""
    months = report.months
    tops = [m.rate.interval.high for m in months if m.rate.interval is not None]
    if not tops:
        return "<p>No month has enough incidents for a rate.</p>"
    top = max(tops)
    step = (WIDTH - LEFT) / len(months)
    out = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Incidents per 1,000 node-days by month">']
    for part in (0.0, 0.5, 1.0):
        y = _y(part * top, top)
        out.append(f'<path d="M{LEFT} {y:.0f}H{WIDTH}" stroke="{LINE}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.0f}" font-size="11" text-anchor="end">{part * top:.1f}</text>')
    for i, month in enumerate(months):
        out += _month(month, LEFT + (i + 0.5) * step, top)
    return "\n".join([*out, "</svg>", "<p>Per 1,000 node-days with 95 % interval. A dashed line: drivers or checks changed.</p>"])


def _month(month: Month, x: float, top: float) -> list[str]:
    out = []
    if month.changes:
        said = escape("; ".join(month.changes))
        line = f'<path d="M{x:.0f} 8V{HEIGHT - BOTTOM}" stroke="{ORANGE}" stroke-width="2" stroke-dasharray="4 4">'
        out.append(f"{line}<title>{said}</title></path>")
    interval = month.rate.interval
    if interval is None or month.rate.per_1000 is None:
        at = f'x="{x:.0f}" y="{HEIGHT - BOTTOM - 6}"'
        out.append(f'<text {at} font-size="11" text-anchor="middle" fill="{GREY}">{month.rate.count}</text>')
    else:
        low, high, y = _y(interval.low, top), _y(interval.high, top), _y(month.rate.per_1000, top)
        out.append(f'<path d="M{x:.0f} {low:.1f}V{high:.1f}" stroke="{BLUE}" stroke-width="3"/>')
        said = f"{month.name}: {month.rate.count} incidents, {month.rate.node_days:,.0f} node-days"
        out.append(f'<circle cx="{x:.0f}" cy="{y:.1f}" r="5" fill="{BLUE}"><title>{escape(said)}</title></circle>')
    out.append(f'<text x="{x:.0f}" y="{HEIGHT - 6}" font-size="11" text-anchor="middle">{escape(month.name)}</text>')
    return out


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 10) * value / top
