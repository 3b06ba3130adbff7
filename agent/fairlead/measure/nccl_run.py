"""Runs the plan of `fairlead nccl measure` in one allocation, keeps every launch in a folder, and writes result.json there.

Each launch that has ended is one JSON file beside what it printed. So a run that was killed goes on where it was, in the same
allocation. A block that was not finished is launched again as a whole, because its launches must run one after the other.
"""

from __future__ import annotations

import fcntl
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from fairlead import __version__
from fairlead.errors import DataError, FairleadError, HostError, NodeBusy, UsageError, next_step
from fairlead.measure import collective, float_sums, node_parts
from fairlead.measure.nccl_launch import launch, still_running
from fairlead.measure.nccl_plan import SKIPPED, NcclArm, NcclPhase, NcclPlan, NcclStep, block_steps
from fairlead.measure.tool import MeasuredOutcome, last_line
from fairlead.model.json_text import NOT_JSON
from fairlead.nccl import debug_lines, launch_figures, results
from fairlead.nccl.debug_lines import NcclSaid
from fairlead.nccl.launch_statistics import Blocks, Effect, LaunchDifference, differences, noise_floors
from fairlead.nccl.measured_result import SCHEMA, MeasuredResult, NcclCandidate, ResultJudgement, SumCheck, judge_candidate
from fairlead.nccl.result_key import NodeParts, changes, key_of

PRODUCTS = "matrix products"
_SUMS = "fairlead sums: rank "


class StoredLaunch(Struct, frozen=True, kw_only=True):
    """Holds one launch that has ended. why: why it cannot be used, or "". times: in microseconds by size in bytes. rate: that of
    the GEMM loop beside it, in flop/s. said: what NCCL said about itself, with NCCL_DEBUG=INFO."""

    seconds: float
    why: str = ""
    collective: str = ""
    times: dict[int, float] = {}
    rate: float = 0.0
    sums: SumCheck | None = None
    said: NcclSaid = NcclSaid()


def begin(folder: str, plan: NcclPlan) -> None:
    """Write the plan of a new run. Raises UsageError if the folder has one, and HostError."""
    try:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "plan.json"), "xb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(plan), indent=2))
    except FileExistsError:
        raise UsageError(f"{folder} has a run already", hint="--resume goes on with it; --folder names another folder") from None
    except OSError as e:
        raise HostError(f"{folder}: {e.strerror}", hint=next_step(e) or "--folder names a folder that the nodes share") from None


def load(folder: str, job: str) -> NcclPlan:
    """Return the plan of a run that was killed. Raises UsageError if it was begun in another allocation, and DataError."""
    path = os.path.join(folder, "plan.json")
    try:
        with open(path, "rb") as file:
            plan = msgspec.json.decode(file.read(1 << 20), type=NcclPlan)
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}", hint="--resume needs the folder of a run that was begun") from None
    except NOT_JSON:
        raise DataError(
            f"{path}: no whole plan of fairlead nccl measure", hint="begin anew: --folder names another folder"
        ) from None
    if plan.job != job:
        here = f"this is job {job}" if job else "this is no job"
        raise UsageError(
            f"{folder}: the run was begun in {f'job {plan.job}' if plan.job else 'no job'}, and {here}",
            hint="launches of two allocations cannot be compared: begin anew with another --folder",
        )
    return plan


