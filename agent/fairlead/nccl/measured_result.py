"""Defines the file that `fairlead nccl measure` writes: what was compared, what was found, and the key for which it holds.

The schema is ``nccl-result/1``. Another person may have written the file, so it is read by a table of types, with limits.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from fairlead.errors import DataError
from fairlead.model.json_text import NOT_JSON
from fairlead.model.plain_text import one_line
from fairlead.nccl.launch_statistics import Effect, LaunchDifference
from fairlead.nccl.result_key import PARTS

SCHEMA: Literal["nccl-result/1"] = "nccl-result/1"
FILE_MAX_BYTES = 1 << 20
DAYS_MAX = 90
DAY_SECONDS = 86400.0

Text = Annotated[str, Meta(max_length=4000)]
Word = Annotated[str, Meta(max_length=300)]


class ResultJudgement(StrEnum):
    """Names the outcome of a run for one candidate. NO_DECISION: A differed from itself, so nothing can be said."""

    GAIN = "gain"
    NO_GAIN = "no gain seen"
    LOSS = "loss"
    FAILED = "failed"
    NO_DECISION = "no decision"


class SumCheck(Struct, frozen=True, kw_only=True):
    """Holds one float32 all-reduce with known sums. worst: the largest error of a sum. bound: the largest error that the rounding
    of a right sum can have. Both are parts of the sum of the absolute values."""

    ranks: int
    worst: float
    bound: float

    @property
    def right(self) -> bool:
        return self.worst <= self.bound


class NcclCandidate(Struct, frozen=True, kw_only=True):
    """Holds what was found about B, or about one set of variables. alone: one comparison for each group of sizes. beside: the
    comparisons beside a GEMM loop. sums: the known sums, or None if they were not checked. key: that of B."""

    name: Word
    judgement: ResultJudgement
    why: Text
    variables: Annotated[dict[Word, Word], Meta(max_length=20)] = {}
    command: Text = ""
    alone: Annotated[tuple[LaunchDifference, ...], Meta(max_length=10)] = ()
    beside: Annotated[tuple[LaunchDifference, ...], Meta(max_length=10)] = ()
    by_size: Annotated[dict[int, float], Meta(max_length=200)] = {}
    sums: SumCheck | None = None
    key: Annotated[dict[Word, Text], Meta(max_length=20)] = {}


class MeasuredResult(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the whole file. measured: seconds since 1970. command: that of A. environment: the variables of NCCL that were set in
    the environment of the run. same: A compared with itself. probe: the command by which NCCL says what it is."""

    schema: Literal["nccl-result/1"]
    measured: float
    fairlead: Word
    mode: Literal["versions", "variables"]
    collective: Word
    command: Text
    test: Text
    environment: Annotated[dict[Word, Word], Meta(max_length=50)]
    key: Annotated[dict[Word, Text], Meta(max_length=20)]
    launches: int
    same: Annotated[tuple[LaunchDifference, ...], Meta(max_length=10)]
    candidates: Annotated[tuple[NcclCandidate, ...], Meta(max_length=20)]

    @property
    def floor(self) -> float:
        """The largest noise floor of the groups of sizes."""
        return max((max(abs(each.low), abs(each.high)) for each in self.same), default=0.0)


def decode(data: bytes, file: str) -> MeasuredResult:
    """Return the result in a file. Raises DataError for anything that `fairlead nccl measure` does not write."""
    if len(data) > FILE_MAX_BYTES:
        raise DataError(f"{file}: more than {FILE_MAX_BYTES >> 20} MiB", hint="is it the right file?")
    try:
        result = msgspec.json.decode(data, type=MeasuredResult)
    except NOT_JSON as e:
        raise DataError(
            f"{file}: no whole result of fairlead nccl measure: {one_line(str(e), 200)}", hint="name its file result.json"
        ) from None
    if set(result.key) != set(PARTS):
        raise DataError(f"{file}: its key does not have the parts that this fairlead knows", hint="measure again")
    return result


def age_days(result: MeasuredResult, now: float) -> float:
    """Return how old a result is. Negative: it is from the future."""
    return (now - result.measured) / DAY_SECONDS


def compared_versions(result: MeasuredResult) -> tuple[dict[str, str], ...]:
    """Return the keys for which a result compares versions: that of A and that of B. Return () for a result of variables, and for
    a result without a decision."""
    decided = [each for each in result.candidates if each.judgement is not ResultJudgement.NO_DECISION]
    if result.mode != "versions" or not decided:
        return ()
    return (result.key, *(each.key for each in decided if each.key))


def judge_candidate(
    same: tuple[LaunchDifference, ...],
    alone: tuple[LaunchDifference, ...],
    beside: tuple[LaunchDifference, ...] | None,
    sums: SumCheck | None,
    unchecked: str = "",
) -> tuple[ResultJudgement, str]:
    """Return the judgement of a candidate that ran without a failure, and why. beside: None if it was not run beside a GEMM loop.
    unchecked: why its sums were not checked.

    A gain needs a gain in one group of sizes, no loss in another one, no loss beside a GEMM loop, and right sums.
    """
    unlike = [each.name for each in same if each.effect is not Effect.NONE]
    if unlike:
        return ResultJudgement.NO_DECISION, f"A differed from itself ({', '.join(unlike)}): something else changed during the run"
    lost, won = ([d for d in alone if d.effect is effect] for effect in (Effect.LOSS, Effect.GAIN))
    if lost:
        return ResultJudgement.LOSS, f"slower: {_said(lost)}" + (f"; faster: {_said(won)}" if won else "")
    if not won:
        worst = max((each.floor for each in alone), default=0.0)
        return ResultJudgement.NO_GAIN, f"a gain under {worst:.1%} cannot be seen here"
    if sums is not None and not sums.right:
        return (
            ResultJudgement.FAILED,
            f"its float32 sums are wrong: error {sums.worst:.2g}, and rounding explains {sums.bound:.2g}",
        )
    together = [d for d in beside or () if d.effect is Effect.LOSS]
    if together:
        return ResultJudgement.LOSS, f"faster alone ({_said(won)}), and slower beside a GEMM loop: {_said(together)}"
    missing = [] if beside is not None else ["it was not run beside a GEMM loop (--beside)"]
    missing += [] if sums is not None else [f"its float32 sums were not checked{f': {unchecked}' if unchecked else ''}"]
    return ResultJudgement.GAIN, f"faster: {_said(won)}" + (
        f"; not for use yet, because {' and '.join(missing)}" if missing else ""
    )


def _said(differences: list[LaunchDifference]) -> str:
    return ", ".join(f"{d.name} by {abs(d.gain):.1%} ({abs(d.low):.1%} to {abs(d.high):.1%})" for d in differences)


def unfit(candidate: NcclCandidate) -> str:
    """Return why a candidate must not be applied to a job, or "" if it may be."""
    if candidate.judgement is not ResultJudgement.GAIN:
        return f"it is no gain: {candidate.judgement.value}, {candidate.why}"
    if not candidate.variables:
        return "it compares versions and has no variables: choose the module or the container of B yourself"
    if not candidate.beside or any(each.effect is Effect.LOSS for each in candidate.beside):
        return "it was not run beside a GEMM loop: measure again with --beside"
    if candidate.sums is None or not candidate.sums.right:
        return "its float32 sums were not checked: measure again with $TEST in the command"
    return ""
