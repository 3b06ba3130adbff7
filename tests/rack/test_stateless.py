"""Nodes whose state is lost at a reboot: a drain that stands over it is neither lifted nor taken over, whoever set it.

The state folder of gpu1 and gpu2 is a tmpfs, as on a node that boots an image. gpu3 has its state on a disk that stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.lab.faults import Faults
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.rack.provisioned import ProvisionedRack, until

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.rack, pytest.mark.timeout(300)]
MOUNT = """[Unit]
Before=local-fs.target
[Mount]
What=tmpfs
Where=/var/lib/fairlead
Type=tmpfs
[Install]
WantedBy=local-fs.target
"""
XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.fixture(scope="module")
def site() -> Iterator[ProvisionedRack]:
    with Rack(3, name=own_name("test-stateless")) as rack:
        made = ProvisionedRack(rack)
        made.write_site('[nodes.gpu3.agent]\nstate_dir = "/srv/fairlead"\n')
        for number in (1, 2):
            host = made.node(number)
            host.path("/etc/systemd/system/var-lib-fairlead.mount").write_text(MOUNT)
            host.run("systemctl daemon-reload && systemctl enable --now var-lib-fairlead.mount")
        made.provision("gpu[1-3]")
        made.hooks_on()
        yield made


def settled(site: ProvisionedRack, number: int) -> bool:
    """Say whether the agent has swept several times since its start, and asked slurmctld."""
    return site.status(number).get("sweep", {}).get("count", 0) >= 6


def test_1_what_a_reboot_loses_is_said(site: ProvisionedRack) -> None:
    for number, memory in ((1, "tmpfs"), (2, "tmpfs"), (3, "")):
        until("the agent's status", lambda n=number: site.status(n).get("state_folder"))
        assert site.status(number)["state_folder"]["lost_at_reboot"] == memory
    said = site.node(1).run(["/usr/local/bin/fairlead", "status"], check=False).stdout
    assert said.count("/var/lib/fairlead is in memory (tmpfs): a reboot loses the ledger") == 1
    remarks = json.loads(site.node(1).run(["/usr/local/bin/fairlead", "doctor", "--json"], check=False).stdout)["remarks"]
    assert [r["level"] for r in remarks if "is in memory (tmpfs)" in r["what"]] == ["warn"]
    assert "is in memory" not in site.node(3).run(["/usr/local/bin/fairlead", "doctor"], check=False).stdout


def test_2_commands_use_the_declared_folder(site: ProvisionedRack) -> None:
    """`fairlead hold` on gpu3 has to reach the agent, whose state is not in /var/lib/fairlead."""
    host = site.node(3)
    host.run(["/usr/local/bin/fairlead", "hold", "--reason", "riser"])
    assert host.path("/srv/fairlead/hold").exists() and not host.path("/var/lib/fairlead/hold").exists()
    until("the agent's hold", lambda: site.status(3).get("hold"))
    assert "hold" in host.run(["/usr/local/bin/fairlead", "audit"]).stdout
    assert host.run(["readlink", "/run/fairlead/state"]).stdout.strip() == "/srv/fairlead"
    host.run(["/usr/local/bin/fairlead", "hold", "--release"])
    until("no hold", lambda: not site.status(3).get("hold"))


def test_3_drains_stand_over_the_reboot_with_their_owners(site: ProvisionedRack) -> None:
    """fairlead drains gpu1 and gpu3, a person drains gpu2. All boot with healthy GPUs. The agent of gpu1 has no ledger any more:
    it leaves the drain, and a person takes it over. The agent of gpu3 has its ledger, and resumes the node."""
    rack = site.rack
    rack.wait_idle(60)
    for number in (1, 3):
        Faults(site.node(number).sim / "nvml.control").lost(0)
        site.node(number).inject_kmsg(XID)
    rack.scontrol("update", "nodename=gpu2", "state=drain", "reason=riser swap, ask Ute")
    for name in ("gpu1", "gpu3"):
        until(f"{name} drained", lambda n=name: rack.node_state(n).reason.startswith("fairlead:xid:"))
    until("the drain in the status", lambda: site.status(1).get("drain") and site.status(3).get("drain"))
    before = {name: rack.node_state(name) for name in ("gpu1", "gpu2", "gpu3")}
    for number in (1, 2, 3):
        site.node(number).reboot()
    assert not site.node(1).path("/var/lib/fairlead/ledger.json").exists() or site.status(1).get("drain") is None
    until("gpu3 resumed by its own agent", lambda: "DRAIN" not in rack.node_state("gpu3").states, 180)
    until("sweeps", lambda: settled(site, 1) and settled(site, 2), 180)
    for name in ("gpu1", "gpu2"):
        now = rack.node_state(name)
        assert "DRAIN" in now.states and now.user == before[name].user, (before[name], now)
        assert now.reason.startswith(before[name].reason), (before[name], now)
    assert site.status(1).get("drain") is None and site.trail(1) == [] and "drained" not in site.trail(2)
    why = site.fairlead("why", "gpu1", "--site", str(site.site), "--bin-dir", str(rack.bin))
    assert "fairlead resume --adopt" in why
    refused = site.node(2).run(["/usr/local/bin/fairlead", "resume", "--adopt"], check=False)
    assert refused.returncode != 0 and rack.node_state("gpu2").reason == "riser swap, ask Ute"
    site.node(1).run(["/usr/local/bin/fairlead", "resume", "--adopt"])
    until("gpu1 resumed by a person", lambda: "DRAIN" not in rack.node_state("gpu1").states)
