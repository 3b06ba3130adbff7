"""The self-test on a lab node of every release, with systemd, Slurm and simulated GPUs, and what its report differs in.

A lab node is no proof of a distribution. It shows that the command ends there, changes nothing, and says what differs.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fairlead import config
from fairlead.selftest import claims
from fairlead.selftest.claim_differences import differences
from fairlead.selftest.report_file import read_report
from tests.lab.host import Host
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.lab.wheels import wheelhouse
from tests.selftest.reports import PROJECT

pytestmark = [pytest.mark.slow, pytest.mark.rack, pytest.mark.timeout(400)]
NODES = [("bookworm", False), ("trixie", False), ("forky", False), ("bookworm", True), ("trixie", True)]
AT = "/opt/selftest"
#: What differs on every lab node, and why.
OF_THE_LAB = {
    "source disks": "the node has no block device",
    "source kernel_log": "the kernel log is a FIFO",
    "hook bind-plan": "the machine's hybrid hierarchy has the cpuset, and the node has not mounted it",
}
OF_EL = {"distribution": "the root has the names of EL and is none"}


def bring(host: Host, suite: str) -> None:
    """Put this checkout and the wheels of the root's Python on the node."""
    target = host.path(AT)
    for name in ("agent", "slurm"):
        shutil.copytree(PROJECT / name, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for wheel in wheelhouse(suite).glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target / "agent")


def report_of(host: Host, out: Path) -> dict[str, Any]:
    """Run the command on the node. Return its report, which is kept in ``out``."""
    variables = f"PYTHONPATH={AT}/agent PYTHONDONTWRITEBYTECODE=1"
    done = host.run(f"{variables} python3 -m fairlead selftest --json", check=False, timeout=150)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done
    out.write_text(done.stdout)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def start_agent(host: Host) -> None:
    """Start the agent, which writes its own files from now on, and wait for its second verdict."""
    words = ["systemd-run", "--quiet", "--unit=selftest-agent", f"--setenv=PYTHONPATH={AT}/agent", "python3", "-m", "fairlead"]
    host.run([*words, "agent"])
    verdict, seen, end = host.path("/run/fairlead/verdict"), set[str](), time.monotonic() + 60
    while len(seen) < 2:
        assert time.monotonic() < end, host.run("systemctl status selftest-agent", check=False).stdout
        if verdict.exists():
            seen.add(verdict.read_text())
        time.sleep(0.1)


@pytest.mark.parametrize(("suite", "el"), NODES, ids=[f"{'el-' if el else ''}{suite}" for suite, el in NODES])
def test_on_a_lab_node(suite: str, el: bool, tmp_path: Path) -> None:
    with Rack(nodes_wanted=1, suite=suite, name=own_name(suite), el=el) as rack:
        (host,) = rack.nodes
        bring(host, suite)
        host.run("mkdir -p /etc/fairlead /run/fairlead /var/lib/fairlead")
        document = config.resolve_layers(
            "gpu1", [("test", {"agent": {"kmsg_path": "/etc/fairlead-sim/kmsg", "interval_seconds": 1.0}})]
        )[0]
        host.path("/etc/fairlead/node.json").write_bytes(config.encode_document(document))
        said = report_of(host, tmp_path / "report.json")
        start_agent(host)
        beside_the_agent = report_of(host, tmp_path / "beside.json")
        found = {d.part: d.found for d in differences(read_report(str(tmp_path / "report.json")))}
        kept = os.environ.get("FAIRLEAD_SELFTEST_REPORTS")
        if kept:
            shutil.copy(tmp_path / "report.json", Path(kept) / f"{'el-' if el else ''}{suite}.json")
    for one in (said, beside_the_agent):
        assert one["untouched"]["changed"] == [] == one["untouched"]["processes_left"]
    hooks = {r["name"]: (r["status"], r["digest"]) for r in said["hooks"] if r["name"] != "bind-plan"}
    assert hooks == {name: (c.status, c.digest) for name, c in claims.HOOKS.items() if name != "bind-plan"}
    assert said["machine"]["init"] == "systemd" and said["machine"]["gpus_of_nvml"] == 8
    assert said["machine"]["distribution"] == ("rocky" if el else "debian")
    assert host.name not in json.dumps(said).replace("gpu1_", "")
    slow = {part for part, text in found.items() if part.startswith("hook ") and text.endswith(" ms")}  # of a loaded machine
    assert {*found} - slow == {*OF_THE_LAB, *(OF_EL if el else ())}, found
