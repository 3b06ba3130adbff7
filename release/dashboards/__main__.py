"""Writes each dashboard into the package, or with --check says which file is not what the code describes."""

from __future__ import annotations

import sys
from pathlib import Path

from release.dashboards import drift, fleet, gpu_health, jobs, node
from release.dashboards.panel import as_json

FOLDER = Path(__file__).resolve().parents[2] / "agent/fairlead/dashboards"
BOARDS = (fleet.BOARD, node.BOARD, gpu_health.BOARD, jobs.BOARD, drift.BOARD)


def main() -> int:
    stale = []
    for board in BOARDS:
        path = FOLDER / f"{board.name}.json"
        text = as_json(board)
        if path.exists() and path.read_text() == text:
            continue
        stale.append(path.name)
        if "--check" not in sys.argv:
            path.write_text(text)
    print(*(f"{name}: {'stale' if '--check' in sys.argv else 'written'}" for name in stale), sep="\n")
    return bool(stale) and "--check" in sys.argv


if __name__ == "__main__":
    sys.exit(main())
