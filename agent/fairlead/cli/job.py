"""Show what a job used: GPUs, energy, memory, time at 0 %. Users see their own jobs, and Slurm's operators see all.

An ended job is asked for at the controller, with a munge credential. A running job is asked for by a step in the job itself.
Advice, cost and carbon follow the options of the controller's site.toml.
  fairlead job 1234567           fairlead job --last           fairlead job --array 1234560           fairlead job --user
  fairlead job 1234567 --nodes   its nodes side by side, and whether one of them is slower than its peers
  fairlead job 1234567 --nodes --from DIR    from recorded inputs (usage records and jobs.psv), on any machine
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from fairlead.cli.controller_paths import SITE, STORE
from fairlead.cli.output import columns, print_json
from fairlead.cli.slurm_options import add_bin_dir
from fairlead.controller.job_service import PORT, REPORTS_MAX, JobAnswer, JobQuestion
from fairlead.errors import ExitCode, FairleadError, InputMissing, SlurmError, UsageError
from fairlead.jobs.job_notes import JobNotes, ReportOptions, notes_of
from fairlead.jobs.notes_text import notes_text
from fairlead.jobs.report_text import energy_text, report_text, span_text
from fairlead.jobs.usage_merge import JobReport, TimePart, merged
from fairlead.model.nodelist import fold
from fairlead.model.plain_text import one_line

if TYPE_CHECKING:
    from fairlead.slurm.scontrol import Scontrol

PROGRAM = "/opt/fairlead/current/bin/fairlead"
USER = "fairlead"  # runs the service on the controller
ENVIRONMENT = "FAIRLEAD_CONTROLLER"
SHOWN = 50
MISTAKES_SHOWN = 20


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", default="", metavar="ID", help="the job: 1234567, or 1234560_3 for a task of an array")
    parser.add_argument("--last", action="store_true", help="show your job that ended last")
    parser.add_argument("--array", default="", metavar="ID", help="show the ended tasks of an array, one a row")
    parser.add_argument("--user", nargs="?", const="", metavar="NAME", help="show the ended jobs of a user (yours), one a row")
    parser.add_argument("--nodes", action="store_true", help="compare the job's nodes with each other")
    parser.add_argument(
        "--controller",
        default="",
        metavar="HOST[:PORT]",
        help=f"where the service runs (${ENVIRONMENT}, otherwise Slurm's controller)",
    )
    parser.add_argument("--store", default="", metavar="DIR", help="read this store, on the controller, in place of the service")
    parser.add_argument("--from", dest="folder", default="", metavar="DIR", help="read the records and jobs.psv in DIR instead")
    parser.add_argument(
        "--site", metavar="FILE", default="", help=f"the site with prices and thresholds, on the controller ({SITE})"
    )
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--operators", default="", metavar="NAMES", help=argparse.SUPPRESS)
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="wait so long for a running job (%(default)s)"
    )
    parser.add_argument(
        "--slurm-conf", default="", metavar="FILE", help="the slurm.conf to use, where Slurm's commands do not find it"
    )
    add_bin_dir(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    if args.serve:
        return _serve(args)
    question = _question(args)
    if args.folder:
        return _of_folder(args, question)
    try:
        answer, trouble = _ask(args, question), None
    except FairleadError as e:
        answer, trouble = JobAnswer(), e
    reports = [(report, answer.notes_on(at)) for at, report in enumerate(answer.reports)]
    if not reports and question.kind == "job":
        reports = _running(args, question.word, str(trouble) if trouble is not None else answer.site_options())
    if not reports:
        if trouble is not None:
            raise trouble
        if question.kind == "job" and (state := _state_now(args, question.word, operator=answer.operator)):
            why = "only its own user can read a running job"
            if state == "COMPLETING":
                why = "no step starts in it any more that could read its values"
            raise InputMissing(
                f"job {question.word} is in state {state}, and {why}", hint="its report is there a minute or two after its end"
            )
        raise InputMissing(_nothing(question), hint="a job that has just ended is there a minute or two later")
    return _print(args, question, answer, reports)


def _print(
    args: argparse.Namespace, question: JobQuestion, answer: JobAnswer, reports: Sequence[tuple[JobReport, JobNotes]]
) -> ExitCode:
    if args.nodes:
        _print_nodes(args, answer, reports[0][0])
    elif args.json:
        print_json({"jobs": [_data(report, notes) for report, notes in reports]})
    elif question.kind in ("job", "last"):
        report, notes = reports[0]
        print(report_text(report, notes_text(notes)))
        if answer.short:
            print("  the job has so many nodes that their values are left out here (fairlead job --store, on the controller)")
    else:
        print(_table([report for report, _ in reports]))
    return ExitCode.OK


def _of_folder(args: argparse.Namespace, question: JobQuestion) -> ExitCode:
    """Show a job of recorded inputs, its newest run if it was requeued. What could not be read is named."""
    from fairlead.controller.records_folder import read_folder, reports_of

    found = read_folder(args.folder)
    reports, mistakes = reports_of(found, time.time())
    asked = [report for report in reports if question.word in (report.run.label, str(report.run.job))]
    for mistake in mistakes[:MISTAKES_SHOWN]:
        print(f"fairlead job: {one_line(mistake, 300)}", file=sys.stderr)
    if len(mistakes) > MISTAKES_SHOWN:
        print(f"fairlead job: and {len(mistakes) - MISTAKES_SHOWN} more that were not counted", file=sys.stderr)
    if not asked:
        raise InputMissing(f"there is no job {question.word} in {args.folder}")
    report = max(asked, key=lambda each: each.run.begin_unix)
    options = _site_options(args.site) if args.site else ReportOptions()
    if isinstance(options, str):
        notes = JobNotes(left_out=(f"advice and cost: {one_line(options, 200)}",))
    else:
        notes = notes_of(report, options, {node.node: node.gpus for node in found.nodes or () if node.gpus})
    return _print(args, question, JobAnswer(reports=(report,)), [(report, notes)])


def _print_nodes(args: argparse.Namespace, answer: JobAnswer, report: JobReport) -> None:
    from fairlead.cli.job_nodes import nodes_data, nodes_text

    if answer.short or answer.bare:
        raise SlurmError("the job has too many nodes for an answer of the service", hint="on the controller: --store DIR")
    if args.json:
        print_json(nodes_data(report))
    else:
        print(nodes_text(report))


def _question(args: argparse.Namespace) -> JobQuestion:
    asked = [bool(args.job), args.last, bool(args.array), args.user is not None]
    if sum(asked) != 1:
        raise UsageError("name a job: fairlead job ID, or --last, --array ID or --user")
    if args.nodes and not (args.job or args.last):
        raise UsageError("--nodes compares the nodes of one job: fairlead job ID --nodes")
    if args.folder and not args.job:
        raise UsageError("--from reads one job: fairlead job ID --from DIR")
    if args.folder and (args.store or args.controller):
        raise UsageError("--from and --store or --controller: name one source")
    if args.job and not re.fullmatch(r"[0-9]{1,10}(?:[_+][0-9]{1,10})?", args.job):
        raise UsageError(f"{args.job!r}: not the id of a job, such as 1234567 or 1234560_3")
    if args.array and not re.fullmatch(r"[0-9]{1,10}", args.array):
        raise UsageError(f"--array {args.array!r}: not the id of an array, such as 1234560")
    if args.user and not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", args.user):
        raise UsageError(f"--user {args.user!r}: not the name of a user")
    if args.job:
        return JobQuestion(kind="job", word=args.job)
    if args.array:
        return JobQuestion(kind="array", word=args.array, most=REPORTS_MAX)
    return JobQuestion(kind="last") if args.last else JobQuestion(kind="user", word=args.user, most=SHOWN)


def _nothing(question: JobQuestion) -> str:
    if question.kind == "job":
        return f"there is no job {question.word} of yours"
    return f"there is no ended job of {'yours' if question.kind == 'last' or not question.word else question.word}"


def _ask(args: argparse.Namespace, question: JobQuestion) -> JobAnswer:
    """Return the answer of the store or of the service. Raises FairleadError."""
    from fairlead.controller.job_service import asked, reports_for, with_notes

    if args.store:
        from fairlead.controller.job_store import JobStore  # imports SQLite

        with JobStore(args.store, write=False) as store:  # who may read the file may see everything in it
            reports = reports_for(question, os.getuid(), store, lambda: True, time.time())
        answer = with_notes(reports, _site_options(args.site), _client(args))
        return msgspec.structs.replace(answer, operator=not reports)
    host, port = _controller(args)
    answer = asked(question, host, port, _trusted())
    if answer.trouble:
        raise SlurmError(f"{host}: {answer.trouble}")
    return answer


def _trusted() -> dict[str, int]:
    try:
        return {"root": 0, USER: pwd.getpwnam(USER).pw_uid}
    except KeyError:
        return {"root": 0}


def _controller(args: argparse.Namespace) -> tuple[str, int]:
    """Return where the service is: as named, or on the machine that slurm.conf names as the controller."""
    named = args.controller or os.environ.get(ENVIRONMENT, "")
    if named:
        found = re.fullmatch(r"\[?([A-Za-z0-9_.:-]+?)\]?(?::([0-9]{1,5}))?", named)
        if found is None:
            raise UsageError(f"--controller {named!r}: not HOST or HOST:PORT")
        return found[1], int(found[2] or PORT)
    text = _client(args).ask(["scontrol", "show", "config"])
    first = re.search(r"^SlurmctldHost\[0\]\s*=\s*([A-Za-z0-9_.-]+)(?:\(([A-Za-z0-9_.:-]+)\))?", text, re.MULTILINE)
    if first is None:
        raise SlurmError("slurm.conf names no controller", hint="name it: --controller HOST")
    return first[2] or first[1], PORT


def _client(args: argparse.Namespace) -> Scontrol:
    from fairlead.slurm.scontrol import Scontrol

    return Scontrol(conf=args.slurm_conf, bin_dir=args.bin_dir)


def _site_options(file: str) -> ReportOptions | str:
    """Return what the site's file declares for reports, or in one line why that is not known."""
    from fairlead import config

    try:
        if not file and not os.path.exists(SITE):
            return ReportOptions()
        site = config.load_site(file or SITE)
    except FairleadError as e:
        return f"the controller's {file or SITE} cannot be used: {one_line(str(e), 120)}"
    return ReportOptions(usage=site.usage, advice=site.advice)


