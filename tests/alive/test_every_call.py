"""No NVML call of the worker can fail in silence: refused with any code, or absent from the library, the verdict says so.

A call that hangs is named by what the worker has announced before it (tests/alive/test_nvml.py shows three of them hang);
here every call is seen to be announced under its own name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.host.gpu_reader import RETURN_NAMES
from tests.daemon.conftest import PROJECT
from tests.lab.nvml.library import write_conf
from tests.lab.trees import MACHINES

#: The library of r470 knows this one under its older name, which is asked then: nothing is lost.
OLDER_NAME = "nvmlDeviceGetCurrentClocksEventReasons absent"
SOME = "3,13,999,absent"
ALL = [str(code) for code in RETURN_NAMES if code not in (5, 7)]  # not errors of a reading
AT_ONCE = 7  # codes of one test, which takes minutes

LONG = (pytest.mark.slow, pytest.mark.timeout(1800))


def matrix(library: Path, folder: Path, tree: Path, codes: str) -> dict[str, Any]:
    control = folder / "control"
    control.touch()
    environment = os.environ | {
        "LD_LIBRARY_PATH": os.fspath(library),
        "FAIRLEAD_SIM_NVML": os.fspath(write_conf(tree, folder / "nvml.conf")),
        "FAIRLEAD_SIM_CONTROL": os.fspath(control),
        "PYTHONPATH": f"{PROJECT / 'agent'}:{PROJECT}",
    }
    command = [sys.executable, "-m", "tests.alive.every_call", str(tree), codes]
    seconds = 240 + 180 * len(codes.split(","))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("machine", "codes"),
    [
        pytest.param("hgx-h100", "999,absent", marks=pytest.mark.heavy),
        pytest.param("hgx-h100", SOME, marks=pytest.mark.slow),
        pytest.param("hgx-a100", SOME, marks=pytest.mark.slow),
        pytest.param("l40s-pcie", SOME, marks=pytest.mark.slow),
        *(
            pytest.param(machine, ",".join(ALL[i : i + AT_ONCE]), marks=LONG, id=f"{machine}-every-code-{i // AT_ONCE + 1}")
            for machine in ("hgx-h100", "hgx-a100")
            for i in range(0, len(ALL), AT_ONCE)
        ),
    ],
)
def test_no_call_fails_in_silence(library: Path, tmp_path: Path, machine: str, codes: str) -> None:
    found = matrix(library, tmp_path, MACHINES / machine, codes)
    assert len(found["calls"]) > 40 and found["unannounced"] == {}
    assert [told for told in found["silent"] if told != OLDER_NAME] == []
