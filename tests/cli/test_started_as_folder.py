"""`python FOLDER/fairlead`: how `fairlead run` is started in a container whose image has another Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fairlead

FOLDER = Path(fairlead.__file__).parent


def test_a_command_runs_and_inherits_no_path() -> None:
    words = ["env", "-i", sys.executable, "-I", "-S", str(FOLDER), "run", "--", "/usr/bin/env"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "PYTHONPATH" not in done.stdout


def test_it_imports_the_package_and_nothing_from_its_folder(tmp_path: Path) -> None:
    words = [sys.executable, "-I", str(FOLDER), "version"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout, done.stderr
