"""Python wheels for the roots: nodes have no way out, so what the agent needs is fetched here, once per Python.

``wheelhouse("trixie")`` is a folder of wheels for that root's own Python, fetched by this machine's pip with its own
index configuration. Only built wheels are taken: nothing is compiled, and nothing runs at download.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.lab.roots import LabError, lab_dir, locked, root, say

#: What the agent needs on a node (DESIGN section 2).
REQUIREMENTS = ("msgspec", "nvidia-ml-py", "prometheus-client")


def python_version(suite: str) -> str:
    """The root's own Python, such as '3.11'."""
    return os.readlink(root(suite) / "usr/bin/python3").removeprefix("python")


def wheelhouse(suite: str, requirements: Sequence[str] = REQUIREMENTS) -> Path:
    """Folder of wheels of ``requirements`` and all they need, for the Python of ``suite``'s root.

    Cached by Python version and requirements. Raises LabError with pip's last line when a wheel is not to be had.
    """
    version = python_version(suite)
    wanted = hashlib.sha256("\n".join(sorted(requirements)).encode()).hexdigest()[:8]
    made = lab_dir() / "wheels" / f"cp{version.replace('.', '')}-{wanted}"
    with locked("wheels"):
        if made.is_dir():
            return made
        fresh = made.with_name(f".{made.name}")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        say(f"fetching wheels for Python {version}: {' '.join(requirements)}")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", f"--python-version={version}"]
        done = subprocess.run([*command, f"--dest={fresh}", *requirements], capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(fresh)
            raise LabError(f"no wheels for Python {version}: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}")
        fresh.rename(made)
    return made


if __name__ == "__main__":
    for each in sys.argv[1:] or ["bookworm"]:
        print(wheelhouse(each))
