"""One provisioned rack of three nodes for every test about what goes wrong. gpu1 stays healthy; gpu2 and gpu3 take Xids."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from subprocess import CompletedProcess
from typing import Any, TypeVar

import pytest

from tests.lab import demo_steps, preflight
from tests.lab.clients import NodeState
from tests.lab.demo_stage import Stage
from tests.lab.demo_steps import Demo
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.lab.wheels import wheelhouse

T = TypeVar("T")
XID = "NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
PROLOG = "/etc/slurm/prolog.d/50-fairlead"
AGENT = "fairlead-agent.service"
FAIRLEAD = "/usr/local/bin/fairlead"
#: The next query of slurmctld notices a person's resume, so a test does not wait 30 s for it.
OFTEN = "\n[slurm]\nreconcile_seconds = 1.0\n"


class Ward:
    """The rack and what the tests do to it; nodes by number, as gpuN. Every wait is bounded and says what it saw last."""

    def __init__(self, demo: Demo) -> None:
        self.demo = demo
        self.rack = demo.rack
        self._gpus = itertools.count()

    # -- to a node --------------------------------------------------------------------------------

    def run(self, number: int, command: str, *, check: bool = True, timeout: float = 120) -> CompletedProcess[str]:
        return self.demo.node(number).run(command, check=check, timeout=timeout)

    def fairlead(self, number: int, *words: str) -> CompletedProcess[str]:
        """The command on the node, as root; whatever it ends with."""
        return self.demo.node(number).run([FAIRLEAD, *words], check=False)

    def prolog(self, number: int, job: int = 4711, **environment: str) -> CompletedProcess[str]:
        """The prolog as slurmd runs it, for a job that does not exist."""
        known = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": "1000", **environment}
        done = self.demo.node(number).run([PROLOG], env=known, check=False, timeout=60)
        self.run(number, f"rm -f /run/fairlead/jobs/{job}", check=False)
        return done

    def job(self, number: int, script: str = "#!/bin/sh\necho ran\n", *options: str) -> str:
        """A real job on that node and no other; its output."""
        job = self.rack.submit(script, "-N1", "-w", f"gpu{number}", *options)
        state = self.rack.wait_job(job)
        output = self.run(number, f"cat /tmp/job-{job}.out", check=False).stdout
        assert state == "COMPLETED", f"{state}: {output}"
        return output

    def xid(self, number: int, pci: str = "") -> str:
        """An Xid 79 of that GPU, or of the next in turn; its PCI address."""
        if pci:
            self.demo.node(number).inject_kmsg(XID.format(pci=pci))
            return pci
        rows = [ln.split("\t") for ln in (self.demo.node(number).path("/run/fairlead/topology")).read_text().splitlines()]
        gpus = [row[4] for row in rows if row[0] == "gpu"]
        pci = gpus[next(self._gpus) % len(gpus)]
        self.demo.node(number).inject_kmsg(XID.format(pci=pci))
        return pci

    def unit(self, number: int) -> dict[str, str]:
        """What systemd says about the agent."""
        shown = self.run(number, f"systemctl show -p MainPID,ActiveState,SubState,NRestarts,ExecMainStatus {AGENT}").stdout
        return dict(line.split("=", 1) for line in shown.splitlines())

    def journal(self, number: int) -> str:
        return self.run(number, f"journalctl --no-pager -o cat -u {AGENT}").stdout

    # -- looking ----------------------------------------------------------------------------------

    def wait(self, what: str, read: Callable[[], T], good: Callable[[T], bool], seconds: float = 90) -> T:
        return self.demo.stage.wait(what, read, good, seconds, every=0.05)[0]

    def slurm(self, number: int) -> NodeState:
        return self.rack.node_state(f"gpu{number}")

    def verdict(self, number: int) -> list[str]:
        """The fields of the verdict file, whatever is in it; always five or more."""
        try:
            text = self.demo.node(number).path("/run/fairlead/verdict").read_text(errors="replace")
        except OSError as e:
            text = f"-\tnone\t-\t-\t{e}"
        fields = text.rstrip("\n").split("\t")
        return fields + ["-"] * (5 - len(fields))

    def sequence(self, number: int) -> int:
        text = self.verdict(number)[3]
        return int(text) if text.isdigit() else -1

    def status(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = self.demo.status(number)["status"]
        return found

    def sweeps(self, number: int, count: int = 3) -> None:
        """Wait for some more verdicts of the agent."""
        before = self.sequence(number)
        self.wait(f"gpu{number}: {count} more verdicts", lambda: self.sequence(number), lambda now: now >= before + count)

    def drained(self, number: int, seconds: float = 90) -> NodeState:
        """Wait until fairlead has drained the node and the verdict says so."""
        node = self.wait(f"gpu{number}: drained", lambda: self.slurm(number), lambda n: "DRAIN" in n.states, seconds)
        assert node.reason.startswith("fairlead:xid:"), node
        self.wait(f"gpu{number}: verdict drain", lambda: self.verdict(number), lambda v: v[1] == "drain")
        return node

    def reported(self, number: int) -> list[str]:
        """Every reason that slurmctld was ever given for the node."""
        return [reason for _, reason in self.reasons_at(number)]

    def reasons_at(self, number: int) -> list[tuple[float, str]]:
        """The same with slurmctld's times, Unix seconds to the millisecond."""
        log = self.rack.ctl("cat /var/log/slurm/slurmctld.log")
        lines = re.findall(rf"^\[([-\d]+T[:.\d]+)\] update_node: node gpu{number} reason set to: (.*)", log, re.M)
        return [(datetime.fromisoformat(stamp).timestamp(), reason) for stamp, reason in lines]

    def heal(self, number: int) -> None:
        """In service, with nothing known of earlier tests: no drain, ledger, history or evidence."""
        self.run(number, "rm -f /etc/fairlead/disabled /var/lib/fairlead/hold")
        if (
            self.slurm(number).states == ("IDLE",)
            and self.verdict(number)[1] == "ok"
            and self.unit(number)["SubState"] == "running"
        ):
            return
        self.run(number, f"systemctl stop {AGENT}; rm -rf /var/lib/fairlead/* /run/fairlead/*")
        if "DRAIN" in self.slurm(number).states:
            self.rack.scontrol("update", f"nodename=gpu{number}", "state=resume")
        self.run(number, f"systemctl reset-failed {AGENT}; systemctl start {AGENT}")
        self.wait(f"gpu{number}: verdict ok", lambda: self.verdict(number), lambda v: v[1] == "ok")
        self.rack.wait_idle(names=[f"gpu{number}"])


