"""Finds the nodes that ``fairlead accept`` measures, and prints its lines of progress."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from fairlead.errors import InputMissing, UsageError

if TYPE_CHECKING:
    from fairlead.measure.slurm_jobs import AcceptanceJobs


def tell(args: argparse.Namespace, line: str) -> None:
    """Print a line of progress."""
    if not args.quiet:
        print(line, file=sys.stderr, flush=True)


def nodes_of(args: argparse.Namespace, jobs: AcceptanceJobs) -> list[str]:
    """Return the names of the nodes to measure, in Slurm's order. Raise UsageError, InputMissing."""
    from fairlead.model.nodelist import expand, in_order

    if not (args.nodelist or args.partition or args.reservation):
        raise UsageError("name the nodes: users cannot use a node while it is measured", hint="NODELIST, or --partition NAME")
    try:
        wanted = set(expand(args.nodelist)) if args.nodelist else set()
        if args.reservation and not args.nodelist:
            wanted = {name for text in jobs.reserved(args.reservation) for name in expand(text)}
    except ValueError as e:
        raise UsageError(str(e), hint="such as gpu[01-16],gpu20") from None
    found = {n.name: n for n in jobs.nodes() if not args.partition or args.partition in n.partitions}
    missing = wanted - set(found)
    if missing:
        where = f" in partition {args.partition}" if args.partition else ""
        raise InputMissing(f"Slurm has no node {', '.join(in_order(missing))}{where}", hint="sinfo -N lists them")
    chosen = in_order(wanted or found)
    if not chosen:
        raise InputMissing(f"Slurm has no node in partition {args.partition}", hint="sinfo lists them")
    return chosen