def _running(args: argparse.Namespace, job: str, options: ReportOptions | str) -> list[tuple[JobReport, JobNotes]]:
    """Return the report of a job that runs now. A job of somebody else is as one that does not exist. options: those of the
    site, or why they are not known."""
    from threading import Thread

    from fairlead.controller.accounting import Accounting
    from fairlead.controller.running_report import records_of

    client = _client(args)
    try:
        runs = [run for run in Accounting(client).running(job) if os.getuid() in (0, run.uid)]
    except SlurmError:
        return []
    reports = []
    for run in runs[:1]:
        if run.state == "COMPLETING":
            continue
        srun, conf = f"{args.bin_dir}/srun", client.conf_path()
        in_all: dict[str, int] = {}
        asking = Thread(target=_ask_gpus, args=(in_all, set(run.nodes) if run.gpus else set(), client), daemon=True)
        asking.start()  # the step takes longer, and this answer is there when it ends
        try:
            found = records_of(run, srun=srun, program=PROGRAM, conf=conf, seconds=args.timeout)
        except SlurmError:
            if os.getuid() == run.uid and _state_now(args, job, operator=False) == run.state:
                raise
            continue  # it has just ended; and not even root may start a step in a job of somebody else
        asking.join()
        report = merged(run, found.records, time.time())[0]
        if isinstance(options, str):
            notes = JobNotes(left_out=(f"advice and cost: {one_line(options, 200)}",))
        else:
            notes = notes_of(report, options, in_all)
        if found.denied:
            why = f"values of {fold(found.denied)}: only root can read records there, because their file system has no POSIX ACLs"
            notes = msgspec.structs.replace(notes, left_out=(why, *notes.left_out))
        reports.append((report, notes))
    return reports


