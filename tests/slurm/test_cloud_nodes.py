"""Nodes of State=CLOUD: they are off until a job wants them, and each time another machine at another address has the name.

Before 23.02 slurmctld lists such a node while it is off only with PrivateData=cloud, also for root and with --all
(src/slurmctld/node_mgr.c of 22.05, _is_cloud_hidden).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fairlead.model.verdict import State
from fairlead.slurm.listing import gpu_nodes
from tests.lab.ledger import own_name
from tests.lab.pause import until
from tests.lab.roots import SUITES
from tests.rack.test_arrangements import another
from tests.scale.agents import TREE, NodeAgent
from tests.scale.many_nodes import ManyNodes, address
from tests.slurm.conftest import client_of

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(240)]
PROJECT = Path(__file__).resolve().parents[2]
FIXED, CLOUD = ("n1", "n2"), ("n3", "n4")
FIRST, SECOND = address(300), address(301)
CONF = """\
SuspendProgram=/etc/slurm/suspend
ResumeProgram=/etc/slurm/resume
SuspendTime=36000
SuspendTimeout=1
ReturnToService=1
"""
VISIBLE = "PrivateData=cloud\n"  # for Slurm 22.05
RESUME = '#!/bin/sh\necho "$1" >>/var/log/slurm/resumed\n'


class Cloud(ManyNodes):
    """n3 and n4 are of State=CLOUD. The test does what a provider does between ResumeProgram and the start of an instance."""

    def write_conf(self, **changes: object) -> None:
        super().write_conf(**changes)
        path = self.folder / "etc/slurm.conf"
        text = path.read_text()
        for name in CLOUD:
            text = re.sub(rf"^(NodeName={name} .*)State=UNKNOWN", r"\1State=CLOUD", text, flags=re.MULTILINE)
        path.write_text(text)

    def start_slurmd(self, name: str, *options: str) -> None:
        if name in FIXED or name in self.addresses:
            super().start_slurmd(name, *options)

    def wait_idle(self, seconds: float = 90, names: Sequence[str] = ()) -> None:
        super().wait_idle(seconds, names or FIXED)

    def resumed(self, name: str) -> int:
        """How often ResumeProgram was called for a node."""
        log = self.log / "resumed"
        return log.read_text().split().count(name) if log.exists() else 0

    def launch(self, name: str, where: str, tree: Path) -> NodeAgent:
        """Start an instance with a new disk, tell slurmctld its address, and start the agent before slurmd can have a job."""
        folder = self.folder / "nodes" / name
        shutil.rmtree(folder / "bin", ignore_errors=True)
        for part in ("run", "etc", "var"):
            shutil.rmtree(folder / part)
            (folder / part).mkdir()
        (folder / "kmsg").unlink(missing_ok=True)
        self.addresses[name] = where
        self.scontrol("update", f"nodename={name}", f"nodeaddr={where}", "nodehostname=lab")
        asked = time.time()
        until(lambda: time.time() > asked + 2, "a later second: slurmctld counts in whole ones")
        self.start_slurmd(name, "-b")
        agent = NodeAgent(self, name, tree)
        agent.begin()
        agent.until(lambda: agent.sequence() > 0, "a first verdict")
        return agent

    def terminate(self, name: str, agent: NodeAgent) -> None:
        """The instance is deleted with its disk."""
        agent.end(signal.SIGKILL)
        os.kill(self.inits[name], signal.SIGKILL)
        until(lambda: not Path(f"/proc/{self.inits[name]}/ns/net").exists(), "end of the instance")


@pytest.fixture(scope="module", params=list(SUITES))
def site(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    files = {"/etc/slurm/suspend": "#!/bin/sh\nexit 0\n", "/etc/slurm/resume": RESUME}
    conf = CONF + (VISIBLE if request.param == "bookworm" else "")
    with Cloud(request.param, nodes=4, cores=4, nohold=True, extra_conf=conf, files=files, name=own_name("cloud")) as cloud:
        yield cloud


def states(site: Cloud) -> dict[str, frozenset[str]]:
    return {node.name: node.states for node in client_of(site).nodes()}


def fairlead(site: Cloud, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    where = ["--site", str(site.site(folder)), "--bin-dir", str(site.bin), "--slurm-conf", "/etc/slurm/slurm.conf"]
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}
    command = site.entered([sys.executable, "-P", "-m", "fairlead", *words, *where])
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)


def targets(site: Cloud, folder: Path) -> str:
    return fairlead(site, folder, "fleet", "--prometheus-targets", "-", "--skip-powered-down").stdout


def test_1_a_cloud_node_that_is_off_is_off(site: Cloud, tmp_path: Path) -> None:
    """Slurm's commands hide such a node from people, and fairlead asks for all nodes."""
    until(lambda: all("POWERED_DOWN" in states(site).get(name, ()) for name in CLOUD), "both cloud nodes, off")
    shown = site.run(["/usr/bin/sinfo", "-h", "-N", "-o", "%N"]).stdout.split()
    print(f"\n{site.suite}: sinfo lists {sorted(set(shown))}")
    rows = json.loads(fairlead(site, tmp_path, "fleet", "--timeout", "20", "--json").stdout)["nodes"]
    assert {row["node"]: row["word"] for row in rows if row["node"] in CLOUD} == dict.fromkeys(CLOUD, "off")
    assert address(1) in (text := targets(site, tmp_path)) and address(3) not in text


