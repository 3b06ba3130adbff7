"""The playbook over real ssh on a rack of simulated nodes: check, converge, converge again, tamper, reboot, faults, uninstall.

The tests share one rack and run in their order, as an operator's day does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import fairlead
from tests.playbooks.admin import NUMA, PROJECT, Admin, daemons, node, states, wait

pytestmark = [pytest.mark.rack, pytest.mark.timeout(300)]
GOVERNOR = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
OURS = (
    "/opt/fairlead",
    "/etc/fairlead",
    "/usr/local/bin/fairlead",
    "/etc/slurm/prolog.d/50-fairlead",
    "/etc/slurm/epilog.d/50-fairlead",
    "/etc/slurm/fairlead",
    "/etc/systemd/system/fairlead-apply.service",
    "/etc/systemd/system/fairlead-agent.service",
    "/etc/systemd/system/multi-user.target.wants/fairlead-apply.service",
)


def test_1_check_on_fresh_nodes_shows_all_of_it_and_leaves_no_trace(admin: Admin) -> None:
    done = admin.run("provision", "--site", str(admin.site), "--check", "--diff")
    assert "gpu[1-3] (3 nodes): would change" in done.stdout
    assert "numa_balancing: " in done.stdout and "+LimitMEMLOCK=" in done.stdout and "+#!/bin/sh" in done.stdout
    for host in admin.rack.nodes:
        assert host.run(["ls", "-d", *OURS, "/var/lib/fairlead", "/run/fairlead"], check=False).stdout == ""
        assert host.path(NUMA).read_text() == "1\n"


def test_2_the_first_run_changes_every_node_and_it_is_effective(admin: Admin) -> None:
    results = admin.provision()
    assert states(results) == {"gpu1": "changed", "gpu2": "changed", "gpu3": "changed"}
    for name, result in results.items():
        host = node(admin, name)
        assert host.path(NUMA).read_text() == "0\n" and host.path(GOVERNOR).read_text() == "performance\n"
        assert {i["effective"] for i in result["apply"]["items"]} == {"yes"}
        assert host.run("/usr/local/bin/fairlead version").stdout
        assert host.run("systemctl is-enabled fairlead-apply fairlead-agent").stdout == "enabled\nenabled\n"
        assert host.run("systemctl is-active fairlead-agent").stdout == "active\n"
        assert host.run("stat -c %U:%a /etc/slurm/prolog.d/50-fairlead").stdout == "root:755\n"
        document = json.loads(host.run("cat /etc/fairlead/node.json").stdout)
        assert (document["node"], document["generation"]) == (name, 3)


def logins(admin: Admin) -> list[int]:
    """How often ssh has logged in on each node in this boot; the site's ssh_args share no connection."""
    count = "journalctl --sync; journalctl -b -t sshd | grep -c 'Accepted publickey'"
    return [int(h.run(count, check=False).stdout or 0) for h in admin.rack.nodes]


def test_3_the_second_run_changes_nothing_in_one_round_trip(admin: Admin) -> None:
    before = {h.name: daemons(h) for h in admin.rack.nodes}
    trips = logins(admin)
    results = admin.provision("--exit-code")
    assert [after - n for after, n in zip(logins(admin), trips, strict=True)] == [1, 1, 1]
    assert states(results) == {"gpu1": "same", "gpu2": "same", "gpu3": "same"}
    assert [n["changed"] for n in results.values()] == [0, 0, 0]
    assert {h.name: daemons(h) for h in admin.rack.nodes} == before, "neither slurmd nor the agent is restarted"


def test_3_the_fleet_is_seen_over_ssh_as_the_site_has_it(admin: Admin, tmp_path: Path) -> None:
    def poll(site: Path, *words: str) -> dict[str, Any]:
        slurm = ["--bin-dir", str(admin.rack.bin), "--slurm-conf", "/etc/slurm/slurm.conf"]
        done = admin.run("fleet", "--site", str(site), *slurm, "--json", "--timeout", "60", *words)
        return {n["node"]: n for n in json.loads(done.stdout)["nodes"]}

    deadline = time.monotonic() + 120
    found = poll(admin.site)
    while any(row["word"] in ("none", "unreachable") or not row["agent"]["driver"] for row in found.values()):
        assert time.monotonic() < deadline, found  # the first verdict takes a moment, and the driver's first answer
        time.sleep(0.2)
        found = poll(admin.site)
    assert sorted(found) == ["gpu1", "gpu2", "gpu3"]
    for name, row in found.items():
        account = row["agent"]
        assert (account["reached"], account["node"], account["profile"], account["generation"]) == (True, name, "hgx-h100", 3)
        assert account["agent"] == fairlead.__version__ and account["driver"] and account["drift"] == []

    text = admin.site.read_text()
    elsewhere = tmp_path / "site.toml"
    elsewhere.write_text(text.replace(f'gpu3 = "{node(admin, "gpu3").address}"', f'gpu3 = "{node(admin, "gpu2").address}"'))
    found = poll(elsewhere, "gpu[2-3]")
    assert found["gpu2"]["agent"]["reached"] and found["gpu3"]["word"] == "unreachable"
    assert found["gpu3"]["why"] == f"ssh {node(admin, 'gpu2').address} leads to gpu2"
    elsewhere.write_text(text.replace('ssh_args = "', 'ssh_args = "-p 1 '))
    assert {(row["word"], "Connection refused" in row["why"]) for row in poll(elsewhere).values()} == {("unreachable", True)}


