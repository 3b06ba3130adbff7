"""List the jobs whose GPUs are idle, and tell their owners if the site has switched that on.

fairlead idle observe   judge all running jobs with GPUs, list them, tell nobody
fairlead idle run       the same, then the next step of each idle job, as far as idle.mode in site.toml goes
fairlead idle list      what the journal has of the last days: who would have been told, who was told, what became of it

A timer on the controller runs it every 10 minutes, after `fairlead collect --running` has pulled the newest usage records. A job
is idle only by several signals over a whole window, never by power, and never by a value that is missing. The files
/etc/fairlead/disabled and /etc/fairlead/idle-disabled stop every message and act.
Exit codes: 0, 3 if a doubt kept the program from doing anything, 75 if slurmctld does not answer.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING, TypedDict

from fairlead.cli.controller_paths import IDLE, RUNNING, SITE
from fairlead.cli.output import columns, print_json
from fairlead.cli.slurm_options import add_bin_dir
from fairlead.errors import ExitCode, InputMissing, SlurmUnavailable, UsageError
from fairlead.jobs.idle_stages import IdleDecision, IdleEvent

if TYPE_CHECKING:
    from fairlead.controller.idle_program import IdleProgram, IdleRun
    from fairlead.jobs.idle_rule import IdleOptions


#: A running job, what it was judged to be, and what was decided. idle_gpu_seconds: of all its GPUs. not_excluded: what else may
#: explain it. done: the channel's answer, "" for none.
IdleRowData = TypedDict(  # noqa: UP013 (a key is no name of ours)
    "IdleRowData",
    {
        "job": int,
        "user": str,
        "partition": str,
        "gpus": int | None,
        "judged": str,
        "why": str,
        "idle_gpu_seconds": float,
        "would_be_told": bool,
        "not_excluded": list[str],
        "decision": IdleDecision,
        "done": str,
    },
)


SLOW = "reading the records"  # patience.py says it


class IdleRunData(TypedDict):
    """One run. doubts: each reason for which nothing was done. nodes_fresh: how many of the nodes gave a fresh record."""

    rows: list[IdleRowData]
    doubts: list[str]
    nodes: int
    nodes_fresh: int


def register(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=("observe", "run", "list"), help="what to do")
    records = f"the folder with the newest usage records of running jobs ({RUNNING}, which `fairlead collect --running` fills)"
    add("--from", dest="folder", metavar="DIR", default=RUNNING, help=f"{records}; its jobs.psv, if there is one, lists the jobs")
    add("--state", metavar="DIR", default=IDLE, help=f"the folder of the journal and of the last readings ({IDLE})")
    add("--site", metavar="FILE", default="", help=f"the site with [idle] ({SITE})")
    add("--days", type=int, default=1, metavar="N", help="list: the last N days (1)")
    add("-n", "--dry-run", action="store_true", help="print what would be done, write nothing, tell nobody")
    add("--slurm-conf", default="", metavar="FILE", help="the slurm.conf to use, where Slurm's commands do not find it")
    add_bin_dir(parser)
    add("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> ExitCode:
    options = site_options(args.site)
    if args.action == "list":
        return _list(args)
    if not os.path.isdir(args.folder):
        raise InputMissing(f"{args.folder}: no such folder", hint="`fairlead collect --running` fills it, on the controller")
    if args.action == "observe":
        import msgspec

        options = msgspec.structs.replace(options, mode="observe")
    found = _program(args, options).run()
    if args.json:
        print_json(_data(found))
    else:
        print(_text(found, options))
    if "slurmctld does not answer" in found.doubts:
        raise SlurmUnavailable("slurmctld does not answer: nothing was judged", hint="is slurmctld up? scontrol ping")
    return ExitCode.UNKNOWN if found.doubts else ExitCode.OK


def site_options(file: str) -> IdleOptions:
    """Return [idle] of the site's file, or the defaults where there is no such file. Raises ConfigError."""
    from fairlead import config
    from fairlead.jobs.idle_rule import IdleOptions

    return config.load_site(file or SITE).idle if file or os.path.exists(SITE) else IdleOptions()


