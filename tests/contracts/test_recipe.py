"""CONTRIBUTING's recipe is true: its example, put into the folder, is a check with schema, command line and documentation."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.lab.trees import MACHINES

ROOT = Path(__file__).resolve().parents[2]


def run(copy: Path, *argv: str, codes: tuple[int, ...] = (0,)) -> str:
    env = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run([sys.executable, "-m", "fairlead", *argv], env=env, capture_output=True, text=True, check=False)
    assert done.returncode in codes, done.stderr
    return done.stdout


def test_the_example_is_a_check(tmp_path: Path) -> None:
    block = re.search(r"^   ```python\n(.*?)^   ```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE)
    assert block
    copy = tmp_path / "agent"
    shutil.copytree(ROOT / "agent", copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "fairlead/checks/temperature.py").write_text(textwrap.dedent(block[1]))
    assert "limit_celsius" in run(copy, "explain", "temperature")
    assert "temperature" in json.loads(run(copy, "config", "schema"))["$defs"]["Checks"]["properties"]
    tree = str(MACHINES / "hgx-h100.tuned")
    assert not json.loads(run(copy, "check", "--root", tree, "--only", "temperature", "--json"))["findings"]
    hot = tmp_path / "hot"
    shutil.copytree(tree, hot, symlinks=True)
    nvml = json.loads((hot / "nvml.json").read_text())
    nvml["gpus"][2]["temperature"]["gpu_celsius"] = 95
    nvml["gpus"][3]["temperature"]["gpu_celsius"] = {"error": 999}
    (hot / "nvml.json").write_text(json.dumps(nvml))
    told = json.loads(run(copy, "check", "--root", str(hot), "--only", "temperature", "--json", codes=(3,)))
    assert sorted(f["level"] for f in told["findings"]) == ["unknown", "warn"]