def test_3_a_node_whose_network_is_unlike_is_named(admin: Admin) -> None:
    """The pass over all nodes of a class, by what each says of its ports: here one port of gpu2 has another MTU."""
    mtu = node(admin, "gpu2").path("/sys/class/net/ibp154s0/mtu")
    text = mtu.read_text()
    mtu.write_text("2044\n")
    try:
        done = admin.run("provision", "--site", str(admin.site), "--check")
    finally:
        mtu.write_text(text)
    assert "\nclass h100: gpu2: MTU: 2044 on rail 4; the other 2 have 4092\n" in done.stdout, done.stdout
    host = node(admin, "gpu1")
    conf = host.run("cat /etc/nccl.conf").stdout
    socket = re.search(r"^NCCL_SOCKET_IFNAME==(\S+)$", conf, re.MULTILINE)
    assert socket, conf
    env = host.run("cat /run/fairlead/env").stdout
    assert f"GLOO_SOCKET_IFNAME\tnodes\t{socket[1]}\tfull\t" in env and "NCCL_NET\tnodes!NCCL_NET_PLUGIN\tIB\tfull\t" in env


def test_3_a_profile_for_another_gpu_is_refused_before_anything_is_changed(admin: Admin, tmp_path: Path) -> None:
    """Of the release, the hooks and the document nothing changes either, and a plan says the same line."""
    site = tmp_path / "site.toml"
    site.write_text(admin.site.read_text().replace('profile = "hgx-h100"', 'profile = "l4"'))
    files = "find /etc /opt/fairlead /run/fairlead/verdict /usr/local -xdev -type f -newer /run/before"
    for host in admin.rack.nodes:
        host.run("touch -d @$(date +%s.%N) /run/before; echo 1 > /proc/sys/kernel/numa_balancing")
    words = "gpu[1-3] (3 nodes): failed"
    line = "NODE (class h100): every GPU is 10de:2330 (8 of them), and the profile l4 is for 10de:27b8; nothing was changed"
    for command in (["provision"], ["provision", "--check"], ["plan"]):
        said = " ".join(admin.run(*command, "--site", str(site), code=69).stdout.replace(" | ", " ").split())  # a plan is wrapped
        assert words in said and line in said, said
        assert (
            "next: the profile hgx-h100 fits these GPUs: give it to the node's class, or put the node into another class" in said
        )
    for host in admin.rack.nodes:
        assert [p for p in host.run(files).stdout.split() if "verdict" not in p] == []
        assert host.path(NUMA).read_text() == "1\n"
        host.run("echo 0 > /proc/sys/kernel/numa_balancing; rm /run/before")


PLANNED = (("gpu1", "would_change"), ("gpu2", "would_change"), ("gpu3", "same"))