def _state_now(args: argparse.Namespace, job: str, *, operator: bool) -> str:
    """Return the state of a job that has its nodes now, or "" if there is none that the caller may see."""
    from fairlead.controller.accounting import Accounting

    try:
        runs = Accounting(_client(args)).running(job)
    except SlurmError:
        return ""
    return next((run.state for run in runs if operator or os.getuid() in (0, run.uid)), "")


def _ask_gpus(found: dict[str, int], nodes: set[str], client: Scontrol) -> None:
    """Add how many GPUs each node has in all."""
    from fairlead.controller.job_service import node_gpus

    found.update(node_gpus(nodes, client))


def _serve(args: argparse.Namespace) -> ExitCode:
    """Answer the request on standard input. systemd has connected standard input and output with the socket."""
    from fairlead.controller.accounting import Accounting
    from fairlead.controller.job_service import serve

    client = _client(args)
    accounting = Accounting(client)
    named = {name for name in args.operators.split(",") if name}

    def is_operator(uid: int, user: str) -> bool:
        try:
            return uid == 0 or (bool(user) and (user in named or accounting.is_operator(user)))
        except SlurmError:
            return False

    serve(
        sys.stdin.buffer,
        sys.stdout.buffer,
        args.store or STORE,
        is_operator=is_operator,
        options=lambda: _site_options(args.site),
        client=client,
    )
    return ExitCode.OK