def _program(args: argparse.Namespace, options: IdleOptions) -> IdleProgram:
    from fairlead.controller import idle_channels
    from fairlead.controller.idle_program import IdleProgram
    from fairlead.controller.records_folder import has_rows, read_folder, read_records
    from fairlead.controller.running_jobs import running_jobs, running_of
    from fairlead.slurm.scontrol import Scontrol

    client = Scontrol(conf=args.slurm_conf, bin_dir=args.bin_dir, deadline_seconds=30.0)
    channel = idle_channels.SiteProgram(options.channel) if options.channel else idle_channels.ScontrolNotify(client)
    recorded = has_rows(args.folder)
    if recorded and args.action == "run":
        raise UsageError(
            f"{args.folder} has jobs.psv: run asks Slurm itself which jobs run", hint="use observe, or another folder"
        )
    return IdleProgram(
        options=options,
        folder=args.state,
        running=(lambda: running_of(read_folder(args.folder).runs)) if recorded else (lambda: running_jobs(client)),
        records=lambda: [record for _, record in read_records(args.folder, [])],
        channel=channel,
        act=idle_channels.SiteAct(options.act_command, args.bin_dir) if options.act_command else None,
        dry_run=args.dry_run,
    )


def _text(found: IdleRun, options: IdleOptions) -> str:
    from fairlead.jobs.idle_rule import CLASSES

    rows, classes = [], set[str]()
    for row in found.rows:
        told = row.judgement.is_for_notice
        not_excluded = [*filter(None, (row.judgement.spared,)), *row.judgement.possible]
        classes.update(not_excluded)
        rows.append(
            (
                str(row.job.job),
                row.job.user,
                row.job.partition,
                "?" if row.job.gpus is None else str(row.job.gpus),
                row.judgement.word,
                f"{row.judgement.idle_gpus * row.judgement.idle_seconds / 3600:.1f}",
                "yes" if told else "no",
                ",".join(not_excluded) or "-",
                f"{row.decision.step}: {row.done}" if row.done else row.decision.step if row.decision.act == "do" else "-",
                row.judgement.why,
            )
        )
    head = ("JOB", "USER", "PARTITION", "GPUS", "JUDGED", "GPU-HOURS", "WOULD BE TOLD", "NOT EXCLUDED", "STEP", "WHY")
    out = [columns(rows, head)] if rows else ["no running job has a GPU"]
    out += [f"  {name}: {CLASSES[name]}" for name in sorted(classes)]
    out.append(f"mode {options.mode}; {found.nodes_fresh} of {found.nodes} nodes gave a fresh record")
    out += [f"nothing was done: {reason}" for reason in found.doubts]
    if found.unread:
        out.append(f"{found.unread} lines of the journal could not be read (of a killed run or of a newer fairlead)")
    return "\n".join(out)


def _data(found: IdleRun) -> IdleRunData:
    rows: list[IdleRowData] = [
        {
            "job": row.job.job,
            "user": row.job.user,
            "partition": row.job.partition,
            "gpus": row.job.gpus,
            "judged": row.judgement.word,
            "why": row.judgement.why,
            "idle_gpu_seconds": row.judgement.idle_gpus * row.judgement.idle_seconds,
            "would_be_told": row.judgement.is_for_notice,
            "not_excluded": [*filter(None, (row.judgement.spared,)), *row.judgement.possible],
            "decision": row.decision,
            "done": row.done,
        }
        for row in found.rows
    ]
    return {"rows": rows, "doubts": list(found.doubts), "nodes": found.nodes, "nodes_fresh": found.nodes_fresh}


def _list(args: argparse.Namespace) -> ExitCode:
    from fairlead.controller.idle_journal import IdleJournal
    from fairlead.jobs.idle_stages import DAY

    if args.days < 1:
        raise UsageError("--days: at least 1")
    if not os.path.isdir(args.state):
        raise InputMissing(f"{args.state}: no such folder", hint="fairlead idle observe makes it")
    events = [e for e in IdleJournal(args.state).read() if e.at_unix > time.time() - args.days * DAY]
    if args.json:
        import msgspec

        print_json([msgspec.to_builtins(event) for event in events])
    else:
        print(_listed(events))
    return ExitCode.OK


def _listed(events: list[IdleEvent]) -> str:
    from fairlead.cli.time_options import local
    from fairlead.model.plain_text import one_line

    rows = [
        (local(e.at_unix), e.case, one_line(e.user, 32), e.kind, e.step or e.answer or "-", one_line(e.detail or e.message, 200))
        for e in events
    ]
    answers = [e.answer for e in events if e.kind == "answer"]
    out = [columns(rows, ("TIME", "JOB", "USER", "EVENT", "STEP", "DETAIL")) if rows else "no event"]
    if answers:
        out.append(f"precision by the owners' answers: {answers.count('idle') / len(answers):.0%} of {len(answers)}")
    return "\n".join(out)


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"observe, run": IdleRunData, "list": list[IdleEvent]}