def test_2_another_instance_inherits_nothing(site: Cloud, tmp_path: Path) -> None:
    client = client_of(site)
    job = site.submit("#!/bin/sh\nexit 0\n", "-wn3", "-n1")
    until(lambda: site.resumed("n3") == 1, "call of ResumeProgram")
    assert "POWERING_UP" in states(site)["n3"]
    first = site.launch("n3", FIRST, TREE)
    try:
        assert site.wait_job(job) == "COMPLETED"
        assert {node.name: node.address for node in gpu_nodes(client)}["n3"] == FIRST
        first.gpu_lost()
        first.until(lambda: first.state is State.DRAIN, "a drain")
        assert client.node("n3").reason.startswith("fairlead:xid:")
    finally:
        site.terminate("n3", first)
    site.scontrol("update", "nodename=n3", "state=power_down_force")
    until(lambda: "POWERED_DOWN" in states(site)["n3"], "n3 off")

    tree = tmp_path / "tree"
    shutil.copytree(TREE, tree, symlinks=True)
    another(tree)
    job = site.submit("#!/bin/sh\nexit 0\n", "-wn3", "-n1")
    until(lambda: site.resumed("n3") == 2, "second call of ResumeProgram")
    second = site.launch("n3", SECOND, tree)
    try:
        assert site.wait_job(job) == "COMPLETED"
        before = second.sequence()
        second.until(lambda: second.sequence() > before + 2, "later verdicts")
        node = client.node("n3")
        assert second.state is State.OK and second.status()["drain"] is None and not node.drained and not node.reason, node
        assert {node.name: node.address for node in gpu_nodes(client)}["n3"] == SECOND
        trail = second.state_dir / "audit.jsonl"
        assert "drained" not in (trail.read_text() if trail.exists() else "")
    finally:
        site.terminate("n3", second)
    site.scontrol("update", "nodename=n3", "state=power_down_force")
    until(lambda: "POWERED_DOWN" in states(site)["n3"], "n3 off again")


def test_3_without_private_data_slurm_22_05_hides_a_node_that_is_off(site: Cloud, tmp_path: Path) -> None:
    """`fairlead fleet` has no line for it. `fairlead doctor` names the missing line of slurm.conf (tests/slurm_conf)."""
    if site.suite != "bookworm":
        pytest.skip("slurmctld lists all nodes since 23.02")
    until(lambda: "POWERED_DOWN" in states(site).get("n4", ()), "n4 off, and listed")
    site.write_conf(extra_conf=site.extra_conf.replace(VISIBLE, ""))
    site.scontrol("reconfigure")
    until(lambda: "n4" not in states(site), "n4 hidden")
    rows = json.loads(fairlead(site, tmp_path, "fleet", "--timeout", "20", "--json").stdout)["nodes"]
    assert {row["node"] for row in rows} == set(FIXED)
