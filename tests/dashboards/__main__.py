"""Draws the dashboards for docs/images from the scripted hour (root; two minutes): python -m tests.dashboards"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from release.dashboards.__main__ import DASHBOARDS
from release.dashboards.panel import Panel
from tests.dashboards import drawing, hour, prometheus

IMAGES = Path(__file__).resolve().parents[2] / "docs/images"
SUBTITLE = (
    "Our drawing of what Prometheus answered to the panels' queries, not Grafana's: one scripted hour of four simulated nodes"
)
NODE = "n3"


def asked(server: prometheus.Server, panel: Panel, begin_unix: float, end_unix: float) -> Sequence[Mapping[str, Any]]:
    """Return what the server answers to a panel's query over the hour, or at its end."""
    query = panel.query.replace("$instance", f"{NODE}:{hour.PORT}")
    if panel.kind in ("lines", "states"):
        return [{**series, "span": (begin_unix, end_unix)} for series in server.over(query, begin_unix, end_unix, 60)]
    return server.instant(query, end_unix)


def main() -> None:
    recorded = hour.record()
    with tempfile.TemporaryDirectory(prefix="fairlead-dashboards-") as folder:
        prometheus.blocks(Path(folder), recorded.samples)
        with prometheus.serving(Path(folder), recorded.begin_unix, recorded.end_unix) as server:
            for dashboard in DASHBOARDS:
                said = f"{SUBTITLE}, node {NODE}" if dashboard.name == "node" else SUBTITLE
                text = drawing.picture(
                    dashboard, lambda panel: asked(server, panel, recorded.begin_unix, recorded.end_unix), said
                )
                (IMAGES / f"dashboard-{dashboard.name}.svg").write_text(text)


if __name__ == "__main__":
    main()
