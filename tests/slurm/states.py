"""One cluster per release with two real nodes for each row of the table of node states: a free one, and one of ours.

Everything that takes slurmctld a while is begun at once; the tests then ask row by row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fairlead.drains.outcome import Outcome, finish
from fairlead.drains.protocol import DrainProtocol
from fairlead.errors import SlurmUnavailable
from fairlead.slurm.client import NodeState
from tests.lab.cluster import Cluster
from tests.lab.pause import pause
from tests.lab.roots import SUITES
from tests.slurm.conftest import client_of, drain_of
from tests.slurm.node_states import ROWS, Row

WHY = "GPU 0000:1b:00.0 Xid 79: fallen off the bus, reboot_node"
PERSON = "swapping a DIMM"
JOB = "#!/bin/sh\nexec sleep 600\n"
#: These last, since they restart slurmctld, the very last with so short a SlurmdTimeout that others may go down too.
LAST = ("unknown", "down, not responding")
NAMES = (*dict.fromkeys(row.name for row in ROWS if row.made and row.name not in LAST), *LAST)
#: Row -> (free node, node with our drain).
PAIRS = {name: (f"n{2 * i + 1}", f"n{2 * i + 2}") for i, name in enumerate(NAMES)}
COUNT = 2 * len(NAMES)
#: Jobs must be there before the drain.
BUSY = {"allocated": 8, "mixed": 1, "completing": 1, "draining": 8, "failing": 8, "reboot requested": 8}
BUSY |= {"power down requested": 8, "power down, draining": 8}
#: SuspendTimeout and ResumeTimeout are short for these only.
FALLS_ASLEEP, WAKES_NOT = ("powered down", "powering up"), ("not resumed in time", "reboot timed out")


class States:
    """The cluster of one release. ``close`` ends it; ``a(row)``, ``b(row)``: the node without and with our drain."""

    def __init__(self, suite: str, folder: Path) -> None:
        self.release = SUITES[suite]
        self.cluster = _Cluster(suite, nodes=COUNT, cores=4, extra_conf=_conf(300), files=_files())
        self.brought: set[str] = set()
        self.folder = folder
        self.drains: dict[str, DrainProtocol] = {}

    def open(self) -> None:
        self.cluster.start()
        try:
            self.client = client_of(self.cluster)
            self._jobs_and_drains()
            self._set()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        hold = self.cluster._hold
        self.cluster.stop()
        if hold is not None and hold.stdout is not None:
            hold.stdout.close()

    def drain(self, node: str) -> DrainProtocol:
        if node not in self.drains:
            self.drains[node] = drain_of(self.client, self.folder, node)
        return self.drains[node]

    def node(self, name: str) -> NodeState:
        return self.client.node(name)

    def wait(self, name: str, words: frozenset[str], seconds: float = 120) -> NodeState:
        """The node once it has all these words."""
        deadline = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            try:
                node = self.node(name)
            except SlurmUnavailable as e:  # it starts
                node = NodeState(name=name, states=frozenset(), reason=str(e))
            if words <= node.states:
                return node
            assert time.monotonic() < deadline, (self.release, words, node)
            pause(began)

    def update(self, nodes: tuple[str, ...], *words: str) -> None:
        for name in nodes:
            self.cluster.scontrol("update", f"nodename={name}", *words)

    def _jobs_and_drains(self) -> None:
        jobs = {}
        for row, tasks in BUSY.items():
            for node in PAIRS[row]:
                jobs[node] = self.cluster.submit(JOB, f"-w{node}", f"-n{tasks}")
        first, second = PAIRS["planned"]
        ahead = self.cluster.submit(JOB, f"-w{second}", "-n8", "-t10")
        for job in (*jobs.values(), ahead):
            self.cluster.wait_job(job, "RUNNING", seconds=90)
        self.cluster.submit(JOB, "-N2", f"-w{first},{second}", "-t5")
        for row, (_, node) in PAIRS.items():
            if row != "planned":
                result = finish(self.drain(node).drain("xid", WHY))
                assert result.outcome is Outcome.DRAINED, (row, result)
        for node in PAIRS["completing"]:
            self.cluster.run(["/usr/bin/scancel", str(jobs[node])])

    def _set(self) -> None:
        cluster, update = self.cluster, self.update
        for node in (*PAIRS["down, not responding"], *PAIRS["powering up"], *PAIRS["not resumed in time"]):
            cluster.stop_slurmd(node, kill=True)
        for row in (*FALLS_ASLEEP, "powering down", "power down requested"):
            update(PAIRS[row], "state=power_down")
        update(PAIRS["not resumed in time"], "state=power_down")
        update(PAIRS["power down, draining"], "state=power_down_asap")
        for row in ("reboot requested", "reboot issued", "reboot timed out"):
            cluster.scontrol("reboot", ",".join(PAIRS[row]))
        for name, flags in (("maint", ["flags=maint"]), ("reserved", [])):
            nodes = ",".join(PAIRS[name])
            cluster.scontrol(
                "create", f"reservation={name}", "starttime=now", "duration=30", f"nodes={nodes}", "users=root", *flags
            )
        for row, state in (("drained", "drain"), ("draining", "drain"), ("down", "down"), ("fail", "fail"), ("failing", "fail")):
            update(PAIRS[row], f"state={state}", f"reason={PERSON}")
        update(PAIRS["future"], "state=future")
        gres = cluster.folder / "etc" / "gres.conf"
        fewer = {f"NodeName={node}" for node in PAIRS["invalid registration"]}
        kept = [ln for ln in gres.read_text().splitlines() if not (ln.split()[0] in fewer and "nvidia7" in ln)]
        gres.write_text("\n".join(kept) + "\n")
        for node in PAIRS["invalid registration"]:
            cluster.stop_slurmd(node)
            cluster.start_slurmd(node)

    def _power_up(self, name: str) -> None:
        for node in PAIRS[name]:
            self.wait(node, frozenset({"POWERED_DOWN"}))
        self.update(PAIRS[name], "state=power_up")

    def _silence(self, name: str) -> None:
        for node in PAIRS[name]:
            self.cluster.stop_slurmd(node, kill=True)
        self.update(PAIRS[name], "state=noresp")

    def _restart(self, name: str) -> None:
        if name == "unknown":
            self.cluster.stop_slurmd(PAIRS[name][1], kill=True)
        else:
            self.cluster.write_conf(extra_conf=_conf(4))
        self.cluster.stop_slurmctld(kill=True)
        self.cluster.start_slurmctld()

    def bring(self, name: str) -> None:
        """What is done only now, once, because it does not last or because something must come before it."""
        late: dict[str, Callable[[str], None]] = {
            "powering up": self._power_up,
            "not resumed in time": self._power_up,
            "not responding": self._silence,
            **dict.fromkeys(LAST, self._restart),
        }
        if name in late and name not in self.brought:
            self.brought.add(name)
            late[name](name)


class _Cluster(Cluster):
    """One slurmd is never started."""

    def start_slurmd(self, name: str) -> None:
        if name != PAIRS["unknown"][0]:
            super().start_slurmd(name)

    def wait_idle(self, seconds: float = 20, names: Sequence[str] = ()) -> None:
        super().wait_idle(max(seconds, 90), names or [name for name in self.node_names if name != PAIRS["unknown"][0]])


def _conf(silence_seconds: int) -> str:
    isolated = [node for row in (*FALLS_ASLEEP, *WAKES_NOT) for node in PAIRS[row]]
    rest = [f"n{i}" for i in range(1, COUNT + 1) if f"n{i}" not in isolated]
    sleeps = ",".join(node for row in FALLS_ASLEEP for node in PAIRS[row])
    fails = ",".join(node for row in WAKES_NOT for node in PAIRS[row])
    return f"""\
