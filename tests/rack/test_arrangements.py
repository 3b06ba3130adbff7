"""Nodes without slurm.conf (configless), that slurmctld switches off and on, and that come back as other machines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.demo_steps import EXTRA, HOOKS
from tests.lab.faults import Faults
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.rack.provisioned import ProvisionedRack, until

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.rack, pytest.mark.slow, pytest.mark.timeout(420)]
CONF = f"""{EXTRA}\
SlurmctldParameters=enable_configless
SlurmdSpoolDir=/var/spool/slurmd
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=36000
SuspendTimeout=2
"""
COPY = "/run/slurm/conf/slurm.conf"
#: Answers _slurmctld._tcp with ctl, and any other question with "no such name".
DNS = """\
import socket, struct
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("", 53))
while True:
    asked, peer = server.recvfrom(4096)
    at = 12
    while asked[at]:
        at += asked[at] + 1
    name, kind = asked[12:at].lower(), struct.unpack("!H", asked[at + 1:at + 3])[0]
    found = name.startswith(b"\\x0a_slurmctld\\x04_tcp") and kind == 33
    place = struct.pack("!HHH", 0, 0, 6817) + b"\\x03ctl\\x00"
    answer = b"\\xc0\\x0c" + struct.pack("!HHIH", 33, 1, 60, len(place)) + place if found else b""
    head = asked[:2] + struct.pack("!HHHHH", 0x8580 if found else 0x8583, 1, found, 0, 0)
    server.sendto(head + asked[12:at + 5] + answer, peer)
