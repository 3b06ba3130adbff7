"""Speaks to slurmctld through pyslurm (GPL-2.0, built for one Slurm release), where ``slurm.adapter = "pyslurm"`` chooses it.

pyslurm runs in a process of its own, the worker (pyslurm_worker.py). Its calls stop the whole interpreter while they wait for
slurmctld, and cannot be ended early. libslurm also ends the process that uses it if slurm.conf is wrong. Because of the worker,
such a call only raises SlurmUnavailable, and the next call starts another worker.

libslurmfull.so has no version in its name, so a pyslurm that was built for another release loads and reads structures wrongly.
The worker therefore reports the release that it was built for. It must be the release that ``scontrol --version`` prints on this
node. pyslurm 25.11 cannot ask for the topology, so Scontrol does.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.slurm import pyslurm_worker
from fairlead.slurm.client import JobOn, NodeState, NodeTimes
from fairlead.slurm.node_groups import NodeGroup, expand
from fairlead.slurm.scontrol import NO_ANSWER, NO_CONF, Scontrol, plain, states_of

LINE_MAX = 64 << 20
#: Slurm's compact words (squeue(1), JOB STATE CODES) for the states in which a job has its nodes.
COMPACT = {"RUNNING": "R", "COMPLETING": "CG", "CONFIGURING": "CF", "SUSPENDED": "S", "STOPPED": "ST"}
COMPACT |= {"STAGE_OUT": "SO", "SIGNALING": "SI"}


class Pyslurm:
    """Speaks to slurmctld as the module's text describes. python: the interpreter that has pyslurm, "" for this one.

    Raises SlurmError when pyslurm is not there, or was built for another release than ``scontrol --version`` says.
    """

    def __init__(self, *, conf: str = "", bin_dir: str = "/usr/bin", python: str = "", deadline_seconds: float = 10.0) -> None:
        self.deadline_seconds = deadline_seconds
        self._scontrol = Scontrol(conf=conf, bin_dir=bin_dir, deadline_seconds=deadline_seconds)
        self._python = python or sys.executable
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._until = 0.0
        self._release = self._scontrol.release()
        with self._lock:
            self._start()

    def node(self, name: str) -> NodeState:
        try:
            return _state(self._ask({"ask": "node", "name": plain(name)})[0])
        except SlurmUnavailable:
            raise
        except SlurmError as e:
            if "does not exist" not in str(e):
                raise
            hint = "slurm.node_name must be the NodeName of slurm.conf"
            raise SlurmError(f"slurmctld has no node {name}", hint=hint) from None

    def nodes(self, names: Sequence[str] = ()) -> tuple[NodeState, ...]:
        wanted = {plain(name) for name in names}
        return tuple(_state(n) for n in self._ask({"ask": "nodes"}) if not wanted or n["name"] in wanted)

    def jobs_on(self, name: str) -> tuple[JobOn, ...]:
        jobs = self._ask({"ask": "jobs"})
        return tuple(
            JobOn(id=str(number), state=COMPACT[state], nodes=nodes)
            for number, state, nodes, nodelist in jobs
            if nodelist and plain(name) in expand(nodelist)
        )

    def not_after(self, seconds: float) -> None:
        """Limit the next write. It begins within ``seconds`` or not at all. The worker checks the time right before the call."""
        self._until = time.clock_gettime(time.CLOCK_BOOTTIME) + seconds

    def drain(self, name: str, reason: str) -> None:
        self._update(name, state="DRAIN", reason=reason)

    def update_reason(self, name: str, reason: str) -> None:
        self._update(name, reason=reason)

    def resume(self, name: str) -> None:
        self._update(name, state="UNDRAIN")

    def _update(self, name: str, **changes: str) -> None:
        until, self._until = self._until, 0.0
        self._ask({"ask": "update", "name": plain(name), **changes, **({"until": repr(until)} if until else {})})

    def topology(self) -> tuple[NodeGroup, ...]:
        return self._scontrol.topology()

    def began(self) -> float:
        return self._scontrol.began()

    def node_times(self) -> tuple[NodeTimes, ...]:
        return self._scontrol.node_times()

    def close(self) -> None:
        """End the worker. The next call starts another one."""
        with self._lock:
            self._end()

    def _ask(self, request: dict[str, str]) -> Any:
        with self._lock:
            if self._worker is None:
                self._start()
            said = self._exchange(msgspec.json.encode(request) + b"\n")
        if "error" in said:
            raise _refusal(str(said["error"]))
        return said["answer"]

    def _start(self) -> None:
        try:
            self._worker = subprocess.Popen(
                [self._python, pyslurm_worker.__file__],
                env=dict(self._scontrol.environment()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
        except OSError as e:
            raise SlurmError(f"{self._python}: {e.strerror}", hint="slurm.pyslurm_python says which Python has pyslurm") from None
        self._rest = b""
        hello = self._exchange(b"")
        if "error" in hello:
            self._end()
            raise SlurmError(f"pyslurm cannot be loaded: {' '.join(str(hello['error']).split())[:200]}")
        built = ".".join(f"{n:02d}" for n in hello["slurm"][:2])
        if built != self._release:
            self._end()
            raise SlurmError(f"pyslurm {hello['pyslurm']} here was built for Slurm {built}, this node has {self._release}")

    def _exchange(self, request: bytes) -> dict[str, Any]:
        """Send a line and return the answer, within the deadline. A worker that misses the deadline is killed."""
        worker = self._worker
        if worker is None or worker.stdin is None or worker.stdout is None:
            raise SlurmUnavailable("pyslurm's process is not there")
        deadline = time.monotonic() + self.deadline_seconds
        try:
            worker.stdin.write(request)
            worker.stdin.flush()
            while b"\n" not in self._rest:
                ready, _, _ = select.select([worker.stdout], [], [], max(0.0, deadline - time.monotonic()))
                if not ready:
                    self._end()
                    raise SlurmUnavailable(f"pyslurm gave no answer in {self.deadline_seconds:g} s", hint="is slurmctld up?")
                read = os.read(worker.stdout.fileno(), 1 << 20)
                self._rest += read
                if not read or len(self._rest) > LINE_MAX:
                    raise BrokenPipeError
        except BrokenPipeError:
            self._end()
            raise SlurmUnavailable(f"pyslurm's process ended ({_how(worker.returncode)})", hint="libslurm ends it") from None
        line, _, self._rest = self._rest.partition(b"\n")
        said: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        return said

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
            for pipe in (self._worker.stdin, self._worker.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        pass
            self._worker = None


def _how(status: int | None) -> str:
    if status is None or status >= 0:
        return f"status {status}"
    return signal.Signals(-status).name


def _refusal(said: str) -> SlurmError:
    line = f"pyslurm: {' '.join(said.split())[-300:]}"
    if any(text in said.lower() for text in (*NO_ANSWER, NO_CONF, pyslurm_worker.TOO_LATE)):
        return SlurmUnavailable(line, hint="is slurmctld up? scontrol ping")
    return SlurmError(line)


def _state(node: dict[str, Any]) -> NodeState:
    states = states_of(node["states"])
    # a drained node always has a reason, so for such a node the text "None" is a reason
    nothing = "None" if states & {"DRAIN", "FAIL"} else ""
    return NodeState(
        name=node["name"],
        states=states,
        reason=nothing if node["reason"] is None else node["reason"],
        reason_user=node["reason_user"],
        reason_time=int(node["reason_time"]),
        hostname=node["hostname"],
        partitions=tuple(node["partitions"]),
    )
