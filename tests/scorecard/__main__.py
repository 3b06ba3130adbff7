"""Put every fault and its harmless twin into simulated nodes and print who noticed, and how soon. Needs root and the lab's roots.

python -m tests.scorecard [NAME ...] [--json FILE] [--page] [--quick] [--nodes N] [--interval SECONDS]

Peers are run where they are found: NHC=/path/to/nhc (or its folder), GCM=/path/to/health_checks, GPUD=, DCGMI=, or in PATH.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.lab.roots import LabError
from tests.scorecard import faults, peers, table
from tests.scorecard.play import Seen, nodes_up, play
from tests.scorecard.running import PROJECT

PAGE = PROJECT / "docs/reference/scorecard.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only rows whose name holds one of these")
    parser.add_argument("--json", default="", metavar="FILE", help="also write all results there; - for standard output alone")
    parser.add_argument("--page", action="store_true", help="write docs/reference/scorecard.md")
    parser.add_argument("--again", default="", metavar="FILE", help="play nothing: table and page of results that --json wrote")
    parser.add_argument("--quick", action="store_true", help="as the test does it: nothing is timed truly, nothing is waited for")
    parser.add_argument("--nodes", type=int, default=4, help="simulated nodes at once")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds from sweep to sweep of the agents")
    parser.add_argument("--no-peers", action="store_true")
    args = parser.parse_args()
    if args.again:
        rows, beside, said = table.again(json.loads(Path(args.again).read_text()))
        return show(rows, beside, said, args)
    wanted = [f for f in faults.load() if not args.names or any(name in f.name for name in args.names)]
    if not wanted:
        parser.error(f"no such row; there are {', '.join(f.name for f in faults.load())}")
    if os.geteuid() != 0:
        print("scorecard: needs root (namespaces, real Slurm)", file=sys.stderr)
        return 77
    start = time.monotonic()
    halves = 2 * len(wanted)
    done = 0

    def say(text: str) -> None:
        print(f"scorecard: {time.monotonic() - start:5.0f} s  {text}", file=sys.stderr, flush=True)

    def tell(seen: Seen, twin: bool) -> None:
        nonlocal done
        done += 1
        word = table.twin_word(seen) if twin else f"{table.fault_word(seen)} after {table.seconds(seen.drained or seen.found)}"
        say(f"{done}/{halves}  {seen.fault.title}{' (twin)' if twin else ''}: {word}{_why(seen, twin)}")

    known = [] if args.no_peers else peers.installed()
    present = [peer for peer in known if peer.program]
    fast = args.nodes + len(present) if args.quick else args.nodes // 2 + len(present)
    try:
        say(f"{len(wanted)} faults and their twins on {args.nodes} nodes; peers: {', '.join(p.name for p in present) or 'none'}")
        count = args.nodes + len(present)
        with nodes_up(count, interval=args.interval, fast=fast) as nodes, ThreadPoolExecutor(max(1, len(present))) as pool:
            own = dict(zip((p.name for p in present), nodes[args.nodes :], strict=True))
            running = {p.name: pool.submit(peers.play_all, p, own[p.name], wanted, say) for p in present}
            rows = play(wanted, nodes[: args.nodes], tell=tell)
            beside = [(p, running[p.name].result() if p.name in running else {}) for p in known]
    except LabError as error:
        print(f"scorecard: {error}", file=sys.stderr)
        return 69
    said = table.about(args.nodes, args.interval, time.monotonic() - start)
    return show(rows, beside, said, args)


def show(rows: list[Seen], beside: table.Peers, said: dict[str, Any], args: argparse.Namespace) -> int:
    """Print and write the results as asked for; the exit code."""
    data = json.dumps(table.as_data(rows, beside, said), indent=1)
    print(data if args.json == "-" else table.text(rows, beside))
    if args.json not in ("", "-"):
        Path(args.json).write_text(data + "\n")
    if args.page:
        PAGE.write_text(table.page(rows, beside, said))
        print(f"scorecard: wrote {PAGE.relative_to(PROJECT)}", file=sys.stderr)
    return 0 if all(seen.good for seen in rows) else 1


def _why(seen: Seen, twin: bool) -> str:
    """What went wrong with a half of a row, where it did."""
    if twin:
        wrong = [seen.twin_drained, *seen.noise]
    else:
        wrong = [*seen.flaps, *(seen.others if seen.found is None else ())]
    wrong = [w for w in (*wrong, seen.broken) if w]
    return f" ({'; '.join(wrong)})" if wrong else ""


if __name__ == "__main__":
    sys.exit(main())
