from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hooks.disk import Disk
from tests.hooks.recorded_steps import Site
from tests.hooks.stage import NOBODY, SHELLS, Stage, needs_root
from tests.hooks.steps import lay_out


@pytest.fixture(scope="module")
def _namespace() -> Iterator[Stage]:
    if needs_root:
        pytest.skip("needs root: the hooks run in a private mount namespace")
    stage = Stage()
    yield stage
    stage.close()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A stage of the file's own whose taskset and planner are recorders."""
    if needs_root:
        pytest.skip("needs root: the hooks run in a private mount namespace")
    made = Stage()
    try:
        yield Site(made)
    finally:
        made.close()


@pytest.fixture
def stage(_namespace: Stage) -> Stage:
    _namespace.reset()
    return _namespace


@pytest.fixture(params=list(SHELLS))
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def task() -> Iterator[int]:
    """A process of nobody on all CPUs, as a task that Slurm has not bound."""
    process = subprocess.Popen(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "sleep", "60"])
    deadline = time.monotonic() + 90
    while "sleep" not in Path(f"/proc/{process.pid}/comm").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def disk(stage: Stage) -> Disk:
    lay_out(stage)
    stage.verdict(f"1\tok\t{1 << 40}\t1\t-\n")
    return Disk(stage)
