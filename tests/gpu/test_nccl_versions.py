"""The measurement of two NCCL versions with two ranks on one GPU, on a simulated NCCL. No real GPU has run it yet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.nccl.measured_result import decode
from fairlead.nccl.results import parse
from tests.measure.conftest import ROOT, build_simulated_nccl


def environment(folder: Path) -> dict[str, str]:
    env = {n: v for n, v in os.environ.items() if not n.startswith(("NCCL_", "SLURM_"))}
    return env | {"PYTHONPATH": f"{ROOT / 'agent'}:{ROOT}", "FAIRLEAD_SIM_NCCL": str(folder), "TMPDIR": str(folder)}


def test_two_ranks_print_what_nccl_tests_prints(tmp_path: Path) -> None:
    env = environment(tmp_path) | {"LD_LIBRARY_PATH": str(build_simulated_nccl(tmp_path / "lib"))}
    command = [sys.executable, "-m", "tests.gpu.two_ranks", "--", sys.executable, "-m", "tests.gpu.timed_all_reduce"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = parse(done.stdout)
    assert run.passed and run.checked and run.ranks == 2 and len(run.rows) == 5


@pytest.mark.slow
def test_two_versions_of_a_simulated_nccl(tmp_path: Path) -> None:
    """Both folders have the same library, so nothing differs and no value is wrong."""
    folders = [build_simulated_nccl(tmp_path / name) for name in ("a", "b")]
    words = [*map(str, folders), "--blocks", "3", "--folder", str(tmp_path / "run"), "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.nccl_versions", *words],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = decode((tmp_path / "run/result.json").read_bytes(), "result.json")
    assert result.mode == "versions" and result.collective == "all_reduce" and len(result.candidates[0].alone) == 3
    assert result.candidates[0].judgement != "failed"


def test_a_library_that_is_missing_is_named(tmp_path: Path) -> None:
    words = [str(tmp_path), str(tmp_path), "--folder", str(tmp_path / "run"), "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.nccl_versions", *words],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        pytest.skip("this machine has an NCCL of its own")
    assert done.returncode == 69 and "libnccl.so.2: cannot open shared object file" in done.stderr
