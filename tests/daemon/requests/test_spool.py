"""How often the agent accesses the disk for people's requests and holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from fairlead.daemon.requests.audit_trail import Trail
from fairlead.daemon.requests.spool import Requests
from fairlead.drains.admin_hold import AdminHold
from fairlead.history.memory import History
from fairlead.host.bounded_disk import Direct
from fairlead.policy import PolicyState

T = TypeVar("T")


class Counted(Direct):
    """Counts the accesses."""

    count = 0

    def do(self, act: Callable[[], T], late: Callable[[T], object] | None = None, wait_seconds: float = 0.0) -> T:
        self.count += 1
        return act()


def test_requests_and_the_hold_are_read_in_one_access(tmp_path: Path) -> None:
    """Each access of a disk that may not answer is a change to another thread and back."""
    state_dir, run_dir = (str(tmp_path / name) for name in ("state", "run"))
    disk = Counted()
    hold = AdminHold(disk, 60.0)
    Path(state_dir).mkdir()  # the folder of requests is not there, as on a node of which nobody has asked anything
    requests = Requests(state_dir, run_dir, Trail(state_dir, run_dir), disk)
    history, state = History(state_dir, "b1"), PolicyState()
    for reason in ("first", "second"):
        Path(state_dir, "hold").write_text(json.dumps({"reason": reason}))
        assert requests.take(state, history, "b1", partial(hold.read_now, state_dir)) is state
        assert hold.read(state_dir, run_dir) == {"reason": reason}
    assert disk.count == 2
    history.close()
