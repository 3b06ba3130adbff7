"""Measure everything and print one table: what, measured now, budget, what it is compared to. Needs root and the lab's roots.

python -m tests.bench [hooks|plan|locality|task_prolog|window|faults|rack|crowd|fleet|fleet_report|maintain|provision|agent|
collect|running_job ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from tests.bench.rows import Row, table

PARTS = (
    *("hooks", "plan", "locality", "task_prolog", "window", "faults", "rack", "crowd", "fleet", "fleet_report", "maintain"),
    *("provision", "agent", "collect", "running_job"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}; default all")
    parser.add_argument("--json", default="", metavar="FILE", help="also write the figures there")
    args = parser.parse_args()
    unknown = [p for p in args.parts if p not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}")
    if os.geteuid() != 0:
        print("bench: needs root (namespaces, real Slurm)", file=sys.stderr)
        return 77
    rows: list[Row] = []
    for part in args.parts:
        start = time.monotonic()
        print(f"bench: {part} ...", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"tests.bench.{part}").rows()
        print(f"bench: {part} took {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    cpus, load = os.cpu_count(), os.getloadavg()[0]
    print(f"Measured {time.strftime('%Y-%m-%d %H:%M')} on {cpus} CPUs that everything shares, load {load:.1f} at the end.\n")
    print(table(rows))
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
