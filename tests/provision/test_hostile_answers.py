"""What a hostile node answers to real Ansible does nothing on the admin host, to no other node, and holds nobody for long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ansible_runner")

from tests.playbooks.hostile import line, need, report, strange
from tests.provision.desk import PROJECT, Desk

pytestmark = [pytest.mark.timeout(300), pytest.mark.heavy]


def attack(ran: Path) -> dict[str, Any]:
    """As it was reproduced on 0.1.0: `add_host` gives nodes that are done later a ProxyCommand of the node's choice."""
    proxy = {"ansible_ssh_common_args": f"-o ProxyCommand='touch {ran}'"}
    told: dict[str, Any] = {"ansible_facts": proxy, "add_group": "all", "ansible_stats": {"data": proxy}}
    hosts = [{"host_name": f"gpu{n}", "groups": [], "host_vars": proxy} for n in range(2, 6)]
    return told | {"_ansible_delegated_vars": proxy, "add_host": hosts[-1], "results": [{"add_host": host} for host in hosts]}


@pytest.mark.parametrize("forks", [1, 2])
def test_no_reply_among_five_nodes_makes_the_admin_host_run_a_command(tmp_path: Path, forks: int) -> None:
    desk, ran = Desk(tmp_path, nodes=5), tmp_path / "ran"
    desk.write_site(f"forks = {forks}")
    for name in ("gpu1", "gpu2"):
        desk.says(name, line({**report(name), **attack(ran)}))
    results, done = desk.results("provision")
    assert not ran.exists(), "a command ran on the admin host"
    assert {n: r["state"] for n, r in results.items()} == {f"gpu{n}": "same" for n in range(1, 6)}, done.stderr
    desk.write_site(f"ssh_args = \"-o ProxyCommand='touch {ran}'\"")
    desk.results("provision", "-l", "gpu5")
    assert ran.exists(), "this ssh would have run it"


@pytest.mark.parametrize("name", ["../secret_admin_key", "{folder}/secret_admin_key", "packages/../../secret_admin_key"])
def test_no_file_of_the_admin_host_is_given_to_a_node_that_asks_for_it(tmp_path: Path, name: str) -> None:
    desk = Desk(tmp_path, nodes=5)
    (tmp_path / "packages").mkdir()
    (tmp_path / "secret_admin_key").write_text("canary-5e1f")
    asked = (tmp_path / "said/need").with_name("need")
    asked.write_bytes(line(need(packages=[name.format(folder=tmp_path)])))
    desk.says("gpu1", f"#!/bin/sh\ncat >> {tmp_path}/got\ncat {asked}\n".encode())
    results, _ = desk.results("provision", "--packages", str(tmp_path / "packages"))
    assert results.pop("gpu1")["state"] == "failed" and {r["state"] for r in results.values()} == {"same"}
    assert b"canary" not in (tmp_path / "got").read_bytes()


PLAYBOOK = """\
- hosts: all
  gather_facts: false
  roles: [{role}]
"""


def play(desk: Desk, role: str, *words: str) -> str:
    """What ansible-playbook says of a playbook of one's own."""
    desk.folder.joinpath("site.yml").write_text(PLAYBOOK.format(role=role))
    roles = f"[defaults]\nroles_path = {PROJECT}/playbooks/roles\nhome = {desk.folder}/home\n"
    desk.folder.joinpath("ansible.cfg").write_text(roles + "[ssh_connection]\npipelining = true\n")
    hosts = "".join(f"{name}\n" for name in desk.names)
    python = f"ansible_python_interpreter={sys.executable}\nansible_user=root\n"
    desk.folder.joinpath("hosts.ini").write_text(f"{hosts}[all:vars]\n{python}")
    program = str(Path(sys.executable).parent / "ansible-playbook")
    env = desk.environment | {"LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1"}
    command = [program, "-i", "hosts.ini", "site.yml", *words]
    done = subprocess.run(command, cwd=desk.folder, env=env, capture_output=True, text=True, timeout=200, check=False)
    return done.stdout + done.stderr


WAITS = {"busy": False, "items": [{"setting": "kernel_cmdline", "pending": "reboot", "persisted": "yes"}]}


def test_facts_that_a_node_says_in_the_middle_of_a_role_change_none_of_its_variables(tmp_path: Path) -> None:
    """gpu1 answers the role's first question truly, and brings facts with it: another node's name, another host for scontrol."""
    desk = Desk(tmp_path, nodes=2)
    facts = {
        "reboot_node_name": "gpu2",
        "reboot_slurm_host": "gpu2",
        "reboot_timeout_seconds": 1,
        "reboot_own": {},
        "reboot_drained": 1,
    }
    said = json.dumps({"changed": False, "rc": 0, "stdout": json.dumps(WAITS), "ansible_facts": facts})
    desk.says("gpu1", f"#!/bin/sh\ncat >> {tmp_path}/asked.gpu1\ncat <<'END'\n{said}\nEND\n".encode())
    desk.says("gpu2", f"#!/bin/sh\ncat >> {tmp_path}/asked.gpu2\nexit 3\n".encode())
    told = play(desk, "reboot", "-l", "gpu1")
    assert "reboot_own" not in told.replace("reboot_own.", ""), told
    assert not (tmp_path / "asked.gpu2").exists(), "a node sent the admin's commands to another one"
    assert "gpu1 waits for a reboot (kernel_cmdline) and is not drained in Slurm" in told, told


