"""Our drawings of the dashboards: every panel is in them, no text of an answer is markup, nothing is drawn that is not known."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from release.dashboards.__main__ import DASHBOARDS
from release.dashboards.panel import Dashboard, Panel, Row
from tests.dashboards import drawing
from tests.dashboards.__main__ import IMAGES

HOSTILE = "<script>alert(1)</script>"


def answer(panel: Panel) -> Sequence[Mapping[str, Any]]:
    """Two series of an hour with a gap in it, one with a hostile label."""
    labels = ({"instance": "n1:9477", "check": HOSTILE, "index": "0"}, {"instance": "n2:9477", "check": "xid", "index": "1"})
    if panel.kind in ("lines", "states"):
        times = [t for t in range(0, 3601, 60) if not 600 < t < 1200]
        return [{"metric": metric, "values": [[t, "1"] for t in times], "span": (0, 3600)} for metric in labels]
    return [{"metric": metric, "value": [3600, "2.5"]} for metric in labels]


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_every_panel_is_drawn_and_no_label_becomes_markup(dashboard: Dashboard) -> None:
    svg = drawing.picture(dashboard, answer, "ours")
    assert {panel.title for row in dashboard.rows for panel in row.panels} <= set(texts(svg))
    assert "<script" not in svg and "No data" not in svg


def test_what_nobody_reported_is_no_number() -> None:
    svg = drawing.picture(DASHBOARDS[0], lambda panel: [], "ours")
    panels = [panel for row in DASHBOARDS[0].rows for panel in row.panels]
    assert texts(svg).count("No data") == len(panels) and "0" not in texts(svg)


def test_a_line_ends_where_a_gap_begins() -> None:
    panel = next(panel for row in DASHBOARDS[0].rows for panel in row.panels if panel.kind == "lines")
    svg = drawing.picture(Dashboard(name="x", title="x", text="x", rows=[Row(title="x", panels=[panel])]), answer, "ours")
    assert svg.count("<polyline") == 4, "two series, each before and after the gap"


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(0.25, "percent", "25 %"), (345e6, "hertz", "345 MHz"), (0, "bytes", "0 B"), (34, "celsius", "34 °C"), (32, "short", "32"),
     (math.nan, "short", "no value"), (1.8e9, "seconds", "1.8e+09 s")],
)  # fmt: skip
def test_units(value: float, unit: str, shown: str) -> None:
    assert drawing.number(value, unit) == shown


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_the_pictures_of_the_documentation_have_every_panel(dashboard: Dashboard) -> None:
    titles = {panel.title for row in dashboard.rows for panel in row.panels}
    missing = titles - set(texts((IMAGES / f"dashboard-{dashboard.name}.svg").read_text()))
    assert not missing, "draw them again: python -m tests.dashboards (as root)"
