"""An array that ends at once is collected whole, at most five writes a second. ``make bench`` measures it with 1,000 tasks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.controller.accounting import WRITES_PER_SECOND
from tests.accounting.array_load import collected, ended_array
from tests.lab.cluster import Cluster

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1800)]
TASKS = int(os.environ.get("FAIRLEAD_ARRAY_TASKS", "150"))


def test_an_array_is_collected_whole_and_not_too_fast(slurm: Cluster, tmp_path: Path) -> None:
    if slurm.suite == "bookworm":
        pytest.skip("sacctmgr of 22.05 writes AdminComment in lower case")
    ended_array(slurm, tmp_path, TASKS)
    found = collected(slurm, tmp_path, TASKS)
    assert found.written >= TASKS
    assert found.most_per_second <= WRITES_PER_SECOND * 1.1
