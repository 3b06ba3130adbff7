"""The marks that `fairlead apply` leaves for the agent."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from fairlead.daemon.loop.apply_marks import applying


def test_the_mark_of_a_running_apply(tmp_path: Path) -> None:
    assert not applying(str(tmp_path))
    soon = int(time.clock_gettime(time.CLOCK_BOOTTIME)) + 60
    (tmp_path / "applying").write_text(f"1\t{os.getpid()}\t{soon}\n")
    assert applying(str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / "applying").write_text(f"1\t{gone.pid}\t{soon}\n")
    assert not applying(str(tmp_path)), "it was killed"
    (tmp_path / "applying").write_text("1\t7\t0\n")
    assert not applying(str(tmp_path))