def test_4_tampering_is_exactly_what_is_found_and_put_right(admin: Admin, tmp_path: Path) -> None:
    node(admin, "gpu1").run(f"echo 1 > {NUMA}")
    node(admin, "gpu2").run("echo >> /etc/slurm/epilog.d/50-fairlead; chmod 600 /etc/fairlead/hooks")
    checked = admin.provision("--check", "--exit-code", code=1)
    assert states(checked) == {"gpu1": "changed", "gpu2": "changed", "gpu3": "same"}
    slurm = ["-i", "slurm", "--bin-dir", str(admin.rack.bin), "--slurm-conf", "/etc/slurm/slurm.conf"]
    planned = json.loads(admin.run("plan", "--site", str(admin.site), "--json", *slurm).stdout)
    assert [(g["nodes"], g["state"]) for g in planned["groups"]] == [(n, s) for n, s in PLANNED]
    (step,) = planned["nodes"][0]["steps"]
    assert (step["setting"], step["why"]) == ("numa_balancing", "kernel.numa_balancing is 1, wanted 0")
    tagged = admin.provision("--tags", "pcie_acs,nccl", "--report", str(tmp_path / "r.txt"), "--report", str(tmp_path / "r.json"))
    assert tagged["gpu1"]["changed"] == 0 and node(admin, "gpu1").path(NUMA).read_text() == "1\n"
    assert tagged["gpu2"]["changes"] == ["/etc/slurm/epilog.d/50-fairlead: content", "/etc/fairlead/hooks: mode or owner"]
    page, report = (tmp_path / "r.txt").read_text(), json.loads((tmp_path / "r.json").read_text())
    assert "settings: nccl, pcie_acs\n" in page and page.endswith(" s\n") and "gpu2 (1 node): changed\n" in page
    assert (report["counts"], report["exit_code"], report["tags"]) == ({"same": 2, "changed": 1}, 0, ["nccl", "pcie_acs"])
    node(admin, "gpu2").run("echo >> /etc/slurm/epilog.d/50-fairlead; chmod 600 /etc/fairlead/hooks")
    results = admin.provision()
    assert results["gpu1"]["changes"] == ["numa_balancing: kernel.numa_balancing is 1, wanted 0"]
    assert results["gpu2"]["changes"] == ["/etc/slurm/epilog.d/50-fairlead: content", "/etc/fairlead/hooks: mode or owner"]
    assert results["gpu3"]["changed"] == 0
    assert node(admin, "gpu2").run("stat -c %a /etc/fairlead/hooks").stdout == "644\n"
    assert set(states(admin.provision()).values()) == {"same"}


def test_5_a_declaration_reaches_the_nodes_it_names(admin: Admin) -> None:
    admin.write_site(more="[nodes.gpu3.hooks]\non_stale = 'refuse'\n")
    results = admin.provision()
    assert results["gpu3"]["changes"][:2] == ["/etc/fairlead/node.json: content", "/etc/fairlead/hooks: content"]
    assert results["gpu1"]["changed"] == 0
    assert node(admin, "gpu3").run("cat /etc/fairlead/hooks").stdout.split("\t")[1] == "refuse"
    admin.write_site()
    admin.provision()


def test_6_the_boot_unit_brings_back_what_a_reboot_loses_before_slurmd(admin: Admin) -> None:
    host = node(admin, "gpu1")
    host.reboot()
    host.run("systemctl is-system-running --wait", check=False)
    shown = host.run("systemctl show -p Result,ActiveState,ExecMainExitTimestampMonotonic fairlead-apply").stdout
    assert "Result=success" in shown and "ActiveState=active" in shown, host.run("journalctl -u fairlead-apply").stdout
    assert host.path(GOVERNOR).read_text() == "performance\n"
    ended = int(shown.split("ExecMainExitTimestampMonotonic=")[1].split()[0])
    began = int(host.run("systemctl show -p ExecMainStartTimestampMonotonic --value slurmd").stdout)
    assert 0 < ended <= began
    results = admin.provision("-l", "gpu1")
    assert [c for c in results["gpu1"]["changes"] if c.startswith(("cpu_governor", "pcie_acs", "persistence"))] == []


def test_6_a_node_with_a_job_gets_only_what_the_job_cannot_notice(admin: Admin) -> None:
    host = node(admin, "gpu2")
    device = "/sys/bus/pci/devices/0000:15:01.0/config"
    host.run("/usr/local/bin/fairlead hold --reason test")  # else the agent puts it right by itself when the job has ended
    offset = host.run("setpci -s 15:01.0 ECAP_ACS+6.w=001d && setpci -s 15:01.0 ECAP_ACS+6.w").stdout.strip()
    assert offset == "001d" and host.path(device)
    host.run(f"echo 1 > {NUMA}")
    admin.rack.wait_idle()
    admin.rack.run(["sbatch", "-w", "gpu2", "--wrap", "sleep 120", "-o", "/dev/null"])
    wait(lambda: "slurmstepd: [" in host.run("cat /proc/[0-9]*/cmdline", check=False).stdout)
    result = admin.provision("-l", "gpu2", code=75)["gpu2"]
    assert result["changes"] == ["numa_balancing: kernel.numa_balancing is 1, wanted 0"]
    assert result["waiting"] == ["pcie_acs: ACS of root port 0000:15:01.0 has ReqRedir+ CmpltRedir+, wanted clear"]
    admin.rack.run(["scancel", "-w", "gpu2"], check=False)
    wait(lambda: "slurmstepd: [" not in host.run("cat /proc/[0-9]*/cmdline", check=False).stdout)
    assert admin.provision("-l", "gpu2")["gpu2"]["changes"] == ["pcie_acs: " + result["waiting"][0].removeprefix("pcie_acs: ")]
    assert host.run("setpci -s 15:01.0 ECAP_ACS+6.w").stdout.strip() == "0011"
    host.run("/usr/local/bin/fairlead hold --release")