@pytest.mark.parametrize("role", ["reboot", "slurm_hooks"])
def test_a_role_begins_with_no_variable_that_a_node_has_said_before(tmp_path: Path, role: str) -> None:
    desk = Desk(tmp_path, nodes=1)
    facts = {f"{role}_x": "gpu2"}
    said = json.dumps({"changed": False, "rc": 0, "stdout": json.dumps({"remarks": [], **WAITS}), "ansible_facts": facts})
    desk.says("gpu1", f"#!/bin/sh\ncat >> {tmp_path}/asked\ncat <<'END'\n{said}\nEND\n".encode())
    told = play(desk, f"{role}, {role}")
    assert "failed=0" in told
    play_twice = PLAYBOOK.format(role=role) * 2
    desk.folder.joinpath("site.yml").write_text(play_twice)
    assert f"a variable of the role {role} is a fact of this node" in again(desk)


def again(desk: Desk) -> str:
    program = str(Path(sys.executable).parent / "ansible-playbook")
    env = desk.environment | {"LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1"}
    command = [program, "-i", "hosts.ini", "site.yml"]
    done = subprocess.run(command, cwd=desk.folder, env=env, capture_output=True, text=True, timeout=200, check=False)
    return done.stdout + done.stderr


def test_a_node_that_says_nothing_is_named_and_has_failed_when_its_time_is_over(tmp_path: Path) -> None:
    """gpu1 never answers; gpu2 is honest. Who has a driver to build may take longer: tests/contracts/test_role_variables.py."""
    desk = Desk(tmp_path, nodes=2)
    rendered = tmp_path / "rendered"
    assert desk.run("render", "--site", str(desk.site), "-o", str(rendered)).returncode == 0
    desk.says("gpu1", b"#!/bin/sh\nexec sleep 250\n")
    bundle = next(path.parent for path in rendered.rglob("request.json"))
    seconds = "{{ 3 if inventory_hostname == 'gpu1' else 200 }}"
    told = play(desk, "node", "-e", f"node_bundle={bundle}", "-e", json.dumps({"node_answer_seconds": seconds}))
    assert "no answer within 3 s" in told and "gpu2" in told and "failed=1" in told, told
    assert "Timed out" not in told


def test_a_visit_has_one_deadline_however_often_the_node_is_asked(tmp_path: Path) -> None:
    """gpu1 takes most of the time for saying that it lacks something, and as much again for its report."""
    desk = Desk(tmp_path, nodes=1)
    rendered, asked = tmp_path / "rendered", tmp_path / "asked"
    assert desk.run("render", "--site", str(desk.site), "-o", str(rendered)).returncode == 0
    for name, said in (("need", need()), ("report", report("gpu1"))):
        (tmp_path / name).write_bytes(line(said))
    told = f"name=need; [ ! -e {asked} ] || name=report; touch {asked}; sleep 4; exec cat {tmp_path}/$name"
    desk.says("gpu1", f"#!/bin/sh\ncat > /dev/null\n{told}\n".encode())
    bundle = next(path.parent for path in rendered.rglob("request.json"))
    told = play(desk, "node", "-e", f"node_bundle={bundle}", "-e", "node_answer_seconds=6")
    assert asked.exists() and "no answer within 6 s" in told and "failed=1" in told, told


def test_who_does_not_answer_is_told_while_the_run_waits(tmp_path: Path) -> None:
    desk = Desk(tmp_path, nodes=3)
    desk.write_site("forks = 3")
    desk.says(
        "gpu2",
        b"#!/bin/sh\ncat > /dev/null\n"
        + f"for i in $(seq 300); do [ ! -e {tmp_path}/enough ] || exit 3; sleep 0.2; done\nexit 3\n".encode(),
    )
    env = desk.environment
    script = (
        "import sys; from fairlead.provision import provision_progress; provision_progress.SILENT_SECONDS = 1.0\n"
        "from fairlead.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "provision", "--site", str(desk.site)]
    with subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        told = ""
        for row in run.stderr:
            told += row
            if "gpu2: no answer for" in row:
                (tmp_path / "enough").touch()
        run.communicate(timeout=100)
    assert "] gpu2: no answer for" in told and "gpu1: no answer" not in told, told
    assert strange(told) == [] and os.WEXITSTATUS(run.returncode << 8) == 69
