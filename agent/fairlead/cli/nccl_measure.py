"""Runs `fairlead nccl measure`: makes the plan from the command line, runs it, and shows the result."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping

from fairlead.cli.output import print_json
from fairlead.errors import DataError, ExitCode, UsageError
from fairlead.jobenv.tuned_variables import tuned_in
from fairlead.measure.nccl_plan import BLOCKS, SKIPPED, TEST, NcclArm, NcclPhase, NcclPlan, block_steps, candidates, check

SEED = 20_261_127  # of the bootstrap; the same launches always give the same intervals
GUESS_SECONDS = 30.0
DAY_SECONDS = 86400.0


def measure(args: argparse.Namespace) -> ExitCode:
    from fairlead.cli.nccl_result import result_text
    from fairlead.measure import nccl_run
    from fairlead.nccl.measured_result import ResultJudgement

    folder = os.path.abspath(args.folder)
    job = os.environ.get("SLURM_JOB_ID", "")
    if args.resume:
        if args.a or args.b or args.set or args.versions or args.skip_versions:
            hint = "leave out --a, --b, --set, --versions and --skip-versions"
            raise UsageError("--resume takes the commands of the run that was begun", hint=hint)
        plan = nccl_run.load(folder, job)
    else:
        plan = make_plan(args, job, os.environ)
    if args.dry_run:
        return _show_plan(plan, folder, as_json=args.json)
    if not args.resume:
        nccl_run.begin(folder, plan)
    run = nccl_run.NcclRun(plan, folder, dict(os.environ), lambda line: _tell(args, line), root=args.root)
    try:
        result = run.measure()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"fairlead nccl measure --resume --folder {folder}") from None
    if args.json:
        print_json(result)
    else:
        print(result_text(result, result.measured))
        print(f"\nThe result is in {folder}/result.json.")
    found = {each.judgement for each in result.candidates}
    if ResultJudgement.FAILED in found:
        return ExitCode.DRAIN
    return ExitCode.WARN if ResultJudgement.NO_DECISION in found else ExitCode.OK


def _tell(args: argparse.Namespace, line: str) -> None:
    if not args.quiet:
        print(line, file=sys.stderr, flush=True)


def make_plan(args: argparse.Namespace, job: str, environment: Mapping[str, str]) -> NcclPlan:
    """Return the plan that a command line asks for. Raise UsageError, DataError."""
    if not args.a:
        raise UsageError("nccl measure needs --a COMMAND", hint="for example --a 'srun -n 16 $TEST'")
    if bool(args.b) == bool(args.set):
        raise UsageError("give either --b (two versions) or --set (variables)", hint="compare versions first")
    if (args.versions or args.skip_versions) and (args.b or (args.versions and args.skip_versions)):
        raise UsageError("--versions and --skip-versions are for --set, one of them", hint="--versions FILE of an earlier --b")
    if not 0 < args.timeout <= DAY_SECONDS:
        raise UsageError(f"--timeout {args.timeout:g}: not a number of seconds up to a day")
    others = (NcclArm(name="B", command=args.b),) if args.b else candidates(args.set, args.a)
    plan = NcclPlan(
        mode="versions" if args.b else "variables",
        arms=(NcclArm(name="A", command=args.a), *others),
        test=args.test or TEST,
        blocks=args.blocks or BLOCKS,
        timeout_seconds=args.timeout,
        beside=args.beside,
        seed=SEED,
        job=job,
        environment=tuned_in(environment),
        versions=_versions(args.versions) if args.versions else (),
    )
    check(plan, environment)
    if args.set and not plan.versions and not args.skip_versions:
        raise UsageError(
            "variables are measured after versions, because a new version has changed the speed more often and by more",
            hint="measure --b first, and name its result.json: --versions FILE; --skip-versions goes on without it",
        )
    return plan


def _versions(file: str) -> tuple[dict[str, str], ...]:
    """Return the keys for which the result in ``file`` compares versions. Raise InputMissing, DataError."""
    from fairlead.cli.nccl_result import read_result
    from fairlead.nccl.measured_result import DAYS_MAX, age_days, compared_versions

    _, result = read_result(file)
    if not (keys := compared_versions(result)):
        why = "it has no decision" if result.mode == "versions" else "it compares variables"
        raise DataError(f"{file}: not a comparison of versions: {why}", hint="name the result.json of nccl measure --b")
    if not -1 <= (days := age_days(result, time.time())) <= DAYS_MAX:
        raise DataError(f"{file}: {days:.0f} days old, and a result counts for {DAYS_MAX} days", hint="measure --b again")
    return keys


def _show_plan(plan: NcclPlan, folder: str, *, as_json: bool) -> ExitCode:
    """Print the plan. How long a launch takes is not known before the first one, so the time is for a guess and at most."""
    if as_json:
        print_json({"folder": folder, "launches": plan.launches, "launches_if_won": plan.launches_if_won, **_fields(plan)})
        return ExitCode.OK
    letters = ["A", *(chr(ord("B") + i) for i in range(len(plan.arms) - 1))]
    print(f"in {folder}, {f'job {plan.job}' if plan.job else 'no Slurm job'}; $TEST is {plan.test}")
    for letter, arm in zip(letters, plan.arms, strict=True):
        print(f"{letter}: {arm.name + ': ' if arm.variables else ''}{arm.command}")
    order = [" ".join(letters[s.arm] for s in block_steps(NcclPhase.ALONE, b, range(len(letters)))) for b in (0, 1)]
    if plan.mode == "variables" and not plan.versions:
        print(SKIPPED)
    print(f"1. one launch of each, not counted: {len(letters)}")
    print(f"2. A and A, {plan.blocks} blocks: {4 * plan.blocks}")
    print(f"3. A and the others, {plan.blocks} blocks ({order[0]}, then {order[1]}): {2 * plan.blocks * len(letters)}")
    beside = f"{4 * plan.blocks} beside the GEMM loop, and one" if plan.beside else "one"
    print(f"4. for each that wins alone: {beside} with known sums: {plan.launches_if_won}")
    if not plan.beside:
        print("   without --beside no result is applied to jobs, because a faster collective can slow a job down")
    guess, most = plan.launches * GUESS_SECONDS / 60, plan.launches * plan.timeout_seconds / 60
    print(f"{plan.launches} launches, and {plan.launches_if_won} for each that wins: {guess:.0f} min if a launch takes", end=" ")
    print(f"{GUESS_SECONDS:g} s, at most {most:.0f} min (--timeout). The first launch shows it.")
    return ExitCode.OK


def _fields(plan: NcclPlan) -> dict[str, object]:
    return {name: getattr(plan, name) for name in plan.__struct_fields__}
