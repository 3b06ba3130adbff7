"""True D state in a node: nothing ends it but thawing, and ending the rack thaws it."""

from __future__ import annotations

import time

import pytest

from tests.lab.faults import Faults
from tests.lab.frozen import FrozenDisk
from tests.lab.host import Host
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.rack.test_rack import traces

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.rack]
CALL = (
    "import ctypes; n = ctypes.CDLL('libnvidia-ml.so.1'); n.nvmlInit_v2(); n.nvmlDeviceGetCount_v2(ctypes.byref(ctypes.c_uint()))"
)


def wait_state(host: Host, wanted: str) -> str:
    """State letter of the process in /run/stuck.pid, once it has been ``wanted`` ten times in a row (D for a moment is a page of
    the interpreter that comes from the disk), or 90 s have gone."""
    deadline = time.monotonic() + 90
    times = 0
    while True:
        status = host.run("cat /proc/$(cat /run/stuck.pid)/status", check=False).stdout
        state = next((line.split()[1] for line in status.splitlines() if line.startswith("State:")), "")
        times = times + 1 if state == wanted else 0
        if times == 10 or time.monotonic() > deadline:
            return state
        time.sleep(0.05)


def test_d_state_ends_by_thawing_and_with_the_rack() -> None:
    name = own_name("test-frozen")
    rack = Rack(1, name=name)
    rack.up()
    try:
        host = rack.nodes[0]
        disk = FrozenDisk(rack.ledger, host)
        disk.make()
        Faults(host.sim / "nvml.control").dstate("nvmlDeviceGetCount", disk.file)
        disk.freeze()
        start = f'python3 -c "{CALL}" >/dev/null 2>&1 </dev/null & echo $! > /run/stuck.pid'
        host.run(start)
        assert wait_state(host, "D") == "D"
        host.run("kill -9 $(cat /run/stuck.pid)")
        time.sleep(0.3)
        assert wait_state(host, "D") == "D"
        disk.thaw()
        assert wait_state(host, "") == ""
        disk.freeze()
        host.run(start)
        assert wait_state(host, "D") == "D"
    finally:
        rack.down()
    assert traces(name) == []
