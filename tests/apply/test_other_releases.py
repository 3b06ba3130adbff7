"""Other releases, with their own systemd, Slurm and Python: provisioned, provisioned again, rebooted, nothing left to change.

Ubuntu's wants an archive of it (FAIRLEAD_LAB_UBUNTU_MIRROR, tests/lab/roots.py); by its files alone: test_ubuntu_files.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.lab import roots
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.lab.wheels import wheelhouse
from tests.playbooks.admin import Admin


@pytest.mark.slow
@pytest.mark.rack
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("suite", "python"), [("trixie", "3.13"), ("noble", "3.12")])
def test_on_another_release(suite: str, python: str, tmp_path: Path) -> None:
    if suite in roots.UBUNTU and "FAIRLEAD_LAB_UBUNTU_MIRROR" not in os.environ:
        pytest.skip("no Ubuntu archive: FAIRLEAD_LAB_UBUNTU_MIRROR names none")
    with Rack(nodes_wanted=1, suite=suite, name=own_name(suite)) as rack:
        (host,) = rack.nodes
        admin = Admin(rack, tmp_path)
        admin.write_site(more='[classes.h100.agent]\nkmsg_path = "/etc/fairlead-sim/kmsg"\n')
        wheels = ("--wheelhouse", str(wheelhouse(suite)))
        first = admin.provision(*wheels)["gpu1"]
        assert first["state"] == "changed" and {i["effective"] for i in first["apply"]["items"]} == {"yes"}
        assert any(f"install for Python {python}" in change for change in first["changes"]), first["changes"]
        assert admin.provision(*wheels)["gpu1"]["changed"] == 0
        host.reboot()
        host.run("systemctl is-system-running --wait", check=False)
        assert host.run("systemctl show -p Result --value fairlead-apply").stdout == "success\n"
        said = json.loads(host.run("/usr/local/bin/fairlead apply --dry-run --json").stdout)
        assert said["changed"] == 0 and {i["state"] for i in said["items"]} == {"same"}
        findings = json.loads(host.run("cat /run/fairlead/status.json").stdout)["findings"]
        assert [f for f in findings if f["check"].startswith("setting.")] == []
        rack.wait_idle(60)
