"""Prove on a real GPU what the tests show on simulated ones, and write a report. Needs no Slurm and no network.

python -m tests.gpu [--report FOLDER] [options]; `make gpu` finds a Python for it. docs/how-to/gpu-proof.md says what it does.
Exit codes: 0 everything agrees, 1 something differs or is not put back, 64 usage, 66 no such GPU, 69 no driver or a bad one,
75 somebody uses the GPU, 130 interrupted.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from fairlead.errors import ExitCode
from fairlead.host.nvml import Worker
from tests.gpu import agent_parts, changed_settings, client_part, matrix_product, nvml_parts, target
from tests.gpu.agent_process import AgentFailed
from tests.gpu.proof import JOURNAL, Proof
from tests.gpu.report import Part, Report, Result

LIMIT_SECONDS = 470.0  # under 8 minutes
RESERVE_SECONDS = 20.0  # of it, to put back settings and to write the report
PARTS: tuple[tuple[str, Callable[[Proof, Part], object]], ...] = (
    ("calls", nvml_parts.calls),
    ("snapshot", nvml_parts.snapshot),
    ("clients", client_part.compare_clients),
    ("counters", nvml_parts.counters),
    ("agent", agent_parts.agent),
    ("load", agent_parts.load),
    ("worker", nvml_parts.worker),
    ("settings", nvml_parts.settings),
)


class Parser(argparse.ArgumentParser):
    """A parser that ends with fairlead's exit code for a wrong command line."""

    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.USAGE, f"gpu: {message}; see --help\n")


class OutOfTime(Exception):
    """The run's own limit is over."""


class Interrupted(Exception):
    """SIGINT or SIGTERM has come."""


def main() -> int:
    """Run the proof. Return the exit code."""
    args = arguments()
    folder = Path(args.report).resolve()
    try:
        changed = changed_settings.Journal(folder / JOURNAL).read()
        found = target.find(args.gpu, deadline_seconds=args.deadline_seconds, in_use=args.in_use)
    except target.Refused as e:
        print(f"gpu: {e}", file=sys.stderr)
        for trial in changed:
            print(f"gpu: NOT PUT BACK since an earlier run: {trial.what}. Run: {trial.by_hand}", file=sys.stderr)
        return e.code
    except (ValueError, OSError) as e:
        print(f"gpu: {e}; see what it lists, put that back, and remove the file", file=sys.stderr)
        return ExitCode.BAD_DATA
    except KeyboardInterrupt:
        print("gpu: interrupted. Nothing was changed.", file=sys.stderr)
        return ExitCode.INTERRUPTED
    proof = Proof(
        found, folder, args.root, args.idle_seconds, args.load_seconds, args.sessions, args.counter_seconds, args.size, args.smi,
        args.locked_clocks, args.interval_seconds,
    )  # fmt: skip
    report = Report(folder, machine=target.machine_lines(found))
    names = [name for name in args.parts if name != "settings" or not args.no_settings]
    interrupted = run(proof, report, names, args.limit_seconds)
    for alarm in report.alarms:
        print(f"gpu: {alarm}", file=sys.stderr)
    print(f"gpu: {report.summary}: {folder / 'report.txt'}")
    return ExitCode.INTERRUPTED if interrupted else ExitCode.OK if report.passed else ExitCode.WARN


def run(proof: Proof, report: Report, names: list[str], limit_seconds: float) -> bool:
    """Run the parts, put back what is changed, and write the report. Return whether the run was interrupted."""
    interrupted = False

    def stop(number: int, _: object) -> None:
        for each in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)  # what follows puts back settings
        raise OutOfTime if number == signal.SIGALRM else Interrupted

    for each in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
        signal.signal(each, stop)
    signal.setitimer(signal.ITIMER_REAL, max(1.0, limit_seconds - RESERVE_SECONDS))
    try:
        if changed := [trial.what for trial in proof.journal.read()]:
            restore(proof)
            report.machine["put back after an earlier run"] = ", ".join(changed)
        for name, function in PARTS:
            if name in names:
                run_part(proof, report, name, function)
        report.complete = True
    except OutOfTime:
        report.alarms.append(f"OUT OF TIME after {limit_seconds:g} s: the parts that are missing below were not run")
    except Interrupted:
        interrupted = True
        report.alarms.append("INTERRUPTED: the parts that are missing below were not run")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        report.alarms += restore(proof)
        report.write()
    return interrupted


