"""A site without internet: a bundle, made once, and a node provisioned from it out of a namespace with no way out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.driver.apt_node import CACHE, PROJECT, environment
from tests.driver.conftest import available, from_debian, lock
from tests.lab import roots, wheels
from tests.lab.ledger import own_name
from tests.lab.rack import Rack

pytestmark = [pytest.mark.rack, pytest.mark.timeout(600)]
NAME = "nvidia-legacy-check"  # of the driver's version, and no library in it: the node's simulated one stays


def run(words: list[str], *, enter: tuple[str, ...] = (), code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [*enter, sys.executable, "-m", "fairlead", *words]
    # no index is to be had here: what pip would fetch is in the lab's wheelhouse
    env = {**environment(), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels.wheelhouse("bookworm"))}
    env["PYTHONPATH"] = str(PROJECT / "agent")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_a_node_is_provisioned_from_a_bundle_with_no_way_out(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    rack = Rack(nodes_wanted=1, name=own_name("bundle"))
    host = rack.nodes[0]
    site.write_text(f"""\
schema = 1
generation = 1
[classes.a]
nodes = "gpu1"
[classes.a.settings.driver]
version = "{available(NAME)[0]}"
module = "none"
install = ["{NAME}"]
[ansible]
private_key = "{roots.ssh_key()}"
ssh_args = "-F {rack.ssh_config} -o ControlMaster=no -o ControlPath=none"
[ansible.hosts]
gpu1 = "{host.address}"
""")
    with roots.locked("driver"):
        lock(site, *from_debian())
    listed = run(["bundle", "--site", str(site), "--no-admin", "--dry-run"]).stdout
    assert f"packages/{NAME}_" in listed and "wheelhouse/msgspec" in listed
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        run(["bundle", "--site", str(site), "--no-admin", "--output", str(folder)])
    assert (one / "SHA256SUMS").read_text() == (two / "SHA256SUMS").read_text(), "the same inputs give the same bytes"
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=one, check=True, timeout=60)
    assert {p.name for p in one.iterdir()} >= {"README.md", "wheelhouse", "packages", "playbooks", "fairlead.lock", "SHA256SUMS"}

    damaged = next((two / "packages").glob("*.deb"))
    damaged.write_bytes(damaged.read_bytes() + b"x")
    assert "not what SHA256SUMS says" in run(["provision", "--site", str(site), "--bundle", str(two)], code=65).stderr

    with rack:
        words = ["provision", "--site", str(site), "--bundle", str(one), "--json"]
        way_out = subprocess.run([*rack.enter, "ip", "route", "show", "default"], capture_output=True, text=True, check=True)
        assert not way_out.stdout, "the admin side has no way out either"
        first = driver(run(words, enter=tuple(rack.enter), code=75))
        assert (first["state"], first["pending"]) == ("deferred", "reboot"), first
        assert first["steps"][0]["disruption"] == "drain" and not host.run("dpkg -l " + NAME, check=False).stdout.count("\nii")
        files = {p.name for p in (one / "packages").iterdir()}
        assert files <= set(host.run(["ls", f"/{CACHE}"]).stdout.split())
        again = json.loads(run(words, enter=tuple(rack.enter), code=75).stdout)["nodes"][0]
        assert not again["changes"], "a node that has the files is brought none"

        done = host.run(["/usr/local/bin/fairlead", "apply", "--drained", "--json"], check=False)
        assert done.stdout, done.stderr
        item = next(i for i in json.loads(done.stdout)["items"] if i["setting"] == "driver")
        assert (item["persisted"], item["pending"]) == ("yes", "reboot"), item  # another driver is loaded there
        assert NAME in host.run("apt-mark showhold").stdout
        assert "running" in host.run("systemctl is-system-running", check=False).stdout
    assert os.path.isdir(one)


def driver(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    (node,) = json.loads(done.stdout)["nodes"]
    return dict(next(i for i in node["apply"]["items"] if i["setting"] == "driver"))