"""
DNS_UNIT = "[Service]\nExecStart=/usr/bin/python3 /srv/dns.py\n"
XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def site(request: pytest.FixtureRequest) -> Iterator[ProvisionedRack]:
    with Rack(2, suite=request.param, name=own_name("test-arrangements"), configless=True, extra_conf=CONF) as rack:
        made = ProvisionedRack(rack)
        made.write_site(
            "".join(f"[nodes.gpu2.checks.{check}]\nboot_grace_seconds = 0\n" for check in ("gpu_count", "gpu_readings"))
        )
        made.provision("gpu[1-2]")
        rack.configure(hooks=HOOKS, extra_conf=CONF)
        yield made


def states(site: ProvisionedRack, name: str) -> frozenset[str]:
    return frozenset(site.rack.node_state(name).states)


def fleet(site: ProvisionedRack, *words: str) -> str:
    return site.fairlead(*words, "--site", str(site.site), "--bin-dir", str(site.rack.bin))


def test_1_everything_on_the_node_finds_slurmds_copy(site: ProvisionedRack) -> None:
    rack, host = site.rack, site.node(1)
    assert host.run("ls /etc/slurm/slurm.conf", check=False).returncode != 0
    assert "conf-cache" in host.run(["readlink", "-f", COPY]).stdout
    until("the hooks of the pushed file", lambda: "prolog.d" in host.run(["grep", "-i", "^Prolog=", COPY], check=False).stdout)
    job = rack.submit("#!/bin/sh\nsrun true\n", "-wgpu1", "--gres=gpu:1")
    assert rack.wait_job(job) == "COMPLETED"
    until("the job's usage record", lambda: str(job) in host.run("ls /var/lib/fairlead/usage /run/fairlead/jobs").stdout)
    said = json.loads(host.run(["/usr/local/bin/fairlead", "doctor", "--json"], check=False).stdout)
    assert said["slurm_conf"] == COPY
    assert not [r for r in said["remarks"] if r["level"] == "wrong"], said
    assert [r for r in said["remarks"] if "is slurmd's copy" in r["what"]], said
    site.node(1).inject_kmsg(XID)
    until("gpu1 drained", lambda: rack.node_state("gpu1").reason.startswith("fairlead:xid:"))
    until("the drain in the status", lambda: site.status(1).get("drain"))
    assert rack.node_state("gpu1").reason in host.run(["/usr/local/bin/fairlead", "why"], check=False).stdout


def test_2_a_fault_at_the_boot_drains_before_slurmd(site: ProvisionedRack) -> None:
    """The copy of the boot before says where slurmctld is: /run is empty at a boot. The checks have no boot grace on gpu2."""
    rack, host = site.rack, site.node(2)
    (host.sim / "nvml.power-on").write_text("")
    Faults(host.sim / "nvml.power-on").lost(0)
    host.reboot()
    until("gpu2 drained", lambda: rack.node_state("gpu2").reason.startswith("fairlead:"))
    until("the drain in the audit trail, which the agent writes after slurmctld has it", lambda: "drained" in site.trail(2))
    trail = [json.loads(line) for line in host.path("/var/lib/fairlead/audit.jsonl").read_text().splitlines()]
    drained = [entry for entry in trail if entry["what"] == "drained"]
    began = host.run('date -d "$(systemctl show -P ExecMainStartTimestamp slurmd)" +%s').stdout
    print(f"\n{rack.suite}: drained {drained[-1]['unix'] - int(began):.1f} s after slurmd's start")
    assert drained[-1]["unix"] <= int(began) + 1  # slurmd's start is known in whole seconds
    (host.sim / "nvml.power-on").write_text("")


def test_3_a_node_that_is_off_is_off_and_not_sick(site: ProvisionedRack) -> None:
    rack = site.rack
    site.node(2).power("off")
    rack.scontrol("update", "nodename=gpu2", "state=power_down")
    until("gpu2 powered down", lambda: "POWERED_DOWN" in states(site, "gpu2"))
    began = time.monotonic()
    rows = {row["node"]: row for row in json.loads(fleet(site, "fleet", "--json"))["nodes"]}
    assert rows["gpu2"]["word"] == "off" and rows["gpu1"]["word"] not in ("off", "ok", "unreachable"), rows
    assert time.monotonic() - began < 20
    assert "switched off by slurmctld" in fleet(site, "version", "--fleet")
    listed = fleet(site, "fleet", "--prometheus-targets", "-", "--skip-powered-down")
    assert site.node(1).address in listed and site.node(2).address not in listed


def another(tree: Path) -> None:
    """Another instance of the same type: another board, other GPUs."""
    for name in ("product_uuid", "product_serial", "board_serial"):
        path = tree / "sys/class/dmi/id" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(f"other-{name}\n")
    nvml = json.loads((tree / "nvml.json").read_text())
    for number, gpu in enumerate(nvml["gpus"]):
        gpu["serial"] = f"99000000000{number}"
        gpu["uuid"] = "GPU-ffffffff-0000-0000-0000-00000000000" + str(number)
    (tree / "nvml.json").unlink()
    (tree / "nvml.json").write_text(json.dumps(nvml))


def test_4_another_machine_with_the_name_inherits_nothing_unsaid(site: ProvisionedRack) -> None:
    """gpu1 was drained by fairlead, and its state folder is kept. What comes back is another machine at another address."""
    rack, host = site.rack, site.node(1)
    assert rack.node_state("gpu1").reason.startswith("fairlead:xid:")
    host.refit(another, machine_id="e" * 32)
    rack.scontrol("update", "nodename=gpu1", "state=power_down")
    host.power("off")
    until("gpu1 powered down", lambda: "POWERED_DOWN" in states(site, "gpu1"))
    rack.scontrol("update", "nodename=gpu1", "state=power_up")
    asked = time.time()
    until("a boot that slurmctld believes: it counts in whole seconds", lambda: time.time() > asked + 2)
    host.power("on")
    host.wait_ssh()
    until("gpu1 registered", lambda: not states(site, "gpu1") & {"POWERING_UP", "POWERED_DOWN", "DOWN"}, 150)
    until("sweeps", lambda: site.status(1).get("sweep", {}).get("count", 0) >= 3, 120)
    assert "DRAIN" not in states(site, "gpu1") and site.status(1).get("drain") is None
    findings = json.dumps(site.status(1))
    print(f"\n{rack.suite}: {findings[:3000]}")
    assert "another card than before" in findings


def test_5_dns_srv_records_are_enough(site: ProvisionedRack) -> None:
    """gpu1 has no file and no --conf-server any more. Before slurmd has fetched the file, the agent drains the node all the same:
    Slurm's commands ask the DNS too. Then slurmd starts by the same record."""
    rack, host = site.rack, site.node(1)
    rack.controller.path("/srv/dns.py").write_text(DNS)
    rack.controller.path("/etc/systemd/system/dns.service").write_text(DNS_UNIT)
    rack.ctl("systemctl daemon-reload; systemctl start dns")
    host.run("rm -f /etc/resolv.conf")
    host.path("/etc/resolv.conf").write_text(f"nameserver {rack.controller.address}\nsearch lab\n")
    host.path("/etc/default/slurmd").write_text("")
    host.run("systemctl stop slurmd; rm -rf /run/slurm/conf /var/spool/slurmd/conf-cache")
    assert "gpu1" in host.run("sinfo -h -N -o %N").stdout
    host.inject_kmsg(XID)
    until("gpu1 drained", lambda: rack.node_state("gpu1").reason.startswith("fairlead:xid:"))
    until("its own drain", lambda: site.status(1).get("drain"))
    assert host.run(["ls", COPY], check=False).returncode != 0
    host.run("systemctl start slurmd")
    until("gpu1 registered", lambda: not states(site, "gpu1") & {"NOT_RESPONDING", "DOWN", "UNKNOWN"})
    rack.scontrol("update", "nodename=gpu1", "state=resume")
    until("gpu1 in service", lambda: states(site, "gpu1") == {"IDLE"})
    said = json.loads(host.run(["/usr/local/bin/fairlead", "doctor", "--json"], check=False).stdout)
    assert said["slurm_conf"] == COPY and not [r for r in said["remarks"] if r["level"] == "wrong"], said
