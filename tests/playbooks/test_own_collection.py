"""A site that has only the collection: its inventory declares a node, over real ssh. It has no site.toml and no command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from release import galaxy
from tests.lab import roots
from tests.lab.host import Host
from tests.playbooks.admin import NUMA, PROJECT, Admin, node

pytestmark = [pytest.mark.rack, pytest.mark.slow, pytest.mark.timeout(300)]
PLAYBOOK = """\
- name: Make the GPU nodes what the inventory declares
  hosts: gpu
  gather_facts: false
  roles:
    - fairlead.nodes.declare
    - fairlead.nodes.node
    - role: fairlead.nodes.slurm_hooks
      slurm_hooks_required: false
    - fairlead.nodes.reboot
"""
LIMIT = "/etc/systemd/system/slurmd.service.d"


class Site:
    """A control node with the collection, an inventory and a playbook."""

    def __init__(self, admin: Admin, folder: Path) -> None:
        self.admin = admin
        self.folder = folder
        archive = galaxy.build_collection(PROJECT, folder / "work", folder, 1)
        home, collections = folder / "home", folder / "collections"
        self.env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("ANSIBLE")}
        self.env |= {"LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(home), "ANSIBLE_PIPELINING": "1"}
        self.env |= {"ANSIBLE_COLLECTIONS_PATH": str(collections), "ANSIBLE_INJECT_FACT_VARS": "false"}
        self.run("ansible-galaxy", "collection", "install", "--offline", "-p", str(collections), str(archive))
        (folder / "site.yml").write_text(PLAYBOOK)

    def run(self, program: str, *words: str, code: int = 0) -> str:
        command = [*self.admin.rack.enter, str(Path(sys.executable).parent / program), *words]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def play(self, settings: dict[str, Any], *words: str, code: int = 0) -> tuple[str, int]:
        """What ansible-playbook says, and how many tasks have changed something on the node or in the folder of the site."""
        host = self.admin.rack.nodes[0]
        ssh = f"-F {self.admin.rack.ssh_config} -o ControlMaster=no -o ControlPath=none"
        variables = {
            "ansible_user": "root",
            "ansible_host": host.address,
            "ansible_ssh_private_key_file": roots.ssh_key(),
            "ansible_ssh_common_args": ssh,
            "declare_folder": str(self.folder / "fairlead"),
            "declare_settings": settings,
            "declare_policy": {"mode": "observe"},
        }
        inventory = {"gpu": {"hosts": {host.name: {}}, "vars": json.loads(json.dumps(variables, default=str))}}
        (self.folder / "inventory.yml").write_text(json.dumps(inventory))
        said = self.run("ansible-playbook", "-i", "inventory.yml", "site.yml", *words, code=code)
        changed = re.search(r"^gpu1 .* changed=(\d+)", said, re.MULTILINE)
        assert changed is not None
        return said, int(changed[1])


SETTINGS: dict[str, Any] = {"numa_balancing": {}, "nofile": {"limit": 16384}}


@pytest.fixture(scope="module")
def site(admin: Admin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    admin.write_site()
    admin.provision("--uninstall", "--undo")
    yield Site(admin, tmp_path_factory.mktemp("collection"))
    admin.provision("--uninstall", "--undo")


@pytest.fixture
def gpu1(site: Site) -> Host:
    return node(site.admin, "gpu1")


def traces(host: Host) -> str:
    """What fairlead leaves on a node, and what the settings change."""
    there = host.run(["ls", "-d", "/opt/fairlead", "/etc/fairlead", "/run/fairlead", LIMIT], check=False).stdout
    return there + host.path(NUMA).read_text()


def test_1_check_mode_is_complete_and_changes_nothing_on_a_fresh_node(site: Site, gpu1: Host) -> None:
    before = traces(gpu1)
    said, changed = site.play(SETTINGS, "--check", "--diff")
    assert changed == 2 and "+#!/bin/sh" in said and "+[classes.nodes.settings.nofile]" in said
    assert traces(gpu1) == before and before.endswith("1\n")
    assert [path.name for path in (site.folder / "fairlead").iterdir()] == ["check"]


def test_2_it_sets_what_the_inventory_declares_and_a_second_run_changes_nothing(site: Site, gpu1: Host) -> None:
    said, changed = site.play(SETTINGS)
    assert changed == 2, "the site's folder, and the node"
    assert gpu1.path(NUMA).read_text() == "0\n"
    assert "LimitNOFILE=16384" in gpu1.run(f"cat {LIMIT}/*").stdout
    assert gpu1.run("systemctl is-active fairlead-agent").stdout == "active\n"
    assert "TaskProlog=/etc/slurm/fairlead/task-prolog" in said, "the lines that slurm.conf lacks are said"
    assert site.play(SETTINGS)[1] == 0
    assert site.play(SETTINGS, "--check")[1] == 0


def test_3_drift_is_seen_in_check_mode_and_made_right_by_a_run(site: Site, gpu1: Host) -> None:
    gpu1.path(NUMA).write_text("1\n")
    assert site.play(SETTINGS, "--check")[1] == 1 and gpu1.path(NUMA).read_text() == "1\n"
    assert site.play(SETTINGS)[1] == 1 and gpu1.path(NUMA).read_text() == "0\n"


def test_4_a_wrong_value_reaches_no_node(site: Site, gpu1: Host) -> None:
    document = gpu1.run("cat /etc/fairlead/node.json").stdout
    said, _ = site.play(SETTINGS | {"nofile": {"limit": 1}}, code=2)
    assert "settings.nofile.limit: Expected `int` >= 1024" in said and "fairlead.nodes.node :" not in said
    assert gpu1.run("cat /etc/fairlead/node.json").stdout == document