class NcclRun:
    """Runs the launches that are not in the folder yet. ``tell`` is called with each line of progress."""

    def __init__(
        self, plan: NcclPlan, folder: str, environment: Mapping[str, str], tell: Callable[[str], None], *, root: str = "/"
    ) -> None:
        self.plan, self.folder = plan, folder
        self._environment, self._tell, self._root = dict(environment), tell, root
        self._failed: dict[int, str] = {}
        self._done, self._of, self._launched, self._seconds = 0, plan.launches, 0, 0.0

    def measure(self) -> MeasuredResult:
        """Make all launches, and return and store the result. Raises HostError if A fails, NodeBusy if the run is at work, and
        UsageError if versions were compared before, but not these."""
        with open(os.path.join(self.folder, "plan.json"), "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise NodeBusy(f"{self.folder}: another process works on this run", hint="wait for its end") from None
            self._refuse_left_over()
            nodes = self._nodes()
            cluster = node_parts.cluster(self._environment)
            warm = [self._launch(NcclStep(phase=NcclPhase.WARM_UP, arm=0))]
            self._refuse_other_versions(key_of(cluster, nodes, warm[0].said))
            warm += [self._launch(NcclStep(phase=NcclPhase.WARM_UP, arm=arm)) for arm in range(1, len(self.plan.arms))]
            keys = [key_of(cluster, nodes, each.said) for each in warm]
            self._warn_of_end()
            same = self._compared(NcclPhase.SAME, [0, 0])[1]
            floors = noise_floors(same)
            alone = self._compared(NcclPhase.ALONE, list(range(len(self.plan.arms))), floors=floors)
            found = tuple(self._candidate(arm, same, alone.get(arm, ()), keys[arm]) for arm in range(1, len(self.plan.arms)))
            result = MeasuredResult(
                schema=SCHEMA,
                measured=time.time(),
                fairlead=__version__,
                mode=self.plan.mode,
                collective=warm[0].collective,
                command=self.plan.arms[0].command,
                test=self.plan.test,
                environment=self.plan.environment,
                key=keys[0],
                launches=2 * self.plan.blocks,
                same=same,
                candidates=found,
            )
            _write(os.path.join(self.folder, "result.json"), result)
            return result

    # -- launching --------------------------------------------------------------------------------

    def _refuse_left_over(self) -> None:
        for name in sorted(os.listdir(self.folder)):
            base = os.path.join(self.folder, name.removesuffix(".group"))
            if name.endswith(".group") and (group := still_running(base)):
                raise NodeBusy(
                    f"a launch of the run that was killed still runs (process group {group})", hint=f"end it: kill -- -{group}"
                )

    def _refuse_other_versions(self, key: Mapping[str, str]) -> None:
        """Refuse to measure variables if versions were compared only for another key than that of A."""
        if self.plan.mode == "variables" and not self.plan.versions:
            self._tell(SKIPPED)
        unlike = [changes(was, key) for was in self.plan.versions]
        if unlike and all(unlike):
            raise UsageError(
                f"the result of --versions does not hold here: {', '.join(min(unlike, key=len)[:3])}",
                hint="compare versions here first (--b), or say --skip-versions; name another --folder",
            )

    def _nodes(self) -> tuple[NodeParts, ...]:
        """Return what the nodes say about themselves. Without them the key is not known, and the result is never applied."""
        if not self.plan.job:
            self._tell("note: this is no Slurm job: the key of the result is not known, so no job can apply it")
            return ()
        try:
            return node_parts.ask_nodes(self._environment, root=self._root)
        except FairleadError as e:
            self._tell(f"note: the key of the result is not known, so no job can apply it: {node_parts.note(e)}")
            return ()

    def _warn_of_end(self) -> None:
        """Say so if the allocation ends before the run."""
        end = self._environment.get("SLURM_JOB_END_TIME", "")
        left = self._left_seconds()
        if end.isdecimal() and time.time() + left > int(end):
            has = max(0, int(end) - time.time()) / 60
            self._tell(f"note: about {left / 60:.0f} min are left to measure, and the allocation ends in {has:.0f} min")

    def _left_seconds(self) -> float:
        return (self._of - self._done) * (self._seconds / self._launched if self._launched else 0.0)

    def _compared(
        self, phase: NcclPhase, arms: Sequence[int], *, floors: Mapping[str, float] | None = None, candidate: int = 0
    ) -> dict[int, tuple[LaunchDifference, ...]]:
        """Launch all blocks of a phase, and return the comparisons with A by the number of the side."""
        blocks: list[dict[int, list[StoredLaunch]]] = []
        for block in range(self.plan.blocks):
            steps = [s for s in block_steps(phase, block, arms, candidate) if s.arm not in self._failed]
            self._begin_block(steps)
            sides: dict[int, list[StoredLaunch]] = {}
            for step in steps:
                if step.arm not in self._failed:
                    sides.setdefault(step.side, []).append(self._launch(step))
            blocks.append(sides)
        times: dict[tuple[int, str], Blocks] = {}
        for side in range(1, len(arms)):
            if arms[side] in self._failed:
                continue
            of_side = launch_figures.blocks_by_group([([x.times for x in b[0]], [x.times for x in b[side]]) for b in blocks])
            if phase is NcclPhase.BESIDE:
                of_side[PRODUCTS] = [([1 / x.rate for x in b[0]], [1 / x.rate for x in b[side]]) for b in blocks]
            times |= {(side, name): each for name, each in of_side.items()}
        return by_side(times, self.plan.seed, floors or {})

    def _begin_block(self, steps: Sequence[NcclStep]) -> None:
        """Forget the launches of a block that was not finished. A candidate that failed stays failed."""
        stored = [self._stored(step) for step in steps]
        for step, each in zip(steps, stored, strict=True):
            if None in stored and each is not None and not each.why:
                os.unlink(self._path(step, "json"))

    def _path(self, step: NcclStep, end: str) -> str:
        return os.path.join(self.folder, f"{step.name}.{end}")

    def _stored(self, step: NcclStep) -> StoredLaunch | None:
        try:
            with open(self._path(step, "json"), "rb") as file:
                return msgspec.json.decode(file.read(), type=StoredLaunch)
        except (FileNotFoundError, *NOT_JSON):
            return None

    def _launch(self, step: NcclStep) -> StoredLaunch:
        """Return a launch from the folder, or make it. Raises HostError if A cannot be used."""
        arm = self.plan.arms[step.arm]
        found = self._stored(step)
        new = found is None
        if found is None:
            found = self._made(step, arm)
            self._launched, self._seconds = self._launched + 1, self._seconds + found.seconds
        if found.why and step.arm == 0:
            where = self._path(step, "out")
            raise HostError(f"A cannot be measured: {found.why}", hint=f"see {where}; then go on: --resume")
        if new:
            _write(self._path(step, "json"), found)
        if found.why and step.phase is not NcclPhase.SUMS:
            self._failed[step.arm] = found.why
        self._done += 1
        if new:
            left = f", about {self._left_seconds() / 60:.0f} min left" if self._done < self._of else ""
            words = f"failed: {found.why}" if found.why else f"{found.seconds:.0f} s"
            self._tell(f"[{self._done}/{self._of}] {step.phase.value}: {arm.name}: {words}{left}")
        return found

    def _made(self, step: NcclStep, arm: NcclArm) -> StoredLaunch:
        environment = {**self._environment, **arm.variables, "TEST": self.plan.test}
        if step.phase is NcclPhase.SUMS:
            environment["TEST"] = self._sums_command(step)
        if step.phase is NcclPhase.WARM_UP:
            environment |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV"}
            environment.pop("NCCL_DEBUG_FILE", None)
        beside = self.plan.beside if step.phase is NcclPhase.BESIDE else ""
        base = os.path.join(self.folder, step.name)
        ended = launch(arm.command, environment, base, self.plan.timeout_seconds, beside=beside)
        out, err = (_text(f"{base}.{end}") for end in ("out", "err"))
        if ended.status is None:
            return StoredLaunch(seconds=ended.seconds, why=f"ended after {ended.seconds:.0f} s: {collective.so_far(out)}")
        if step.phase is NcclPhase.SUMS:
            return read_sums(out, err, ended.status, ended.seconds)
        found = read_launch(out, err, ended.status, ended.seconds)
        if beside and not found.why:
            if not ended.rates:
                why = (
                    "the GEMM loop printed no rate while the launch ran: let it print one every second, or the launch run longer"
                )
                return StoredLaunch(seconds=ended.seconds, why=why)
            found = msgspec.structs.replace(found, rate=math.exp(sum(map(math.log, ended.rates)) / len(ended.rates)))
        return found

    def _sums_command(self, step: NcclStep) -> str:
        """Return how the known sums are checked. The program is copied to the folder, which a container may have mounted too."""
        program = os.path.join(self.folder, "float_sums.py")
        shutil.copyfile(float_sums.__file__, program)
        meet = os.path.join(self.folder, f"{step.name}-{os.getpid()}")
        return shlex.join([shutil.which("python3", path=self._environment.get("PATH")) or sys.executable, "-I", program, meet])

    # -- judging ----------------------------------------------------------------------------------

    def _candidate(
        self, number: int, same: tuple[LaunchDifference, ...], alone: tuple[LaunchDifference, ...], key: dict[str, str]
    ) -> NcclCandidate:
        """Return what was found about a candidate, after the further launches of one that won alone."""
        arm, beside, sums, unchecked = self.plan.arms[number], None, None, ""
        effects = {each.effect for each in alone}
        steady = all(each.effect is Effect.NONE for each in same)
        if number not in self._failed and effects & {Effect.GAIN} and Effect.LOSS not in effects and steady:
            self._of += self.plan.launches_if_won
            if self.plan.beside:
                beside = self._compared(NcclPhase.BESIDE, [0, number], candidate=number).get(1)
            if number not in self._failed:
                stored = self._launch(NcclStep(phase=NcclPhase.SUMS, arm=number)) if "$TEST" in arm.command else None
                sums, unchecked = (stored.sums, stored.why) if stored is not None else (None, "$TEST is not in the command")
        judgement, why = judge_candidate(same, alone, beside, sums, unchecked)
        if number in self._failed:
            judgement, why = ResultJudgement.FAILED, self._failed[number]
        return NcclCandidate(
            name=arm.name,
            judgement=judgement,
            why=why,
            variables=arm.variables,
            command=arm.command if self.plan.mode == "versions" else "",
            alone=alone,
            beside=beside or (),
            by_size=self._by_size(number) if number not in self._failed else {},
            sums=sums,
            key=key if self.plan.mode == "versions" else {},
        )

    def _by_size(self, number: int) -> dict[int, float]:
        """Return by what fraction a candidate was faster at each size: the ratio of the geometric means of all launches."""
        logs: dict[int, list[float]] = {}
        for block in range(self.plan.blocks):
            for step in block_steps(NcclPhase.ALONE, block, list(range(len(self.plan.arms)))):
                stored = self._stored(step) if step.side in (0, number) else None
                for size, time_us in (stored.times if stored is not None else {}).items():
                    logs.setdefault(size, []).append(math.log(time_us) * (1 if step.side == 0 else -1))
        return {size: math.expm1(sum(each) / (len(each) / 2)) for size, each in sorted(logs.items())}


def by_side(
    times: Mapping[tuple[int, str], Blocks], seed: int, floors: Mapping[str, float]
) -> dict[int, tuple[LaunchDifference, ...]]:
    """Return the comparisons by side. Holm's correction is over the groups of sizes of all candidates together."""
    named = {f"{side} {name}": blocks for (side, name), blocks in times.items()}
    found: dict[int, tuple[LaunchDifference, ...]] = {}
    for (side, name), each in zip(
        times, differences(named, seed, floors={f"{s} {n}": floors.get(n, 0.0) for s, n in times}), strict=True
    ):
        found[side] = (*found.get(side, ()), msgspec.structs.replace(each, name=name))
    return found


def read_launch(out: str, err: str, status: int, seconds: float) -> StoredLaunch:
    """Return a launch by what nccl-tests printed. Every row must be there, and its data must have been checked."""
    try:
        run = results.parse(out)[-1]
        times = launch_figures.times(run)
    except DataError as e:
        return StoredLaunch(seconds=seconds, why=f"ended with {status}: {last_line(err, out) or e}")
    read = collective.read(run.collective or "unknown", out, err)
    why = read.why
    if read.outcome is MeasuredOutcome.PASS and status:
        why = f"ended with {status}: {last_line(err, out)}"
    elif read.outcome is MeasuredOutcome.PASS and len(results.parse(out)) > 1:
        why = "several runs in one launch: each process has measured itself alone"
    elif read.outcome is not MeasuredOutcome.PASS and not why:
        why = f"its outcome is {read.outcome.value}"
    return StoredLaunch(
        seconds=seconds, why=why, collective=run.collective or "", times=times, said=debug_lines.read(f"{out}\n{err}")
    )


def read_sums(out: str, err: str, status: int, seconds: float) -> StoredLaunch:
    """Return a launch of ``float_sums`` by the lines of its ranks, of which none may be missing."""
    found: dict[int, tuple[int, float, float]] = {}
    for line in out.splitlines():
        words = line[line.find(_SUMS) + len(_SUMS) :].replace(":", " ").split() if _SUMS in line else []
        with suppress(ValueError, IndexError):
            found[int(words[0])] = int(words[2]), float(words[4]), float(words[6])
    ranks = {of for of, _, _ in found.values()}
    if status or len(ranks) != 1 or set(found) != set(range(*ranks)):
        return StoredLaunch(seconds=seconds, why=f"its float32 sums could not be checked: {last_line(err, out) or 'no output'}")
    worst, most = max(w for _, w, _ in found.values()), max(b for _, _, b in found.values())
    return StoredLaunch(seconds=seconds, sums=SumCheck(ranks=len(found), worst=min(worst, 1e300), bound=most))


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(64 << 20)
    except OSError:
        return ""


def _write(path: str, what: Struct) -> None:
    """Write a file as a whole, so that a killed run leaves it whole or not at all."""
    try:
        with open(f"{path}.new", "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(what), indent=1))
        os.replace(f"{path}.new", path)
    except OSError as e:
        raise HostError(f"{path}: {e.strerror}", hint=next_step(e)) from None
