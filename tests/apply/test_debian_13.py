"""Debian 13, with its own systemd, Slurm and Python: provisioned, provisioned again, rebooted, nothing left to change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.lab.wheels import wheelhouse
from tests.playbooks.test_convergence import Admin


@pytest.mark.slow
@pytest.mark.rack
@pytest.mark.timeout(400)
def test_on_debian_13(tmp_path: Path) -> None:
    with Rack(nodes_wanted=1, suite="trixie", name=own_name("trixie")) as rack:
        (host,) = rack.nodes
        admin = Admin(rack, tmp_path)
        admin.write_site(more='[classes.h100.agent]\nkmsg_path = "/etc/fairlead-sim/kmsg"\n')
        wheels = ("--wheelhouse", str(wheelhouse("trixie")))
        first = admin.provision(*wheels)["gpu1"]
        assert first["state"] == "changed" and {i["effective"] for i in first["apply"]["items"]} == {"yes"}
        assert any("install for Python 3.13" in change for change in first["changes"]), first["changes"]
        assert admin.provision(*wheels)["gpu1"]["changed"] == 0
        host.reboot()
        host.run("systemctl is-system-running --wait", check=False)
        assert host.run("systemctl show -p Result --value fairlead-apply").stdout == "success\n"
        said = json.loads(host.run("/usr/local/bin/fairlead apply --dry-run --json").stdout)
        assert said["changed"] == 0 and {i["state"] for i in said["items"]} == {"same"}
        findings = json.loads(host.run("cat /run/fairlead/status.json").stdout)["findings"]
        assert [f for f in findings if f["check"].startswith("setting.")] == []
        rack.wait_idle(60)
