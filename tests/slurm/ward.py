"""One node of a bare cluster with its agent, its hardware and its people, for sequences: every act goes into the record.

The agent is the real program on a machine tree; Slurm, its hooks and its jobs are real. What is simulated: the hardware, by
changes of the tree's nvml.json and records in the kernel log, which an agent that starts reads again from the boot on, as from
/dev/kmsg. And a reboot (``scontrol reboot`` runs a RebootProgram): all of the node's processes are killed, its /run is emptied
and 2.2 s later it has another boot id; the agent starts, and after its first verdict ``slurmd -b``, as the units order it. The
clocks go on.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.model.verdict import State
from tests.daemon.conftest import PROJECT, Agent
from tests.lab.clients import NodeState, parse_node
from tests.lab.cluster import Cluster
from tests.lab.gpufacts import lose
from tests.lab.roots import LabError
from tests.lab.trees import MACHINES
from tests.slurm.record import Act, Fault, Record, Span, samples
from tests.slurm.wire import Wire

#: Rules that bind nodes together, or that count earlier sequences, are for other tests.
POLICY = {
    "budget_percent": 100, "budget_group_percent": 100, "common_cause_nodes": 0, "suspect_job_nodes": 0, "strikes_max": 0,
    "reboots_max": 0, "ladder_window_seconds": 0,
}  # fmt: skip
#: Slurm runs this for a reboot, in the namespace of the node's slurmd.
REBOOT_PROGRAM = "#!/bin/sh\n: > /etc/fairlead/reboot\n"
#: slurmctld counts in whole seconds and believes no faster reboot.
FIRMWARE_SECONDS = 2.2
JOBS = '#!/bin/bash\necho "$EPOCHREALTIME job $SLURM_JOB_ID" >> /run/lab-nodes/ran.$SLURMD_NODENAME\nsleep 0.4\n'
_XID = "3,{n},{us},-;NVRM: Xid (PCI:{gpu}): {number}, pid=1234, name=python3, {text}"
_TEXTS = {79: "GPU has fallen off the bus.", 64: "Row Remapper: Failed to remap row"}


class Ward:
    """``start`` begins a sequence, ``stop`` ends it; in between everything that people and hardware do to the node."""

    def __init__(self, cluster: Cluster, node: str, folder: Path) -> None:
        self.cluster, self.node, self.folder = cluster, node, folder
        self.dirs = cluster.node_dirs(node)
        self.tree = folder / "tree"
        shutil.copytree(MACHINES / "hgx-h100.tuned", self.tree, symlinks=True)
        (self.tree / "etc").mkdir(exist_ok=True)  # the commands look at this machine, the agent at its tree: one and the same
        shutil.copy("/etc/machine-id", self.tree / "etc/machine-id")
        self.healthy = json.loads((self.tree / "nvml.json").read_text())
        self.gpus = [gpu["pci"] for gpu in self.healthy["gpus"]]
        (folder / "agent").mkdir()
        self.agent = Agent(folder / "agent", self.tree)
        self.agent.run_dir, self.agent.state_dir = self.dirs.run, self.dirs.var
        self.agent.before = ("setpriv", "--pdeathsig", "KILL")  # it ends with the sequence, however that ends
        self.kmsg = os.open(self.agent.fifo, os.O_RDWR | os.O_NONBLOCK)
        self.power = threading.RLock()
        self.record = Record(node, 0.0)
        self.wire = Wire(folder / "wire", node, cluster.bin)

    # -- a sequence -------------------------------------------------------------------------------

    def start(self, reconcile_seconds: float = 2.0) -> None:
        """Everything as after an installation: node idle, agent new, hardware well."""
        self.wire.slow()
        for place in (self.dirs.run, self.dirs.var, self.dirs.etc, self.wire.calls):
            _empty(place)
        (self.dirs.etc / "hooks").write_text("1\tallow\n")
        (self.cluster.folder / "nodes" / f"ran.{self.node}").unlink(missing_ok=True)
        self.kernel_log: list[str] = []
        self._nvml({})
        self._boot_id()
        slurm = {"conf": "/etc/slurm/slurm.conf", "bin_dir": str(self.wire.bin), "node_name": self.node}
        slurm |= {"reconcile_seconds": reconcile_seconds, "deadline_seconds": 6}  # type: ignore[dict-item]
        self.agent.write_document(slurm=slurm, policy=POLICY)
        self._back_to_idle()
        self.record = Record(self.node, time.time(), reconcile_seconds)
        self.record.measure()
        self.begun: dict[str, float] = {}
        self.losing = False
        self.holds = self.power_cycles = 0
        self.agent_up()
        self._watching = True
        self._watch = threading.Thread(target=self._watch_reboots)
        self._watch.start()

    def stop(self) -> Record:
        """End the sequence; its record with all that was written down elsewhere."""
        self._watching = False
        record = self.record
        for what in list(self.begun):
            self.over(what, loses=self.losing)
        record.ended = time.time()
        record.measure()
        self._watch.join()
        if self.agent.process is not None:
            self.agent.process.kill()
            self.agent.process.wait()
        self.wire.slow()
        record.calls = self.wire.read()
        for number, act in enumerate(record.acts):  # a command of fairlead's has done it before it ends
            lifts = [call.ended for call in record.calls if act.began <= call.began <= call.ended <= act.ended and call.lifts]
            if act.what.startswith("fairlead resume") and lifts:
                record.acts[number] = replace(act, ended=lifts[-1])
        record.seen = samples(self.cluster.log / "samples", self.node, record.began)
        ran = self.cluster.folder / "nodes" / f"ran.{self.node}"
        for line in ran.read_text().splitlines() if ran.exists() else ():
            at, _, job = line.partition(" ")
            record.jobs.append((float(at), job))
        self.scontrol("delete", f"reservation={self.node}")
        return record

    def _back_to_idle(self) -> None:
        deadline = time.monotonic() + 90
        while True:
            try:
                now = self.now()
                if now and set(now.states) == {"IDLE"}:
                    return
                if now and {"DRAIN", "DOWN", "FAIL", "REBOOT_REQUESTED", "REBOOT_ISSUED"} & set(now.states):
                    self.scontrol("update", f"nodename={self.node}", "state=resume")
                self.cluster.run(["/usr/bin/scancel", "--user=alice", f"--nodelist={self.node}"], check=False)
            except (LabError, subprocess.TimeoutExpired):
                pass
            if time.monotonic() > deadline:
                raise LabError(f"{self.node} does not come back to idle: {self.now()}")
            time.sleep(0.3)

    @contextmanager
    def span(self, what: str) -> Iterator[None]:
        self.begun[what] = time.time()
        try:
            yield
        finally:
            self.over(what)

    def over(self, what: str, *, loses: bool = False) -> None:
        """What had begun is over, unless it had not."""
        if what in self.begun:
            self.record.spans.append(Span(self.begun.pop(what), time.time(), what, loses))

    # -- asking -----------------------------------------------------------------------------------

    def scontrol(self, *words: str) -> tuple[bool, str]:
        done = self.cluster.run(["/usr/bin/scontrol", *words], check=False, timeout=60)
        return done.returncode == 0, done.stdout + done.stderr

    def now(self) -> NodeState | None:
        """The node; None where slurmctld does not answer."""
        try:
            return parse_node(self.scontrol("-o", "show", "node", self.node)[1])
        except (LabError, subprocess.TimeoutExpired):
            return None

    def command(self, *words: str) -> tuple[bool, str]:
        """``fairlead`` on the node, as root for ann."""
        folders = ["--state-dir", str(self.dirs.var), "--run-dir", str(self.dirs.run)]
        more = folders if words[0] in ("why", "hold") else ["--document", str(self.agent.document)]
        more += ["--bin-dir", str(self.cluster.bin)] if words[0] == "why" else []
        environment = {**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "SUDO_USER": "ann"}
        command = [sys.executable, "-m", "fairlead", *words, *more]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
        return done.returncode == 0, done.stdout + done.stderr

    def hear(self, *, why: bool = False) -> None:
        """Note what the agent's verdict, or ``fairlead why`` too, says now."""
        self.record.measure()
        try:
            verdict = self.agent.verdict()
            self.record.reported.append((time.time(), "verdict", f"{verdict.state.value} {verdict.text}"))
        except (OSError, ValueError):
            pass
        if why:
            at, (_, text) = time.time(), self.command("why", self.node)
            self.record.reported.append((at, "why", text))

    # -- people -----------------------------------------------------------------------------------

    def act(self, what: str, run: Callable[[], tuple[bool, str]], words: str = "") -> None:
        """A person does something; it is noted with the node as it was before, and with whether it was accepted."""
        before = self.now()
        began = time.time()
        ok, reported = run()
        self.record.acts.append(Act(began, time.time(), what, words, ok, before))
        self.tell(f"ann: {what} {words!r}: {'done' if ok else reported.strip()}")

    def tell(self, text: str) -> None:
        self.record.tell(time.time(), text)

    def drains(self, words: str, state: str = "drain") -> None:
        """A person drains the node with words of their own, or changes the reason only (state '')."""
        change = [f"state={state}"] if state else []
        run = lambda: self.scontrol("update", f"nodename={self.node}", *change, f"reason={words}")  # noqa: E731
        self.act(state or "reason", run, words)

    def lifts(self, state: str = "resume") -> None:
        self.act(state, lambda: self.scontrol("update", f"nodename={self.node}", f"state={state}"))

    def submit(self) -> None:
        """Jobs one after the other, of this node only."""
        try:
            self.cluster.submit(JOBS, f"-w{self.node}", "--array=0-9%1", "-t1")
        except (LabError, subprocess.TimeoutExpired):
            pass

    # -- the agent --------------------------------------------------------------------------------

    def agent_up(self) -> None:
        with self.power:
            if self.agent.process is not None and self.agent.process.poll() is None:
                return
            self.begun.setdefault("no agent", time.time())
            try:
                while os.read(self.kmsg, 65536):
                    pass
            except BlockingIOError:
                pass
            if self.kernel_log:
                os.write(self.kmsg, "".join(self.kernel_log).encode())
            self.agent.start(wait=False)
            (self.dirs.run / "verdict").unlink(missing_ok=True)
            self.agent.until((self.dirs.run / "verdict").exists, "first verdict", seconds=60)
            self.over("no agent")
            self.tell("the agent runs")

    def agent_down(self, *, kill: bool = False) -> None:
        with self.power:
            process = self.agent.process
            self.begun.setdefault("no agent", time.time())
            if process is not None and process.poll() is None:
                process.kill() if kill else process.terminate()
                process.wait(timeout=60)
            self.tell(f"the agent is {'killed' if kill else 'stopped'}")

    def agent_forgets(self) -> None:
        """Its folders are emptied: another disk."""
        with self.power:
            self.agent_down()
            _empty(self.dirs.var)
            self.record.emptied.append(time.time())
            self.over("hold")
            self.tell("the agent's state is emptied")
            self.agent_up()

    # -- the hardware -----------------------------------------------------------------------------

    def fault(self, kind: str, number: int, *, lasting: bool = True) -> None:
        """An Xid 79, a lost GPU or a failed row remap (and its Xid 64) of one GPU."""
        gpu = self.gpus[number]
        with self.power:
            here = [f for f in self.record.faults if f.ended > time.time() and (f.gpu, f.kind) == (gpu, kind) and kind != "xid"]
            if here:
                return
            for each in (kind, "xid") if kind == "remap" else (kind,):
                self.record.faults.append(Fault(time.time(), each, gpu, lasting=lasting and each != "xid"))
            self.tell(f"hardware: {kind} on {gpu}")
            if kind != "xid":
                self._nvml(self._broken())
            if kind != "lost":
                self.kernel(79 if kind == "xid" else 64, gpu)

    def repair(self) -> None:
        """Every state of a GPU that was wrong is right again, without a reboot."""
        with self.power:
            self._end(lambda fault: fault.kind != "xid")
            self.tell("hardware: the GPUs are repaired")

    def _end(self, which: Callable[[Fault], bool]) -> None:
        for fault in self.record.faults:
            if which(fault) and fault.ended == float("inf"):
                fault.ended = time.time()
        self._nvml(self._broken())

    def _broken(self) -> dict[str, str]:
        return {f.gpu: f.kind for f in self.record.faults if f.kind != "xid" and f.ended == float("inf")}

    def _nvml(self, broken: dict[str, str]) -> None:
        data: dict[str, Any] = json.loads(json.dumps(self.healthy))
        for gpu in data["gpus"]:
            if broken.get(gpu["pci"]) == "lost":
                lose(gpu)
            elif broken.get(gpu["pci"]) == "remap":
                gpu["remap"] |= {"uncorrected": 8, "failed": 1}
        (self.tree / "nvml.new").write_text(json.dumps(data))
        (self.tree / "nvml.new").rename(self.tree / "nvml.json")

    def kernel(self, number: int, gpu: str) -> None:
        """The driver's record of an Xid."""
        us = int(float((self.tree / "proc/uptime").read_text().split()[0]) * 1e6)  # now, by the node's own clock
        text = _XID.format(n=2000 + len(self.kernel_log), us=us, gpu=gpu[:-2], number=number, text=_TEXTS[number])
        self.kernel_log.append(f"{text}\n")
        if self.agent.process is not None and self.agent.process.poll() is None:
            os.write(self.kmsg, f"{text}\n".encode())

    # -- power ------------------------------------------------------------------------------------

    def _boot_id(self) -> None:
        (self.tree / "proc/sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")

    def _watch_reboots(self) -> None:
        while self._watching:
            if (self.dirs.etc / "reboot").exists():
                (self.dirs.etc / "reboot").unlink()
                self.reboot(by="Slurm")
            time.sleep(0.05)

    def reboot(self, by: str = "ann", *, orderly: bool = True) -> None:
        """See the module's text. Not ``orderly``: the plug is pulled."""
        with self.power, self.span("reboot"):
            self.tell(f"{by} reboots the node")
            self.agent_down(kill=not orderly)
            self.cluster.power_off(self.node)
            self._end(lambda fault: not fault.lasting)
            self.kernel_log = []
            _empty(self.dirs.run)
            self._boot_id()
            time.sleep(FIRMWARE_SECONDS)
            self.agent_up()
            self.cluster.start_slurmd(self.node, "-b")
            self.power_cycles += 1
            self.tell("the node has booted")

    def until(self, met: Callable[[], bool], seconds: float = 10) -> bool:
        """Wait until it is so, at most so long; whether it is."""
        deadline = time.monotonic() + seconds
        while not met():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def verdict(self) -> State | None:
        try:
            return self.agent.verdict().state
        except (OSError, ValueError):
            return None


def _empty(folder: Path) -> None:
    """Remove what is in it; the folder itself is mounted elsewhere."""
    for each in folder.iterdir():
        shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink(missing_ok=True)
