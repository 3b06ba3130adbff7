"""`fairlead init` on real nodes: it asks real Slurm, reaches the nodes over real ssh, and its file provisions them."""

from __future__ import annotations

import os
import time
import tomllib
from pathlib import Path

import pytest

from tests.lab import roots
from tests.playbooks.admin import Admin, node

pytestmark = [pytest.mark.rack, pytest.mark.timeout(300)]


def test_a_site_from_nothing(admin: Admin, tmp_path: Path) -> None:
    """Nothing is installed on the nodes by this, and nothing changes there."""
    out = tmp_path / "site.toml"
    ssh = f"-F {admin.rack.ssh_config} -o ControlMaster=no -o ControlPath=none"
    words = ["--ssh-args", ssh, "--private-key", str(roots.ssh_key()), "--bin-dir", str(admin.rack.bin), "--out", str(out)]
    marker = node(admin, "gpu1").run("date +%s.%N").stdout
    time.sleep(0.1)
    said = admin.run("init", *words, "--slurm-conf", "/etc/slurm/slurm.conf").stdout
    assert "gpu[1-3]: profile hgx-h100, fabric infiniband\n" in said
    found = tomllib.loads(out.read_text())
    assert found["classes"]["hgx-h100"] == {"nodes": "gpu[1-3]", "profile": "hgx-h100", "fabric": "infiniband"}
    assert set(found["ansible"]["hosts"]) == {"gpu1", "gpu2", "gpu3"}, "the lab has no DNS: Slurm says the addresses"
    changed = node(admin, "gpu1").run(f"find /etc /opt /usr /var/lib -xdev -type f -newermt @{marker.strip()} ! -path '*slurm*'")
    assert changed.stdout == "", changed.stdout
    admin.run("config", "check", str(out))
    assert os.path.getsize(out) > 0
