"""Measure two versions of NCCL from PyPI wheels with two ranks on one GPU, by `fairlead nccl measure`.

    pip download --no-deps --dest wheels nvidia-nccl-cu12==2.27.7 nvidia-nccl-cu12==2.28.9    # where there is a network
    for each wheel: python -m zipfile -e WHEEL FOLDER
    python -m tests.gpu.nccl_versions FOLDER_A/nvidia/nccl/lib FOLDER_B/nvidia/nccl/lib [options of fairlead nccl measure]

It needs the driver and no CUDA toolkit. Each folder has a libnccl.so.2.
"""

from __future__ import annotations

import os
import shlex
import sys

from fairlead.cli import main as fairlead


def command(library: str) -> str:
    """Return an arm: two ranks of $TEST with the NCCL of this folder."""
    path = ":".join(filter(None, (os.path.abspath(library), os.environ.get("LD_LIBRARY_PATH"))))
    return f"LD_LIBRARY_PATH={shlex.quote(path)} {shlex.quote(sys.executable)} -m tests.gpu.two_ranks -- $TEST"


def main(a: str, b: str, *options: str) -> int:
    test = f"{shlex.quote(sys.executable)} -m tests.gpu.timed_all_reduce"
    return fairlead(["nccl", "measure", "--a", command(a), "--b", command(b), "--test", test, *options])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
