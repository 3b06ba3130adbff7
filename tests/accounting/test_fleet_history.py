"""Two faults on a real agent and real Slurm with slurmdbd: drained, repaired, resumed, collected, and exactly these reported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from fairlead import __version__
from fairlead.controller.controller_release import read_note
from fairlead.model.verdict import State
from tests.daemon.conftest import XID79, Agent
from tests.lab.accounting import wait_in_database
from tests.lab.cluster import Cluster
from tests.lab.trees import MACHINES
from tests.slurm.conftest import client_of

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
LOST, PENDING = "0000:1b:00.0", "0000:43:00.0"
#: Called as PROGRAM [options] HOST COMMAND: n1 has an agent, and n2 does not answer.
SSH = """#!/bin/sh
for word; do command=$host host=$node node=$word; done
host=$host command=$node
[ $host = n1 ] || {{ echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255; }}
exec sh -c "$(printf '%s' "$command" | sed -e 's|/run/fairlead|{run}|g' -e 's|/var/lib/fairlead|{state}|g')"
"""
SCRIPT = "#!/bin/sh\nuntil [ -e /tmp/go-$SLURM_JOB_ID ]; do sleep 0.1; done\n"


@pytest.fixture
def agent(slurm: Cluster, tmp_path: Path) -> Iterator[Agent]:
    """An agent of n1 on a machine tree of its own."""
    tree = tmp_path / "tree"
    shutil.copytree(MACHINES / "hgx-h100", tree, symlinks=True)
    options = {"conf": "/etc/slurm/slurm.conf", "bin_dir": str(slurm.bin), "node_name": "n1", "reconcile_seconds": 1}
    made = Agent(tmp_path, tree, slurm=options, policy={"budget_percent": 100}, agent={"usage_records": False})
    script = tmp_path / "ssh"
    script.write_text(SSH.format(run=made.run_dir, state=made.state_dir))
    script.chmod(0o755)
    yield made.start()
    made.end()


def fairlead(*words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "agent")}
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", *words], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def change_gpu(agent: Agent, pci: str, **changes: Any) -> None:
    path = agent.tree / "nvml.json"
    data = json.loads(path.read_text())
    gpu = next(gpu for gpu in data["gpus"] if gpu["pci"] == pci)
    for name, value in changes.items():
        gpu[name] = {**gpu[name], **value} if isinstance(value, dict) else value
    new = path.with_name("new")
    new.write_text(json.dumps(data))
    new.rename(path)


def in_service(slurm: Cluster) -> bool:
    return not client_of(slurm).node("n1").drained


def drained(agent: Agent, slurm: Cluster) -> None:
    agent.until(lambda: agent.verdict().state is State.DRAIN, "verdict drain")
    assert not in_service(slurm)


def collect(agent: Agent, slurm: Cluster) -> dict[str, Any]:
    store, ssh = str(agent.folder / "store"), str(agent.folder / "ssh")
    found: dict[str, Any] = json.loads(fairlead("collect", "--json", "--store", store, "--bin-dir", str(slurm.bin), "--ssh", ssh))
    note = read_note(store)
    assert note is not None and note.version == __version__, "`fairlead provision` keeps the order by it"
    return found


def report(agent: Agent) -> dict[str, Any]:
    today = date.today()
    period = f"{today - timedelta(days=2)}/{today + timedelta(days=1)}"
    found: dict[str, Any] = json.loads(fairlead("report", period, "--json", "--store", str(agent.folder / "store")))
    return found


def test_two_faults_are_two_incidents(agent: Agent, slurm: Cluster) -> None:
    job = slurm.submit(SCRIPT, "-wn1", "--time=60")
    slurm.wait_job(job, "RUNNING")
    agent.kernel(XID79.format(n=1, us=int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)))
    drained(agent, slurm)
    first = collect(agent, slurm)
    assert first["fleet"]["changed"] == 1 and first["fleet"]["silent"] == ["n2"]
    (incident,) = report(agent)["incidents"]
    assert incident["ended"] == "open" and incident["check"] == "xid", "an incident is sent as it happens"
    slurm.run(["/usr/bin/touch", f"/tmp/go-{job}"])
    slurm.wait_job(job, "COMPLETED")
    wait_in_database(slurm, job)
    change_gpu(agent, LOST, serial="9999999999999")
    fairlead("clear", LOST, "--reason", "GPU replaced, RMA 4711", "--document", str(agent.document))
    agent.until(lambda: in_service(slurm), "the resume after the repair", seconds=180)

    change_gpu(agent, PENDING, remap={"pending": 1})
    drained(agent, slurm)
    change_gpu(agent, PENDING, remap={"pending": 0})
    agent.until(lambda: in_service(slurm), "the resume after clean sweeps", seconds=180)
    agent.until(lambda: b'"resumed"' in (agent.run_dir / "service-record.json").read_bytes(), "the resume in the record")

    collect(agent, slurm)
    found = report(agent)
    shown = [(i["check"], i["device"], i["ended"], i["jobs"]) for i in found["incidents"]]
    assert shown == [
        ("xid", LOST, "confirmed repair", [job]),
        ("row_remap", PENDING, "unconfirmed", [job]),  # it had ended less than ten minutes before
    ], found["incidents"]
    assert found["incidents"][0]["serial"] == "1656742236598" and found["incidents"][0]["users"] == 1
    assert found["unrecorded"] == ["n2"] and found["by_events"], "slurmdbd has the node events"
    assert found["availability"]["fault_seconds"] > 0 and found["availability"]["person_seconds"] == 0
    assert found["classes"][0]["rate"]["count"] == 2 and found["classes"][0]["rate"]["per_1000_node_days"] is None

    again = collect(agent, slurm)
    assert again["fleet"]["asked"] == 0, "nothing has changed in Slurm since"
    assert [(i["check"], i["ended"]) for i in report(agent)["incidents"]] == [
        ("xid", "confirmed repair"),
        ("row_remap", "unconfirmed"),
    ]
    assert "xid" in fairlead(
        "report", f"{date.today()}/{date.today() + timedelta(days=1)}", "--store", str(agent.folder / "store")
    )


def test_a_persons_drain_is_no_incident_and_has_a_column_of_its_own(agent: Agent, slurm: Cluster) -> None:
    slurm.scontrol("update", "nodename=n2", "state=drain", "reason=fan is noisy")
    time_of_drain = time.time()
    deadline = time.monotonic() + 60
    while time.time() < time_of_drain + 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    collect(agent, slurm)
    slurm.scontrol("update", "nodename=n2", "state=resume")
    found = report(agent)
    assert [i for i in found["incidents"] if i["node"] == "n2"] == []
    assert found["availability"]["person_seconds"] > 0