def _data(report: JobReport, notes: JobNotes) -> dict[str, object]:
    percent = report.coverage_percent
    data = {
        **msgspec.to_builtins(report),
        **msgspec.to_builtins(notes),
        "complete": report.complete,
        "unnamed_gpus": report.unnamed_gpus,
    }
    return {**data, **({"coverage_percent": percent} if percent is not None else {})}


def _table(reports: Sequence[JobReport]) -> str:
    """Return one row for each report. A value that is not known is ``-``."""
    head = ("JOB", "STATE", "NODES", "GPUS", "TIME", "BUSY", "SM", "ENERGY", "COVERAGE")
    rows = []
    for report in reports:
        run, totals = report.run, report.totals
        energy = energy_text(totals.energy_joules.value) if totals.energy_joules is not None else "-"
        coverage = report.coverage_percent
        rows.append(
            (
                *(run.label, run.state, str(len(run.nodes)), str(run.gpus), span_text(run.seconds(report.at_unix))),
                *(_percent(totals.busy), _percent(totals.sm), energy, f"{coverage:.1f} %" if coverage is not None else "-"),
            )
        )
    return columns(rows, head)


def _percent(part: TimePart | None) -> str:
    percent = part.percent if part is not None else None
    return f"{percent:.0f} %" if percent is not None else "-"


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli.job_nodes import NodesData
    from fairlead.cli.json_schema import extended, list_of
    from fairlead.jobs.job_notes import JobNotes
    from fairlead.jobs.usage_merge import JobReport

    notes = {field.name: field.type for field in msgspec.structs.fields(JobNotes)}
    absent = {"coverage_percent": float | msgspec.UnsetType}
    job = extended("PrintedJob", JobReport, {**notes, "complete": bool, "unnamed_gpus": int, **absent})

    return {
        "": extended("PrintedJobs", msgspec.Struct, {"jobs": list_of(job)}, doc="The jobs that were asked for."),
        "--nodes": NodesData,
    }
