"""The job environment that the task prolog sets.

  fairlead env explain          variable, value, where it comes from, why; in a job: what the user overrode
  fairlead env list             everything that may be set, and what is never set, without looking at an environment

In a job, FAIRLEAD_PROFILE=off|minimal and FAIRLEAD_SKIP=NAME,... steer it; --comment=fairlead:off turns it off.
"""

from __future__ import annotations

import argparse
import os

from fairlead.cli.show import columns, print_json
from fairlead.errors import ExitCode
from fairlead.jobenv.never import NEVER
from fairlead.jobenv.render import explain
from fairlead.jobenv.table import ROWS


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["explain", "list"])
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> ExitCode:
    if args.what == "list":
        rows = [
            {"name": r.name, "when": r.when.value, "value": r.value, "what": r.what, "why": r.why, "source": r.source}
            for r in ROWS
        ]
        if args.json:
            print_json({"set": rows, "never": NEVER})
            return ExitCode.OK
        print(columns([(r["name"], r["when"], r["value"], r["what"]) for r in rows], head=("variable", "when", "value", "what")))
        print("\nnever set:")
        print(columns([(f"  {name}", why) for name, why in NEVER.items()]))
        return ExitCode.OK
    profile = os.environ.get("FAIRLEAD_PROFILE") or "full"
    told = explain(os.environ, profile)
    job = os.environ.get("SLURM_JOB_ID", "")
    if args.json:
        print_json({"job": job, "profile": profile, "variables": told})
        return ExitCode.OK
    if not job:
        print("Not in a job: what a job would get when its user has not set it.\n")
    elif not os.environ.get("FAIRLEAD_SET"):
        print(f"Job {job}: fairlead set nothing here (turned off, or no task prolog).\n")
    for v in told:
        value = v["now"] if v["now"] else f"({v['rule']})"
        print(f"{v['name']}={value}")
        print(f"    from: {v['origin'] if job else '-'}   when: {v['when']}")
        print(f"    {v['what']}: {v['why']} [{v['source']}]")
    return ExitCode.OK