@pytest.fixture(scope="session")
def site() -> Iterator[Ward]:
    """The rack, provisioned as the demo does it."""
    reasons = preflight.preflight() or [f"apt-get install {name}" for name in preflight.missing_programs()]
    if reasons:
        pytest.skip(reasons[0])
    rack = Rack(nodes_wanted=3, name=own_name("test-faults"))
    try:
        demo = Demo(Stage(), rack)
        demo.bring_up()
        demo.site.write_text(demo.site.read_text().replace("\n[classes.h100]", f"{OFTEN}\n[classes.h100]"))
        wheels = str(wheelhouse(rack.suite))
        json.loads(demo.fairlead("provision", "--site", str(demo.site), "--wheelhouse", wheels, "--json"))
        rack.configure(hooks=demo_steps.HOOKS)
        ward = Ward(demo)
        for number in (1, 2, 3):
            ward.wait(f"gpu{number}: verdict ok", lambda n=number: ward.verdict(n), lambda v: v[1] == "ok")  # type: ignore[misc]
        rack.wait_idle()
        yield ward
    finally:
        rack.down()


@pytest.fixture
def ward(site: Ward) -> Iterator[Ward]:
    """The rack with all nodes in service; after a failure the hosts' logs are shown."""
    for number in (1, 2, 3):
        site.heal(number)
    yield site
