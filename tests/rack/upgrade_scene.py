"""What outlasts a change of the release on three nodes: two jobs, a person's drain, and a drain of fairlead itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.lab.faults import Faults
from tests.rack.provisioned import PROJECT, ProvisionedRack, until

XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
#: Prints the variables of each step, before and after the releases change. It ends when the file is there.
JOB = """#!/bin/bash
show() { echo "== $1"; srun -n1 env | grep -E '^(FAIRLEAD|NCCL|CUDA|GLOO|OMP|UCX|MASTER)' | sort; }
show first
n=0
until [ -e /tmp/go-on ]; do sleep 0.2; n=$((n+1)); [ "$n" -lt 2000 ] || exit 9; done
show last
"""


class UpgradeScene:
    """The jobs run on gpu1 and gpu2, a person drains gpu2, and fairlead drains gpu3."""

    def __init__(self, site: ProvisionedRack) -> None:
        self.site, self.rack = site, site.rack
        self.rack.wait_idle(60)
        self.jobs = {n: self.rack.submit(JOB, f"--nodelist=gpu{n}", "--gres=gpu:8", "--exclusive") for n in (1, 2)}
        for job in self.jobs.values():
            self.rack.wait_job(job, "RUNNING")
        for n, job in self.jobs.items():
            until("the first step", lambda n=n, j=job: "FAIRLEAD_SET" in output(site, n, j))
        self.rack.scontrol("update", "nodename=gpu2", "state=drain", "reason=riser swap, ask Ute")
        Faults(site.node(3).sim / "nvml.control").lost(0)
        site.node(3).inject_kmsg(XID)
        until("gpu3 drained", lambda: self.rack.node_state("gpu3").reason.startswith("fairlead:xid:"))
        until("its drain in the status", lambda: site.status(3).get("drain"))
        self.drains = {name: self.rack.node_state(name) for name in ("gpu1", "gpu2", "gpu3")}

    def same(self) -> None:
        """Slurm has the same drains, by the same users, and the jobs run."""
        now = {name: self.rack.node_state(name) for name in self.drains}
        assert {name: (s.reason, s.user) for name, s in now.items()} == {
            name: (s.reason, s.user) for name, s in self.drains.items()
        }
        assert all(self.rack.job_state(job) == "RUNNING" for job in self.jobs.values())

    def holds(self) -> None:
        """The agents run, nothing has changed, and the drain of gpu3 is still known as fairlead's own."""
        for n in (1, 2, 3):
            until("the agent knows Slurm", lambda n=n: self.site.status(n).get("sweep", {}).get("count", 0) >= 3)
        self.same()
        own = self.drains["gpu3"].reason
        until("gpu3 is still known as fairlead's own", lambda: (self.site.status(3).get("drain") or {}).get("reason") == own)
        self.same()

    def end(self) -> None:
        """The jobs complete with the variables of their beginning, and no agent has drained anything else."""
        for n in self.jobs:
            self.site.node(n).path("/tmp/go-on").touch()
        for n, job in self.jobs.items():
            assert self.rack.wait_job(job) == "COMPLETED", output(self.site, n, job)
            first, last = steps(output(self.site, n, job))
            assert without_changing(first) == without_changing(last), "a variable has changed its meaning in a running job"
        assert [self.site.trail(n).count("drained") for n in (1, 2, 3)] == [0, 0, 1]
        assert "Ute" in self.rack.node_state("gpu2").reason


def agents_answer(site: ProvisionedRack) -> None:
    for number in (1, 2, 3):
        until("a verdict", lambda n=number: site.node(n).path("/run/fairlead/verdict").exists() and site.status(n).get("sweep"))


def versions(site: ProvisionedRack, release: Path = PROJECT) -> dict[str, dict[str, Any]]:
    words = ("version", "--fleet", "--json", "--site", str(site.site), "--bin-dir", str(site.rack.bin))
    said = json.loads(site.fairlead(*words, release=release))
    return {node["node"]: node for node in said["nodes"]}


def output(site: ProvisionedRack, number: int, job: int) -> str:
    try:
        return site.node(number).path(f"/tmp/job-{job}.out").read_text()
    except OSError:
        return ""


def steps(text: str) -> list[list[str]]:
    return [part.splitlines()[1:] for part in re.split(r"^== ", text, flags=re.MULTILINE)[1:]]


def without_changing(lines: list[str]) -> list[str]:
    """Leave out what differs from step to step by design: the port of a rendezvous."""
    return [line for line in lines if not line.startswith("MASTER_PORT=")]
