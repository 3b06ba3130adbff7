"""fairlead's roles in a playbook of one's own: plain ansible-playbook, an Ansible that does not have fairlead, real reboots."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.playbooks.admin import NUMA, Admin, node, wait

pytestmark = [pytest.mark.rack, pytest.mark.timeout(300)]
PLAYBOOK = """\
- name: Make the GPU nodes what site.toml declares
  hosts: class_h100
  gather_facts: false
  roles:
    - role: node
    - role: slurm_hooks
      slurm_hooks_required: false
    - role: reboot
"""
WORD = "fairlead.lab=1"
CMDLINE = f'[nodes.gpu1.settings.kernel_cmdline]\nwords = ["{WORD}"]\n'


Recap = dict[str, dict[str, int]]


class Own:
    """A folder with a playbook of one's own beside what `fairlead render` wrote."""

    def __init__(self, admin: Admin, folder: Path) -> None:
        self.admin = admin
        self.folder = folder
        (folder / "site.yml").write_text(PLAYBOOK)
        (folder / "bare.ini").write_text("[class_h100]\ngpu3\n")
        (folder / "ansible.cfg").write_text(
            f"[defaults]\nroles_path = {folder}/rendered/roles\nhome = {folder}/home\nnocows = true\n"
            "[ssh_connection]\npipelining = true\n"
        )

    def render(self, more: str = "") -> str:
        self.admin.write_site(more=more)
        return self.admin.run("render", "--site", str(self.admin.site), "-o", str(self.folder / "rendered")).stdout

    def play(self, *words: str, code: int = 0, inventory: str = "rendered/inventory.yml") -> tuple[str, Recap]:
        """What ansible-playbook says, and its recap by node."""
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("ANSIBLE")}
        env |= {"LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1"}
        program = str(Path(sys.executable).parent / "ansible-playbook")
        command = [*self.admin.rack.enter, program, "-i", inventory, "site.yml", *words]
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        recap = {}
        for name, numbers in re.findall(r"^(gpu\d+)\s+: (.*)$", done.stdout, re.MULTILINE):
            recap[name] = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", numbers)}
        return done.stdout + done.stderr, recap


