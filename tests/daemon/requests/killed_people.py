"""A child that takes up requests, or gives a command, and ends itself by SIGKILL before the K-th write of any kind.

python -m tests.daemon.requests.killed_people take FOLDER K        python -m tests.daemon.requests.killed_people say K COMMAND ...
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from fairlead.cli import main as fairlead
from fairlead.daemon.requests.audit_trail import Trail
from fairlead.daemon.requests.spool import Requests
from fairlead.history.memory import History

WRITES = ("write", "fsync", "rename", "replace", "unlink", "ftruncate", "kill")


def armed(at: int) -> None:
    """Every write of this process counts from now on; the process dies before number ``at``."""
    taken = 0

    def counted(what: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **named: Any) -> Any:
            nonlocal taken
            if taken == at:
                os.__dict__["kill_now"](os.getpid(), signal.SIGKILL)
            taken += 1
            return what(*args, **named)

        return step

    os.__dict__["kill_now"] = os.kill
    for name in WRITES:
        setattr(os, name, counted(getattr(os, name)))
    for name in ("_write", "commit"):
        setattr(History, name, counted(getattr(History, name)))


def main() -> int:
    if sys.argv[1] == "say":
        armed(int(sys.argv[2]))
        return fairlead(sys.argv[3:])
    state_dir, run_dir = f"{sys.argv[2]}/state", f"{sys.argv[2]}/run"
    history = History(state_dir, "b1")
    state = history.load_state()
    armed(int(sys.argv[3]))
    Requests(state_dir, run_dir, Trail(state_dir, run_dir)).take(state, history, "b1")
    return 0


if __name__ == "__main__":
    sys.exit(main())
