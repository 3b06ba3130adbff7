"""Writes each dashboard into the package, or with --check says which file is not what the code describes."""

from __future__ import annotations

import sys
from pathlib import Path

from release.dashboards import drift, fleet, gpu_health, jobs, node
from release.dashboards.panel import as_json

FOLDER = Path(__file__).resolve().parents[2] / "agent/fairlead/dashboards"
DASHBOARDS = (fleet.DASHBOARD, node.DASHBOARD, gpu_health.DASHBOARD, jobs.DASHBOARD, drift.DASHBOARD)


def main() -> int:
    stale = []
    for dashboard in DASHBOARDS:
        path = FOLDER / f"{dashboard.name}.json"
        text = as_json(dashboard)
        if path.exists() and path.read_text() == text:
            continue
        stale.append(path.name)
        if "--check" not in sys.argv:
            path.write_text(text)
    print(*(f"{name}: {'stale' if '--check' in sys.argv else 'written'}" for name in stale), sep="\n")
    return bool(stale) and "--check" in sys.argv


if __name__ == "__main__":
    sys.exit(main())
