"""What a node can be after its next reboot: without a GPU, another machine, elsewhere, slow, or not there at all."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.lab.faultytrees import take_out
from tests.lab.ledger import own_name
from tests.lab.pcitree import put
from tests.lab.rack import Rack
from tests.lab.roots import LabError

pytestmark = [pytest.mark.rack, pytest.mark.slow, pytest.mark.timeout(180)]  # tests/maintain has the same in `make test`


def other_machine(tree: Path) -> None:
    take_out(tree, 7)
    put(tree / "sys/class/dmi/id/product_serial", "SN-OTHER")


def test_a_node_is_another_from_its_next_reboot() -> None:
    with Rack(1, name=own_name("test-refit")) as rack:
        host = rack.nodes[0]
        before, began = host.boot_id(), time.monotonic()
        host.refit(other_machine, address="10.77.0.99", machine_id="f" * 32)
        host.firmware(3)
        host.run("ls /dev/nvidia7")  # not before the reboot
        host.run(["systemctl", "reboot"], check=False)
        while _boot(rack) in ("", before):
            assert time.monotonic() < began + 60, rack.logs()
            time.sleep(0.05)
        assert time.monotonic() - began > 3
        seen = host.run("cat /sys/class/dmi/id/product_serial /etc/machine-id; ls /dev/nvidia? | wc -l; ip -4 -o addr show eth1")
        assert seen.stdout.split()[:3] == ["SN-OTHER", "f" * 32, "7"] and "10.77.0.99/16" in seen.stdout
        away = [*rack.enter, "ssh", "-F", str(rack.ssh_config), "-o", "ConnectTimeout=1", host.name, "true"]
        assert subprocess.run(away, capture_output=True, check=False, timeout=30).returncode == 255

        host.power("lose")
        host.run(["systemctl", "reboot"], check=False)
        while _boot(rack):
            assert time.monotonic() < began + 90, rack.logs()
            time.sleep(0.05)
        time.sleep(4)  # longer than its firmware takes
        assert _boot(rack) == ""
        host.power("on")
        while not _boot(rack):
            assert time.monotonic() < began + 120, rack.logs()
            time.sleep(0.05)


def _boot(rack: Rack) -> str:
    """The running boot's id; "" for a node that is off."""
    try:
        return rack.nodes[0].boot_id()
    except (LabError, OSError):
        return ""