SuspendProgram=/etc/slurm/nothing
ResumeProgram=/etc/slurm/nothing
RebootProgram=/etc/slurm/nothing
Epilog=/etc/slurm/slow-epilog
SuspendTime=36000
SuspendTimeout=600
ResumeTimeout=600
SlurmdTimeout={silence_seconds}
MessageTimeout={min(10, silence_seconds)}
ReturnToService=1
SchedulerParameters=batch_sched_delay=0,sched_min_interval=1000,bf_interval=1,bf_resolution=1
PartitionName=main Nodes={",".join(rest)} Default=YES MaxTime=INFINITE State=UP
PartitionName=sleeps Nodes={sleeps} MaxTime=INFINITE State=UP SuspendTimeout=1 ResumeTimeout=600
PartitionName=fails Nodes={fails} MaxTime=INFINITE State=UP SuspendTimeout=1 ResumeTimeout=1
"""


def _files() -> dict[str, str]:
    slow = "|".join(PAIRS["completing"])
    epilog = f"#!/bin/sh\ncase $SLURMD_NODENAME in {slow}) exec /bin/sleep 600;; esac\nexit 0\n"
    return {"/etc/slurm/nothing": "#!/bin/sh\nexit 0\n", "/etc/slurm/slow-epilog": epilog}


def row_of(name: str, release: str) -> Row:
    return next(row for row in ROWS if row.name == name and release in row.releases)