@pytest.fixture(scope="module")
def own(admin: Admin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    admin.write_site()
    admin.provision("--uninstall", "--undo")
    yield Own(admin, tmp_path_factory.mktemp("own"))
    admin.write_site()
    for host in admin.rack.nodes:
        host.run("rm -f /etc/default/grub /etc/default/grub.d/*fairlead*")
    admin.rack.scontrol("update", "nodename=gpu1", "state=resume", check=False)


def changed(recap: Recap) -> dict[str, int]:
    return {name: counts["changed"] for name, counts in recap.items()}


def test_1_check_mode_is_complete_on_fresh_nodes(own: Own) -> None:
    assert own.render().endswith("rendered: written: gpu[1-3]\n")
    assert own.render().endswith("rendered: unchanged: gpu[1-3]\n")
    said, recap = own.play("--check", "--diff")
    assert changed(recap) == {"gpu1": 1, "gpu2": 1, "gpu3": 1} and "+#!/bin/sh" in said
    assert {counts["failed"] + counts["unreachable"] for counts in recap.values()} == {0}
    for host in own.admin.rack.nodes:
        assert host.run(["ls", "-d", "/opt/fairlead", "/etc/fairlead"], check=False).stdout == ""
        assert host.path(NUMA).read_text() == "1\n"


def test_1_what_was_changed_in_the_rendered_folder_is_refused_by_the_nodes(own: Own) -> None:
    """The folder may lie there for months. Nothing of it is installed that it did not list when it was written."""
    bundle = own.folder / "rendered/bundle"
    true = {path: path.read_bytes() for path in bundle.glob("wheels/msgspec-*")}  # perhaps of other Pythons too
    for path, content in true.items():
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    said, recap = own.play(code=2)
    assert said.count("not the file that the admin host listed (another sha256)") >= 3
    assert changed(recap) == dict.fromkeys(recap, 0)
    for path, content in true.items():
        path.write_bytes(content)
    files = (bundle / "files").read_bytes()
    (bundle / "files").write_bytes(files.replace(b"#!/bin/sh", b"#!/bin/no", 1))
    said, recap = own.play(code=2)
    assert said.count(": damaged on the way here") >= 3 and changed(recap) == dict.fromkeys(recap, 0)
    (bundle / "files").write_bytes(files)
    for host in own.admin.rack.nodes:  # asked what it lacks, a node takes its lock there
        assert host.run("find /opt/fairlead /etc/fairlead ! -name .lock", check=False).stdout == "/opt/fairlead\n"


def test_2_it_converges_and_a_second_run_changes_nothing(own: Own) -> None:
    said, recap = own.play()
    assert changed(recap) == {"gpu1": 1, "gpu2": 1, "gpu3": 1}
    assert '"TaskProlog=/etc/slurm/fairlead/task-prolog"' in said, "the lines that slurm.conf lacks are said"
    assert {h.path(NUMA).read_text() for h in own.admin.rack.nodes} == {"0\n"}
    _, recap = own.play()
    assert changed(recap) == {"gpu1": 0, "gpu2": 0, "gpu3": 0}
    assert {n["state"] for n in own.admin.provision().values()} == {"same"}, "fairlead provision sees it the same way"


def test_3_a_setting_that_cannot_be_made_so_fails_the_task_and_a_missing_argument_is_named(own: Own) -> None:
    own.render('[nodes.gpu2.settings.sysctl.values]\n"net.ipv4.tcp_congestion_control" = "brr"\n')
    said, recap = own.play(code=2)
    assert {name: counts["failed"] for name, counts in recap.items()} == {"gpu1": 0, "gpu2": 1, "gpu3": 0}
    assert "no congestion control 'brr'" in said
    said, _ = own.play(code=2, inventory="bare.ini")
    assert "missing required arguments: node_bundle" in said
    said, _ = own.play("-l", "gpu3", "-e", '{"node_bundle": "{{ no_such_thing }}"}', code=2)
    assert "'no_such_thing' is undefined" in said and "<CLI option '-e'>" in said, "what and where"


def test_4_a_reboot_only_where_it_is_pending_drained_and_no_job_runs(own: Own) -> None:
    rack, host = own.admin.rack, node(own.admin, "gpu1")
    host.run("echo GRUB_TIMEOUT=5 > /etc/default/grub")
    own.render(CMDLINE)
    boot = host.boot_id()
    said, recap = own.play("-l", "gpu1")
    assert "gpu1 waits for a reboot (kernel_cmdline) and is not drained in Slurm: it is left alone" in said
    rack.wait_idle()
    job = rack.run(["sbatch", "--parsable", "-w", "gpu1", "--wrap", "sleep 300", "-o", "/dev/null"]).stdout.strip()
    wait(lambda: rack.run(["squeue", "-h", "-j", job, "-o", "%T"]).stdout.strip() == "RUNNING")
    rack.scontrol("update", "nodename=gpu1", "state=drain", "reason=kernel words")
    said, recap = own.play("-l", "gpu1", code=2)
    assert f"gpu1 is drained and still has job {job}" in said and recap["gpu1"]["failed"] == 1
    assert host.boot_id() == boot, "a node that runs a job is never rebooted"
    rack.run(["scancel", job])
    wait(lambda: not rack.run(["squeue", "-h", "-w", "gpu1"]).stdout.strip())
    wait(lambda: "slurmstepd: [" not in host.run("cat /proc/[0-9]*/cmdline", check=False).stdout)
    own.play("-l", "gpu1", "--check")
    assert host.boot_id() == boot, "check mode reboots nothing"
    own.play("-l", "gpu1")
    assert host.boot_id() != boot and WORD in host.path("/proc/cmdline").read_text()
    after = host.boot_id()
    _, recap = own.play("-l", "gpu1")
    assert host.boot_id() == after and changed(recap) == {"gpu1": 0}, "what has taken effect waits for nothing"
