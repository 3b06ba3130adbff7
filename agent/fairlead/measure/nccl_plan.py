"""Decides in which order `fairlead nccl measure` launches its commands. This module starts nothing.

The order is interleaved: a block is A B B A, and the next block B A A B. So a slow change of the cluster meets both commands
alike. Before that come one launch of each command that is not counted, and blocks in which both sides are A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from fairlead.errors import UsageError
from fairlead.jobenv.tuned_variables import checked
from fairlead.nccl.launch_figures import GROUPS
from fairlead.nccl.launch_statistics import LEVEL, least_p

BLOCKS = 6
CANDIDATES_MAX = 8
TEST = "all_reduce_perf -b 8K -e 1G -f 4 -c 1 -a 3"
SKIPPED = "note: versions of NCCL were not compared before these variables (--skip-versions)"


class NcclPhase(StrEnum):
    """Names the parts of a run. The name begins the name of each launch's files."""

    WARM_UP = "warm-up"  # is not counted; NCCL says what it is
    SAME = "same"  # A and A
    ALONE = "alone"  # A and every candidate
    BESIDE = "beside"  # A and one candidate that won alone, beside a GEMM loop
    SUMS = "sums"  # one float32 all-reduce with known sums


class NcclArm(Struct, frozen=True, kw_only=True):
    """Describes one command that is compared. variables: what is set for it in addition."""

    name: str
    command: str
    variables: dict[str, str] = {}


class NcclPlan(Struct, frozen=True, kw_only=True):
    """Describes a run. arms: A, then its candidates. test: what $TEST is in the commands. job: the Slurm job of the allocation,
    or "". environment: the variables of NCCL that the caller's environment sets. versions: the keys for which versions were
    compared before these variables, or () if the caller skips that."""

    mode: Literal["versions", "variables"]
    arms: tuple[NcclArm, ...]
    test: str
    blocks: int
    timeout_seconds: float
    beside: str
    seed: int
    job: str
    environment: dict[str, str] = {}
    versions: tuple[dict[str, str], ...] = ()

    @property
    def launches(self) -> int:
        """The number of launches that a run has in any case."""
        return len(self.arms) + 4 * self.blocks + 2 * self.blocks * len(self.arms)

    @property
    def launches_if_won(self) -> int:
        """The number of further launches for each candidate that wins alone."""
        return (4 * self.blocks if self.beside else 0) + 1


class NcclStep(Struct, frozen=True, kw_only=True):
    """Describes one launch. side: the number of its side in the block, 0 for A. arm: the number of the arm that is launched."""

    phase: NcclPhase
    arm: int
    side: int = 0
    block: int = 0
    at: int = 0
    candidate: int = 0

    @property
    def name(self) -> str:
        """The name of the launch's files, without their ending."""
        if self.phase in (NcclPhase.WARM_UP, NcclPhase.SUMS):
            return f"{self.phase.value}-{self.arm}"
        of = f"-{self.candidate}" if self.candidate else ""
        return f"{self.phase.value}{of}-{self.block:02}-{self.at}"


def block_steps(phase: NcclPhase, block: int, arms: Sequence[int], candidate: int = 0) -> tuple[NcclStep, ...]:
    """Return the launches of one block: every arm twice, the second time in reverse order. Every other block is turned around."""
    sides = [*range(len(arms)), *reversed(range(len(arms)))]
    if block % 2:
        sides = [*reversed(range(len(arms))), *range(len(arms))]
    return tuple(
        NcclStep(phase=phase, arm=arms[side], side=side, block=block, at=at, candidate=candidate) for at, side in enumerate(sides)
    )


def candidates(texts: Sequence[str], command: str) -> tuple[NcclArm, ...]:
    """Return an arm for each text such as ``NCCL_MIN_CTAS=16 NCCL_MAX_CTAS=16``. Raises UsageError, DataError."""
    found = []
    for text in texts:
        pairs = [word.partition("=") for word in text.split()]
        if not pairs or not all(sign and name for name, sign, _ in pairs) or len({name for name, _, _ in pairs}) != len(pairs):
            raise UsageError(f"--set {text!r}: not one or more NAME=VALUE", hint="--set 'NCCL_MIN_CTAS=16 NCCL_MAX_CTAS=16'")
        found.append(NcclArm(name=" ".join(text.split()), command=command, variables=checked({n: v for n, _, v in pairs})))
    return tuple(found)


def check(plan: NcclPlan, environment: Mapping[str, str]) -> None:
    """Raise UsageError for a plan that cannot show anything."""
    count = len(plan.arms) - 1
    if not 1 <= count <= CANDIDATES_MAX:
        raise UsageError(f"{count} candidates: at least 1 and at most {CANDIDATES_MAX}", hint="give --b, or --set once or more")
    if least_p(plan.blocks) * (len(GROUPS) + 1) * count > LEVEL:
        raise UsageError(
            f"--blocks {plan.blocks}: too few launches for {count} candidates: no gain could be shown", hint="take more"
        )
    for arm in plan.arms:
        if both := sorted(set(arm.variables) & set(environment)):
            raise UsageError(
                f"{both[0]} is set in your environment, and would be set for {arm.name} too", hint=f"unset {both[0]}"
            )
    names = [arm.name for arm in plan.arms]
    if len(set(names)) != len(names):
        raise UsageError("two candidates are the same", hint="give each --set once")
