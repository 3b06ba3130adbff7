"""One simulated GPU node for every contestant: a machine tree's /sys and /proc, the simulated NVML library, a kernel log.

The node is a box of the lab (namespaces of its own, a private copy-on-write view of this machine's root file system) in which
the real agent runs as on a live machine: NVML through its worker, the kernel log through a FIFO, Slurm through scontrol on
a real slurmctld. Everything is broken from outside, while it runs, and put back by ``restore``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fairlead import checks, config
from fairlead.daemon import requests
from fairlead.model.finding import Mode
from fairlead.model.verdict import Verdict, parse_line
from fairlead.policy.request import Clear
from tests.lab import cpus, node
from tests.lab.cluster import Cluster
from tests.lab.enter import enter_command
from tests.lab.faults import Faults
from tests.lab.hardware import simulated_nvml
from tests.lab.ledger import Ledger
from tests.lab.machines import MACHINES, read_nvml
from tests.lab.nvml.library import NAME, write_conf
from tests.lab.roots import LabError
from tests.scorecard import entry

PROJECT = Path(__file__).resolve().parents[2]
TREE, PROFILE = "hgx-h100.tuned", "hgx-h100"
INSIDE = "/run/score"  # the node's folder in the box
CLOCK = Path(__file__).with_name("clock.c")
CLOCK_SET = "0 2000 15 0\n"  # of sim/clock: synchronised, 2 ms at most, 15 us estimated, never set on
UPTIME_SECONDS = 86400  # past every boot grace, whenever this machine booted
_HIDDEN = ("/tmp", "/run", "/dev", "/sys", "/proc")  # folders of this machine that a box covers
#: Nothing across nodes or over days comes between a finding and its drain.
POLICY = {
    "budget_percent": 100,
    "budget_group_percent": 100,
    "common_cause_nodes": 0,
    "suspect_job_nodes": 0,
    "strikes_max": 0,
    "ladder_window_seconds": 0,
}


class ScoreNode:
    """One node, by its NodeName in ``cluster``. ``strict``: every check and setting enforced, else their own defaults.

    ``interval``: seconds from sweep to sweep. ``speed``: how fast the node's clocks run (clock.c): a sweep each real ``interval``
    is one each ``speed`` x ``interval`` seconds of the node.
    """

    def __init__(self, cluster: Cluster, name: str, *, strict: bool = True, interval: float = 0.3, speed: float = 1.0) -> None:
        self.cluster, self.name, self.strict, self.interval, self.speed = cluster, name, strict, interval, speed
        self._usual = speed
        self._begun = (0.0, 0.0)  # the real and the node's CLOCK_BOOTTIME at the agent's start
        self.tree = MACHINES / TREE
        self.gpus = [gpu["pci"] for gpu in read_nvml(self.tree)["gpus"]]
        self.ledger = Ledger(f"{cluster.name}-score-{name}")
        self.folder = self.ledger.folder
        self.run_dir, self.state_dir = self.folder / "score/run", self.folder / "score/state"
        self.log = self.folder / "agent.log"
        self.kmsg = self.folder / "sim/kmsg"
        self.faults = Faults(self.folder / "sim/nvml.control")
        self.uptime = UPTIME_SECONDS
        self.starts = 0
        self._agent: subprocess.Popen[bytes] | None = None
        self._agent_pid = 0
        self._hold: subprocess.Popen[str] | None = None
        self._pid = 0
        self._before: dict[str, bytes | Path | None] = {}  # what steps have changed: content, a link's target or a folder's copy
        self._undo: list[str] = []
        self._sequence = 10_000
        self._changed: dict[str, Any] = {}
        self._old_status = 0

    # -- up and down ------------------------------------------------------------------------------

    def up(self) -> None:
        """Power the node on and start its agent. From the main thread: the box ends with the thread that made it."""
        self.ledger.open()
        for sub in ("scratch", "disk/up", "hw", "sim", "score/bin", "score/run", "score/state"):
            (self.folder / sub).mkdir(parents=True)
        (self.folder / "log").touch()
        os.mkfifo(self.kmsg)
        (self.folder / "sim/clock").write_text(CLOCK_SET)
        write_conf(self.tree, self.folder / "sim/nvml.conf")
        spec = node.HostSpec(self.name, str(self.folder), "/", "", "", str(self.tree))
        fifo = os.open(self.kmsg, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            node.power_on(spec, fifo)
            while self._drained(fifo):
                pass
        finally:
            os.close(fifo)
        library = simulated_nvml() / NAME
        binds = [*node.binds_of(spec), (str(library), f"/usr/lib/x86_64-linux-gnu/{NAME}", True)]
        binds += [(str(self.folder / "score"), INSIDE, False), ("/proc", "/run/machine-proc", False)]
        binds += [(path, path, True) for path in _own_folders()]
        box = {
            "hostname": self.name,
            "lower": "/",
            "scratch": str(self.folder / "scratch"),
            "sysfs": str(self.tree / "sys"),
            "proc_ro": True,
            "binds": binds,
            "devices": [(name, major, minor, mode) for name, major, minor, mode in self._devices()],
            "controllers": [],
            "cgroups": [],
        }
        file = self.folder / "box.json"
        file.write_text(json.dumps(box))
        command = [sys.executable, "-m", "tests.lab.hold", str(file)]
        self._hold = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.ledger.process("process", self._hold.pid)
        assert self._hold.stdout is not None
        answer = self._hold.stdout.readline().strip()
        if not answer.isdigit():
            raise LabError(f"node {self.name}: {answer or 'its namespaces could not be made'}")
        self._pid = int(answer)
        self.ledger.process("process", self._pid)
        self.root = Path(f"/proc/{self._pid}/root")
        self._clients()
        self.write_document()
        self.command(f"PYTHONPATH={PROJECT}/agent {sys.executable} -m fairlead apply --document {INSIDE}/node.json")

    def down(self) -> None:
        """End everything of the node. Harmless when it is not up."""
        for process in (self._agent, self._hold):
            if process is not None:
                process.kill()
                process.communicate()
        self._agent = self._hold = None
        if stuck := self.ledger.end():
            raise LabError(f"node {self.name}: {'; '.join(stuck)}")

    def _drained(self, fifo: int) -> bool:
        try:
            return bool(os.read(fifo, 65536))
        except BlockingIOError:
            return False

    def _devices(self) -> list[tuple[str, int, int, int]]:
        majors = dict(node.local_majors([self.tree]))
        return [(name, majors[major], minor, mode) for name, major, minor, mode in node.device_lines(self.tree)]

    def _clients(self) -> None:
        """Slurm's commands for the agent: run where slurmctld is, in all but the process namespace."""
        spaces = " ".join(
            f"--{kind}=/run/machine-proc/{self.cluster.pid}/ns/{kind[:3]}" for kind in ("mount", "net", "ipc", "uts")
        )
        spaces = spaces.replace("ns/mou", "ns/mnt")
        for client in ("scontrol", "sinfo", "squeue"):
            path = self.folder / "score/bin" / client
            path.write_text(f'#!/bin/sh\nexec nsenter {spaces} -- /usr/bin/{client} "$@"\n')
            path.chmod(0o755)

    # -- the agent --------------------------------------------------------------------------------

    def write_document(self, changes: Mapping[str, Any] | None = None) -> None:
        """The node's document, with ``changes`` of a fault merged in."""
        data = config.to_data(config.profile_document(self.name, PROFILE))
        data["agent"] |= {
            "run_dir": f"{INSIDE}/run",
            "state_dir": f"{INSIDE}/state",
            "metrics_textfile": "",
            "kmsg_path": "/etc/fairlead-sim/kmsg",
            "interval_seconds": self.interval * self.speed,
            "nvml_deadline_seconds": min(300.0, 1.0 * self.speed),
        }
        data["slurm"] |= {
            "conf": "/etc/slurm/slurm.conf",
            "bin_dir": f"{INSIDE}/bin",
            "look_seconds": max(1.0, self.speed),
            "splay_seconds": 0,
        }
        data["slurm"]["deadline_seconds"] = min(120.0, 10.0 * self.speed)
        data["policy"] |= POLICY
        data["settings"].pop("memlock", None)  # no slurmd runs in the node's own process namespace
        if self.strict:
            for each in (*data["checks"].values(), *data["settings"].values()):
                each["mode"] = "enforce"
        if changes:
            config.document.merge(data, changes, "fault", {})
        del data["hash"]
        document = config.decode_document(msgspec.json.encode(data), self.name)
        (self.folder / "score/node.json").write_bytes(config.encode_document(document))

    def start(self) -> None:
        """Start the agent and wait for its first verdict."""
        before = self._sequence_now()
        clock = [f"--boottime={self.uptime}", f"--monotonic={self.uptime}"]
        command = [*enter_command(self._pid), "unshare", "--time", *clock, "--fork", "--kill-child"]
        command += [sys.executable, "-m", "fairlead", "agent", "--document", f"{INSIDE}/node.json"]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(PROJECT / "agent"), **self._clock()}
        with open(self.log, "ab") as out:
            self._agent = subprocess.Popen(command, cwd="/", env=environment, stdout=out, stderr=out)
        self.starts += 1
        self.until(lambda: self._sequence_now() > before, "a first verdict")
        self._agent_pid = _child(_child(self._agent.pid))

    def _clock(self) -> dict[str, str]:
        """The environment with the node's clocks."""
        real = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._begun = (real / 1e9, real / 1e9 + self.uptime)
        ahead = int(self.uptime * 1e9)
        since = (time.clock_gettime_ns(time.CLOCK_MONOTONIC) + ahead, real + ahead, time.time_ns())
        return {
            "LD_PRELOAD": str(cpus.preload(CLOCK)),
            "SCORE_CLOCK": f"{self.speed} {since[0]} {since[1]} {since[2]}",
            "SCORE_CLOCK_STATE": "/etc/fairlead-sim/clock",
        }

    def stop(self) -> None:
        """SIGTERM, and wait for the end. The node's time is not set back."""
        if self._agent is None:
            return
        self.uptime += int((self._boottime() - time.clock_gettime(time.CLOCK_BOOTTIME)) - self.uptime) + 1
        self._signal(signal.SIGTERM)
        try:
            self._agent.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.kill(self._agent_pid, signal.SIGKILL)
            self._agent.wait(timeout=60)
        self._agent = None

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.kill(self._agent_pid, number)
        except ProcessLookupError:
            raise LabError(f"node {self.name}: its agent has ended\n{self.told()}") from None

    def reload(self) -> None:
        """SIGHUP: the document is read again, and the next look at the node is a thorough one."""
        self._signal(signal.SIGHUP)

    def told(self, lines: int = 12) -> str:
        """The end of the agent's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    # -- looking ----------------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """What the verdict file says now."""
        return parse_line((self.run_dir / "verdict").read_text())

    def _sequence_now(self) -> int:
        try:
            return self.verdict().sequence
        except FileNotFoundError:
            return 0

    def findings(self) -> list[dict[str, Any]]:
        """Findings as status.json has them, without those that are well; none until it is written anew after ``heal``."""
        if not (self.run_dir / "status.json").exists():
            return []
        with open(self.run_dir / "status.json", "rb") as file:
            if os.fstat(file.fileno()).st_mtime_ns == self._old_status:
                return []
            data = msgspec.json.decode(file.read())
        return [finding for finding in data["findings"] if finding["level"] != "ok"]

    def until(self, met: Callable[[], bool], what: str, seconds: float = 90) -> None:
        """Wait for something; raises LabError with the end of the agent's log."""
        deadline = time.monotonic() + seconds
        while not met():
            if time.monotonic() > deadline or (self._agent is not None and self._agent.poll() is not None):
                raise LabError(f"node {self.name}: no {what}; its agent's log ends\n{self.told()}")
            time.sleep(0.01)

    def looks(self, count: int) -> None:
        """Wait until the agent has published so many more verdicts."""
        before = self._sequence_now()
        self.until(lambda: self._sequence_now() >= before + count, f"{count} more verdicts")

    # -- breaking and mending ---------------------------------------------------------------------

    def take(self, step: entry.Step) -> None:
        """Let one step happen."""
        match step:
            case entry.Kernel():
                self._kernel(step)
            case entry.Nvml():
                value = dict(step.value) if isinstance(step.value, Mapping) else step.value
                self.faults.set(step.gpu, step.key, value)
            case entry.Call():
                getattr(self.faults, step.verb)(*step.arguments)
            case entry.File():
                self._file(self._placed(step.path), step.text)
            case entry.Job():
                self._record(step.id, f"1\trunning\t{step.uid}\t{step.gpus}\t5\t-\t-\t.\n")
            case entry.Ended():
                self._record(step.id, f"1\tended\t1000\t0-7\t5\t{int(self._boottime())}\t-\t.\n")
            case entry.Elapse():
                self.stop()
                self.uptime += step.seconds
                self.start()
            case entry.Anew():
                self._anew()
            case entry.Fast():
                self.stop()
                self.speed = step.speed
                self.write_document(self._changed)
                self._anew()
            case entry.Clock():
                self._file("/etc/fairlead-sim/clock", f"{step.code} {step.maximum} {step.estimated} {step.step}\n")
            case entry.Document():
                config.document.merge(self._changed, step.changes, "", {})
                self.write_document(self._changed)
                self.reload()
                self.looks(2)
            case entry.Looks():
                self.looks(step.count)
            case entry.Run():
                self._undo.append(step.undo)
                self.command(step.command)

    def command(self, script: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A shell script in the node, as root; raises LabError when it fails."""
        words = [*enter_command(self._pid), "/bin/sh", "-ec", self._placed(script)]
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=120, check=False)
        if check and done.returncode:
            raise LabError(f"node {self.name}: {script}: {done.stderr.strip()}")
        return done

    def _boottime(self) -> float:
        """The node's CLOCK_BOOTTIME."""
        began, then = self._begun
        return then + (time.clock_gettime(time.CLOCK_BOOTTIME) - began) * self.speed

    def _placed(self, text: str) -> str:
        for number, pci in enumerate(self.gpus):
            text = text.replace(f"{{gpu{number}}}", pci).replace(f"{{gpu{number}:bus}}", pci[:-2])
            if f"{{port{number}}}" in text:
                device = os.path.realpath(self.tree / "sys/bus/pci/devices" / pci)
                text = text.replace(f"{{port{number}}}", Path(device).parent.name)
        return text

    def _kernel(self, step: entry.Kernel) -> None:
        lines = []
        for _ in range(step.times):
            self._sequence += 1
            moment = int((self._boottime() - step.seconds_ago) * 1e6)
            lines.append(f"{step.facility << 3 | step.level},{self._sequence},{moment},-;{self._placed(step.text)}\n")
        with open(self.kmsg, "w") as out:
            out.write("".join(lines))

    def _inside(self, path: str) -> Path:
        """Where a path of the node is written from outside: /proc's files are bound one by one."""
        if path.startswith("/proc/"):
            return self.folder / "hw" / path.lstrip("/")
        return self.root / path.lstrip("/")

    def _file(self, path: str, text: str | bytes | None) -> None:
        place = self._inside(path)
        if path not in self._before:
            self._before[path] = self._kept(place)
        if text is None:
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink()
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text if isinstance(text, bytes) else text.encode())

    def _kept(self, place: Path) -> bytes | Path | None:
        if place.is_symlink():
            return Path(os.readlink(place))
        if place.is_dir():
            copy = self.folder / f"kept/{len(self._before)}"
            shutil.copytree(place, copy, symlinks=True)
            return copy
        return place.read_bytes() if place.exists() else None

    def _put_back(self, path: str, before: bytes | Path | None) -> None:
        place = self._inside(path)
        if isinstance(before, bytes):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(before)
        elif before is None:
            place.unlink(missing_ok=True)
        elif before.is_relative_to(self.folder):
            shutil.copytree(before, place, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(before)
        elif not place.is_symlink():
            place.symlink_to(before)

    def _record(self, job: int, text: str) -> None:
        folder = self.run_dir / "jobs"
        (folder / f".{job}").write_text(text)
        (folder / f".{job}").rename(folder / str(job))

    def restore(self) -> None:
        """Put back everything that steps have changed: the machine as its tree describes it."""
        self.faults.clear()
        for path, before in reversed(self._before.items()):
            self._put_back(path, before)
        self._before.clear()
        for undo in reversed(self._undo):
            if undo:
                self.command(undo, check=False)
        self._undo.clear()
        for record in (self.run_dir / "jobs").glob("[0-9]*"):
            record.unlink(missing_ok=True)

    def heal(self, *, fresh: bool = False, seconds: float = 30) -> None:
        """Nothing is wrong and nothing is known of what was: in service, verdict ok. ``fresh``: with an empty history."""
        self.restore()
        if self._changed or self.speed != self._usual:
            fresh = fresh or self.speed != self._usual
            if fresh:
                self.stop()
            self._changed, self.speed = {}, self._usual
            self.write_document()
            if self._agent is not None and not fresh:
                self.reload()
        if not fresh and self._agent is not None:
            try:
                self._cleared(seconds)
            except LabError:
                fresh = True
        if fresh or self._agent is None:
            self._anew()
            self.until(lambda: self.verdict().state.value == "ok", "first verdict that is ok")
            self.until((self.run_dir / "status.json").exists, "first status")
        self._old_status = (self.run_dir / "status.json").stat().st_mtime_ns

    def _cleared(self, seconds: float) -> None:
        """As an admin does it: `fairlead clear` on the whole node, then resume."""
        request = Clear(id=f"score-{time.time_ns():x}", everything=True, who="scorecard", why="the next row", sequence=-1)
        requests.put(str(self.state_dir), str(self.run_dir), request)
        if self.verdict().state.value == "drain":
            self.cluster.scontrol("update", f"nodename={self.name}", "state=resume")
        self.reload()
        self._signal(signal.SIGUSR1)
        self.until(lambda: self.verdict().state.value == "ok", "word that all is well again", seconds)
        self.looks(2)  # one of them began after that
        if self.verdict().state.value != "ok":
            raise LabError(f"node {self.name}: not well again\n{self.told()}")

    def _anew(self) -> None:
        self.stop()
        for folder in (self.state_dir, self.run_dir):
            shutil.rmtree(folder)
            folder.mkdir()
        if self.drained():
            self.cluster.scontrol("update", f"nodename={self.name}", "state=resume")
        self.start()

    def drains_by_default(self, check: str) -> bool:
        """Whether a check's own mode lets it drain; settings are observed until the site says otherwise."""
        loaded = checks.load()
        return check in loaded and loaded[check].mode is Mode.ENFORCE

    def drained(self) -> bool:
        """Whether slurmctld has drained the node."""
        return "DRAIN" in self.cluster.node_state(self.name).states


def _own_folders() -> list[str]:
    """What of this project and its Python a box would hide."""
    wanted = {str(PROJECT), os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix)}
    return sorted(path for path in wanted if path.startswith(_HIDDEN))


def _child(pid: int) -> int:
    """The only child of a process."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if found:
            return int(found[0])
        time.sleep(0.005)
    raise LabError(f"process {pid} has no child")