def run_part(proof: Proof, report: Report, name: str, function: Callable[[Proof, Part], object]) -> None:
    """Run one part and write the report with it. A part that fails does not end the run."""
    part = Part(name)
    start = time.monotonic()
    print(f"gpu: {name} ...", file=sys.stderr, flush=True)
    report.parts.append(part)
    try:
        function(proof, part)
    except (OutOfTime, Interrupted):
        part.result, part.why = Result.FAILED, "ended before its end"
        raise
    except (AgentFailed, OSError) as e:
        part.result, part.why = Result.FAILED, str(e)
    except Exception as e:  # a driver that nobody has met yet may say what no part expects, and the other parts still count
        part.result, part.why = Result.FAILED, f"{type(e).__name__}: {e}"
        part.lines += traceback.format_exc().splitlines()
    finally:
        part.seconds = time.monotonic() - start
        report.write()
    print(f"gpu: {name} {part.result.value}: {part.why}", file=sys.stderr, flush=True)


def restore(proof: Proof) -> list[str]:
    """Put back what a part of this run, or an earlier run that was killed, has left changed. Return what could not be."""
    if not proof.journal.read():
        return []
    worker = Worker(deadline_seconds=5.0)
    try:
        return changed_settings.put_back(worker, proof.journal)
    finally:
        worker.close()


def arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = Parser(prog="gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [name for name, _ in PARTS]
    parser.add_argument("--report", default=".cache/gpu/report", metavar="FOLDER", help="where the report goes")
    parser.add_argument(
        "--gpu", type=int, default=0, metavar="N", help="NVML index of the GPU that is loaded and set (default 0)"
    )
    parser.add_argument("--in-use", action="store_true", help="also use a GPU that somebody uses")
    parser.add_argument("--no-settings", action="store_true", help="change no setting of the GPU")
    parser.add_argument("--locked-clocks", default="off", metavar="MIN-MAX", help="the lock to put back: NVML cannot read it")
    parser.add_argument("--parts", nargs="+", choices=names, default=names, metavar="PART", help=f"of {', '.join(names)}")
    parser.add_argument("--idle-seconds", type=float, default=90.0, metavar="S", help="how long the agent runs on the idle GPU")
    parser.add_argument("--load-seconds", type=float, default=90.0, metavar="S", help="how long it runs under the matrix product")
    parser.add_argument("--limit-seconds", type=float, default=LIMIT_SECONDS, metavar="S", help="limit of the whole run")
    parser.add_argument(
        "--deadline-seconds", type=float, default=target.DEADLINE_SECONDS, metavar="S", help="for the first answer"
    )
    parser.add_argument("--interval-seconds", type=float, default=1.0, metavar="S", help="between two sweeps of the agent")
    parser.add_argument("--counter-seconds", type=float, default=2.0, metavar="S", help="how long each counter is read")
    parser.add_argument("--sessions", type=int, default=3, metavar="N", help="how often the calls attach to NVML")
    parser.add_argument("--size", type=int, default=matrix_product.SIZE, metavar="N", help="rows and columns of the matrices")
    parser.add_argument("--smi", default="nvidia-smi", metavar="FILE", help="nvidia-smi")
    parser.add_argument("--root", default="/", metavar="TREE", help="read a machine tree instead of /sys and /proc (for tests)")
    args = parser.parse_args()
    if args.size % matrix_product.STEP or args.size <= 0:
        parser.error(f"--size must be a multiple of {matrix_product.STEP}")
    if not re.fullmatch(r"off|\d+-\d+", args.locked_clocks):
        parser.error("--locked-clocks must be off, or two numbers in MHz such as 1200-1500")
    return args


if __name__ == "__main__":
    sys.exit(main())
