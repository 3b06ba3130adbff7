"""Explain the job environment that the task prolog sets.

  fairlead env explain             in a job: in one line what is set, then each variable with value, origin and reason
  fairlead env explain --job ID    the same for a job's tasks on this node (your own job, or as root)
  fairlead env list                every variable that may be set, what only a site decides, and what is never set

In a job, FAIRLEAD_PROFILE=off|minimal|PRESET and FAIRLEAD_SKIP=NAME,... control what the task prolog sets. With the job option
--comment=fairlead:off it sets nothing.
"""

from __future__ import annotations

import argparse
import os
from typing import TypedDict

from fairlead.cli.output import columns, print_json
from fairlead.errors import ExitCode, FairleadError, InputMissing, UsageError
from fairlead.host.environments import allowed_cpus
from fairlead.jobenv.environment_summary import CpuBinding, cpu_binding, summary
from fairlead.jobenv.environment_text import ExplainedVariable, explain, published
from fairlead.jobenv.never import NEVER, SITE
from fairlead.jobenv.variable_table import ROWS, VariableRow, assemble
from fairlead.model.plain_text import printable
from fairlead.nccl.nccl_conf import parse

TABLE = "/run/fairlead/env"
PRESETS = "/run/fairlead/presets"
CONF = "/etc/nccl.conf"
LEGEND = """\
A value in brackets is not set here: it is what the rule gives. "when" says in which steps the rule counts:
  always; gpu: with a GPU; gpus: with several; nodes: on more than one node (nodes:N: on N or more);
  distributed: with several nodes or tasks; share: in a task of several on a node, at most one GPU each;
  !NAME: not where the user has set NAME
"""


class ExplainedEnvironment(TypedDict):
    """The environment of one process. profile: as asked for. summary: in one line. cpus: who chose the CPUs."""

    job: str
    profile: str
    summary: str
    cpus: CpuBinding
    variables: list[ExplainedVariable]


class ExplainedTask(ExplainedEnvironment):
    """The environment of a task of a job on this node. set: fairlead's task prolog ran. known: the profile is."""

    step: str
    rank: str
    pid: int
    set: bool
    known: bool


class ListedVariable(TypedDict):
    """A variable that fairlead sets. when: the condition."""

    name: str
    when: str
    value: str
    what: str
    why: str
    source: str


