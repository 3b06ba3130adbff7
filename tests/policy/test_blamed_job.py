"""Which job a drain's reason names."""

from __future__ import annotations

import pytest

from fairlead.policy import Order, decide
from tests.policy.test_decide import CHECKS, RULES, bad, now, run


@pytest.mark.parametrize(
    ("on_the_gpu", "alone", "named"),
    [
        (None, 11, 11),  # the check does not know
        (None, None, None),
        ((12,), 11, 12),
        ((), 11, None),  # another GPU's fault
        ((11, 12), None, None),
        ((12,), None, 12),  # several on the node, one on the GPU
    ],
)
def test_the_job_that_is_named_is_the_one_on_the_gpu(
    on_the_gpu: tuple[int, ...] | None, alone: int | None, named: int | None
) -> None:
    fault = bad(jobs=on_the_gpu)
    (decision,) = run([fault], job=alone, job_running=True)
    assert decision.order is Order.DRAIN and decision.job == named
    later = decide([fault], CHECKS, decision.state, now(1, job=99, job_running=True), RULES)
    assert later.job == named  # whoever came since