def test_7_ctrl_c_ends_everything_and_says_so(admin: Admin) -> None:
    node(admin, "gpu2").run("rm -rf /opt/fairlead/current /opt/fairlead/0*")
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}
    command = admin.command("provision", "--site", str(admin.site), "-l", "gpu2")
    run = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait(lambda: any(Path("/dev/shm").glob(f"fairlead-provision.{run.pid}.*/bundle/wheels.json")))
    time.sleep(0.3)
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=120)
    assert run.returncode in (130, 0), told
    assert run.returncode == 0 or told.splitlines()[-2] == "fairlead provision: interrupted"
    assert run.returncode == 0 or "next: run it again: " in told.splitlines()[-1]
    assert not list(Path("/dev/shm").glob(f"fairlead-provision.{run.pid}.*"))
    wait(lambda: not any(f"fairlead-provision.{run.pid}." in _environ(p) for p in Path("/proc").glob("[0-9]*/environ")))
    assert admin.provision("-l", "gpu2")["gpu2"]["state"] in ("changed", "same")


def _environ(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_8_errors_name_node_and_next_step_and_others_are_done(admin: Admin, tmp_path: Path) -> None:
    done = admin.run("provision", "--site", str(admin.site), "-l", "gpu[1,9]", code=64)
    assert "gpu9: not declared in" in done.stderr
    admin.write_site(key=str(tmp_path / "none"))
    assert "none: cannot be read" in admin.run("provision", "--site", str(admin.site), code=66).stderr
    admin.write_site()
    node(admin, "gpu3").run("mkdir /root/away; mv /usr/bin/python3* /root/away; rm -rf /opt/fairlead/current")
    node(admin, "gpu2").run(
        "chattr -i / 2>/dev/null; mv /etc/slurm/fairlead /etc/slurm/fairlead.away; echo x > /etc/slurm/fairlead"
    )
    results = admin.provision(code=69)
    assert states(results) == {"gpu1": "same", "gpu2": "failed", "gpu3": "failed"}
    assert "/usr/bin/python3 is not there; Debian: apt-get install python3" in results["gpu3"]["message"]
    assert results["gpu2"]["message"].startswith("/etc/slurm/fairlead")
    node(admin, "gpu3").run("mv /root/away/* /usr/bin; rmdir /root/away")
    node(admin, "gpu2").run("rm /etc/slurm/fairlead; mv /etc/slurm/fairlead.away /etc/slurm/fairlead")
    node(admin, "gpu3").run("systemctl stop ssh.socket ssh.service", check=False)
    results = admin.provision(code=68)
    assert states(results) == {"gpu1": "same", "gpu2": "same", "gpu3": "unreachable"}
    assert results["gpu3"]["hint"]
    node(admin, "gpu3").run("systemctl start ssh")
    assert admin.provision()["gpu3"]["state"] == "changed"


def test_9_uninstall_with_undo_leaves_the_node_as_it_was(admin: Admin) -> None:
    admin.run("provision", "--site", str(admin.site), "--undo", code=64)
    host = node(admin, "gpu3")
    host.run("echo 'TaskProlog=/etc/slurm/fairlead/task-prolog' > /run/slurm.conf && mkdir -p /run/slurm/conf")
    host.run("mv /run/slurm.conf /run/slurm/conf/slurm.conf")
    results = admin.provision("--uninstall", "--undo", code=69)
    assert states(results) == {"gpu1": "changed", "gpu2": "changed", "gpu3": "failed"}
    assert "slurm.conf still says TaskProlog=" in results["gpu3"]["message"]
    host.run("rm -r /run/slurm/conf")
    admin.provision("--uninstall", "--undo")
    for each in admin.rack.nodes:
        assert each.run(["ls", "-d", *OURS, "/var/lib/fairlead", "/run/fairlead"], check=False).stdout == ""
        assert each.run("ls -d /etc/nccl.conf /etc/sysctl.d/90-fairlead*", check=False).stdout == ""
        assert each.path(NUMA).read_text() == "1\n"
        assert each.run("setpci -s 15:01.0 ECAP_ACS+6.w").stdout == "001d\n", "as after power-on"
        assert each.run("systemctl is-active slurmd").stdout == "active\n"
    assert set(states(admin.provision("--uninstall", "--undo")).values()) == {"same"}