class ListedVariables(TypedDict):
    """The variables. site: those that are set only where the site says so. never: those that are never set. Both with the why."""

    set: list[ListedVariable]
    site: dict[str, str]
    never: dict[str, str]


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["explain", "list"], help="what to do (see above)")
    parser.add_argument(
        "--job", default="", metavar="ID", help="explain: show a job's tasks on this node instead of this process"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    if args.what == "list":
        if args.job:
            raise UsageError("env list takes no --job")
        return _list(args.json)
    if not args.job:
        own = _variables(dict(os.environ), allowed_cpus(0))
        return _explain([{"job": os.environ.get("SLURM_JOB_ID", ""), **own}], as_json=args.json)
    from fairlead.host.environments import of_job

    tasks = of_job(args.job)
    if not tasks:
        raise InputMissing(
            f"job {args.job} has no task on this node whose environment you may read",
            hint=f"run on a node of the job, as its user: srun --jobid={args.job} --overlap fairlead env explain",
        )
    explained = [
        {"job": args.job, "step": t.step, "rank": t.rank, "pid": t.pid, **_variables(t.environment, t.cpus)} for t in tasks
    ]
    return _explain(explained, as_json=args.json)


def _list(as_json: bool) -> ExitCode:
    rows = [
        ListedVariable(name=r.name, when=r.condition, value=r.value, what=r.what, why=r.why, source=r.source) for r in _known()
    ]
    if as_json:
        print_json(ListedVariables(set=rows, site=SITE, never=NEVER))
        return ExitCode.OK
    print(columns([(r["name"], r["when"], r["value"], r["what"]) for r in rows], head=("variable", "when", "value", "what")))
    print("\nset only where the site says so (jobenv.extra, presets, fabric profiles):")
    print(columns([(f"  {name}", why) for name, why in SITE.items()]))
    print("\nnever set:")
    print(columns([(f"  {name}", why) for name, why in NEVER.items()]))
    return ExitCode.OK


def _known() -> tuple[VariableRow, ...]:
    """Return a row for each variable, as this node's document decides. If the document cannot be read, use the defaults."""
    from fairlead import config

    try:
        options = config.load_document("/etc/fairlead/node.json").jobenv
    except FairleadError:
        options = config.JobEnvOptions()
    return assemble(
        fabric=options.fabric,
        interface="(NCCL's)",
        scratch=options.scratch or "(jobenv.scratch)",
        crosses_rails=not options.rail_only,
        master_suffix=options.master_suffix,
    )


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read(1 << 20)
    except OSError:
        return ""


def _variables(environment: dict[str, str], cpus: tuple[int, ...]) -> dict[str, object]:
    """Return the variables of one environment, compared with the rules that this node publishes, and who chose the CPUs."""
    wanted = profile = environment.get("FAIRLEAD_PROFILE") or "full"
    table = TABLE
    if profile not in ("full", "minimal", "off"):
        table = f"{PRESETS}/{profile}"
        if "/" in profile or not os.path.isfile(table):
            profile = "off"
    rows = published(_text(table), _known()) or ROWS
    variables = explain(environment, profile, rows=rows, conf=parse(_text(CONF)))
    binding = cpu_binding(environment, cpus)
    return {
        "profile": wanted,
        "set": "FAIRLEAD_SET" in environment,
        "known": profile == wanted,
        "summary": summary(variables, environment, binding),
        "cpus": binding,
        "variables": variables,
    }


def _explain(explained: list[dict[str, object]], *, as_json: bool) -> ExitCode:
    if as_json:
        print_json(
            {k: v for k, v in explained[0].items() if k not in ("set", "known")}
            if len(explained) == 1 and "step" not in explained[0]
            else explained
        )
        return ExitCode.OK
    for each in explained:
        if each["job"]:
            print(f"{_task(each)}{each['summary']}")
    print(f"\n{LEGEND}" if explained[0]["job"] else LEGEND)
    for number, each in enumerate(explained):
        if number:
            print()
        _print(each)
    return ExitCode.OK


def _task(each: dict[str, object]) -> str:
    """Return "step 0, rank 1: " for a task of another process, and "" for this process."""
    if "step" not in each:
        return ""
    return f"step {each['step']}, rank {each['rank']}: " if each["rank"] != "" else f"step {each['step']}: "


def _print(each: dict[str, object]) -> None:
    job = each["job"]
    if "step" in each:
        rank = f", rank {each['rank']}" if each["rank"] != "" else ""
        print(f"Job {job}, step {each['step']}{rank} (pid {each['pid']}):\n")
    if not each["known"]:
        wish = printable(str(each["profile"]))
        print(f"FAIRLEAD_PROFILE={wish} is none of full, minimal and off, and no preset here: it means off.\n")
    if not job:
        print("This is not a job. A job would get these values, unless its user sets others.\n")
    elif not each["set"]:
        print(f"Job {job}: fairlead has set nothing here (it is turned off, or there is no task prolog).\n")
    variables = each["variables"]
    for v in variables if isinstance(variables, list) else ():
        print(f"{v['name']}={v['now'] or '(' + v['rule'] + ')'}")
        print(f"    from: {v['origin'] if job else '-'}   when: {v['when']}")
        if v["overrides"] and job:
            print(f"    instead of fairlead's {v['overrides']}")
        print(f"    {v['what']}: {v['why']} [{v['source']}]")


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {
        "list": ListedVariables,
        "explain": ExplainedEnvironment,
        "explain --job": list[ExplainedTask],
    }
