"""Three training jobs with known truth: in AR one worker is slow, in SE and ST nobody is."""

from __future__ import annotations

import pytest

from fairlead.fleet.slow_node_rule import NodesJudgement, judged
from tests.fleet.traces import PATTERNS, SIGNALS, signs, steps_of

CULPRIT = "0.0"
WINDOW = 8


def windows(name: str, *, roles: bool = True, steps: int = WINDOW) -> list[NodesJudgement]:
    """The judgement of each window of so many steps."""
    job = steps_of(name)
    last = min(map(len, job.values()))
    return [judged(signs(job, at, steps, roles=roles), SIGNALS, PATTERNS) for at in range(0, last - steps + 1, steps)]


def accused(found: list[NodesJudgement]) -> list[list[str]]:
    return [[each.node for each in judgement.accused] for judgement in found]


def test_the_slow_worker_of_ar_is_named_in_each_window_and_nobody_else() -> None:
    found = windows("AR")
    assert len(found) == 5 and accused(found) == [[CULPRIT]] * 5
    assert not any(judgement.uneven for judgement in found)


@pytest.mark.parametrize("name", ["ST", "SE"])
@pytest.mark.parametrize("steps", [8, 20])
@pytest.mark.parametrize("roles", [True, False])
def test_nobody_is_named_where_nobody_is_slow(name: str, steps: int, roles: bool) -> None:
    """Also if the pipeline ranks are not known, as they are not on a node."""
    found = windows(name, roles=roles, steps=steps)
    assert found and not any(accused(found))


def test_the_heavy_last_stage_of_st_is_uneven_work_if_ranks_are_not_known() -> None:
    for judgement in windows("ST", roles=False):
        assert {(d.node, d.side) for d in judgement.uneven} == {("0.3", "high"), ("1.3", "high")}


def test_groups_of_two_are_not_compared() -> None:
    for judgement in windows("ST"):
        assert len(judgement.not_judged) == 8 and not judgement.least


def test_single_steps_name_somebody_in_se_who_is_not_slow() -> None:
    """Why medians are compared: this is the test of the test."""
    job = steps_of("SE")
    one = [judged(signs(job, at, 1), SIGNALS, PATTERNS) for at in range(45)]
    assert any(d for judgement in one for d in judgement.uneven)
