"""One simulated GPU node for every contestant: a machine tree's /sys and /proc, the simulated NVML library, a kernel log.

The node is a box of the lab (namespaces of its own, a private copy-on-write view of this machine's root file system) in which
the real agent runs as on a live machine: NVML through its worker, the kernel log through a FIFO, Slurm through scontrol on
a real slurmctld. Everything is broken from outside, while it runs, and put back by ``restore``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fairlead import checks, config
from fairlead.model.finding import Mode
from fairlead.model.verdict import Verdict, parse_line
from tests.lab import cpus, node
from tests.lab.cluster import Cluster
from tests.lab.enter import enter_command
from tests.lab.faults import Faults
from tests.lab.gpufacts import DRIVER_VERSION
from tests.lab.hardware import simulated_nvml
from tests.lab.ledger import Ledger
from tests.lab.machines import read_nvml
from tests.lab.nvml.library import NAME, write_conf
from tests.lab.roots import LabError
from tests.lab.trees import MACHINES

PROJECT = Path(__file__).resolve().parents[2]
TREE, PROFILE = "hgx-h100.tuned", "hgx-h100"
INSIDE = "/run/score"  # the node's folder in the box
CLOCK = Path(__file__).with_name("clock.c")
CLOCK_SET = "0 2000 15 0\n"  # of sim/clock: synchronised, 2 ms at most, 15 us estimated, never set on
NVML_SECONDS = 8.0
THOROUGH_SECONDS = 15.0  # from one thorough look to the next (host.gather)
UPTIME_SECONDS = 86400  # past every boot grace, whenever this machine booted
_HIDDEN = ("/tmp", "/run", "/dev", "/sys", "/proc")  # folders of this machine that a box covers
#: What is no hardware: the driver's library by name, the fabric manager's process, and what systemd would say of its units.
LIBRARY = f"ln -sfn libnvidia-ml.so.{DRIVER_VERSION} /usr/lib/x86_64-linux-gnu/{NAME}"
SOFTWARE = f"""
cp /bin/sleep {INSIDE}/nv-fabricmanager
setsid {INSIDE}/nv-fabricmanager infinity </dev/null >/dev/null 2>&1 &
printf '#!/bin/sh\\n[ "$1" != list-units ] || cat /etc/fairlead-sim/units\\n' > /usr/bin/systemctl
chmod 755 /usr/bin/systemctl
"""
UNITS = "".join(f"{name} loaded active running\n" for name in ("slurmd.service", "munge.service", "chrony.service"))
#: Nothing across nodes or over days comes between a finding and its drain.
POLICY = {
    "budget_percent": 100,
    "budget_group_percent": 100,
    "common_cause_nodes": 0,
    "suspect_job_nodes": 0,
    "strikes_max": 0,
    "ladder_window_seconds": 0,
}


class Running:
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
        self._unsupported_heard = False  # the agent's worker has heard NOT_SUPPORTED: it does not ask that again for ten minutes

    # -- up and down ------------------------------------------------------------------------------

    def up(self) -> None:
        """Power the node on. From the main thread: the box ends with the thread that made it."""
        self.ledger.open()
        for sub in ("scratch", "disk/up", "hw", "sim", "score/bin", "score/run", "score/state"):
            (self.folder / sub).mkdir(parents=True)
        (self.folder / "log").touch()
        os.mkfifo(self.kmsg)
        (self.folder / "sim/clock").write_text(CLOCK_SET)
        (self.folder / "sim/units").write_text(UNITS)
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
        binds = [*node.binds_of(spec), (str(library), f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{DRIVER_VERSION}", True)]
        binds += [(str(self.folder / "hw/proc/1/mountinfo"), "/proc/1/mountinfo", True)]
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

    def furnish(self) -> None:
        """Apply the node's document to it, as at its boot."""
        self.write_document()
        self.command(LIBRARY)
        self.command(f"PYTHONPATH={PROJECT}/agent {sys.executable} -m fairlead apply --document {INSIDE}/node.json")
        self.command(SOFTWARE)

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
            "nvml_deadline_seconds": 5.0 if self.speed == 1 else 300.0,  # the worker's start takes what it takes
        }
        if self.speed > 1:
            data["agent"]["verdict_ttl_seconds"] = 3600  # late is a loop that does not come round for half a minute of ours
            data["checks"]["nvml_responsive"] |= {"slow_seconds": 600.0, "stuck_seconds": 600.0}
        data["slurm"] |= {
            "conf": "/etc/slurm/slurm.conf",
            "bin_dir": f"{INSIDE}/bin",
            "reconcile_seconds": max(1.0, self.speed),
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
        self._agent_pid = _family(self._agent.pid)[2]
        deadline = time.monotonic() + NVML_SECONDS
        while "NVML" in self.verdict().text and time.monotonic() < deadline:  # its worker is on its way, or broken
            time.sleep(0.05)

    def _clock(self) -> dict[str, str]:
        """The environment with the node's clocks."""
        real = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._begun = (real / 1e9, real / 1e9 + self.uptime)
        ahead = int(self.uptime * 1e9)
        since = (time.clock_gettime_ns(time.CLOCK_MONOTONIC) + ahead, real + ahead, time.time_ns())
        return {
            "LD_PRELOAD": str(cpus.preload(CLOCK)),
            "SCORE_CLOCK": f"{self.speed} {since[0]} {since[1]} {since[2]} {int((self.uptime - UPTIME_SECONDS) * 1e9)}",
            "SCORE_CLOCK_STATE": "/etc/fairlead-sim/clock",
        }

    def stop(self) -> None:
        """SIGTERM, and wait for the end. The node's time is not set back."""
        if self._agent is None:
            return
        self.uptime += int((self._boottime() - time.clock_gettime(time.CLOCK_BOOTTIME)) - self.uptime) + 1
        pids = _family(self._agent.pid)
        if pids[2:]:
            os.kill(pids[2], signal.SIGTERM)
        try:
            self._agent.wait(timeout=90)
        except subprocess.TimeoutExpired:
            for pid in reversed(pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._agent.wait(timeout=60)
        self._agent = None

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.kill(self._agent_pid, number)
        except ProcessLookupError:
            raise LabError(f"node {self.name}: its agent has ended\n{self.log_end()}") from None

    def reload(self) -> None:
        """SIGHUP: the document is read again, and the next look at the node is a thorough one."""
        self._signal(signal.SIGHUP)

    def log_end(self, lines: int = 12) -> str:
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
        return self.findings_now() or []

    def findings_now(self) -> list[dict[str, Any]] | None:
        """The same; None until an agent that was just started has looked at the node."""
        if not (self.run_dir / "status.json").exists():
            return None
        with open(self.run_dir / "status.json", "rb") as file:
            if os.fstat(file.fileno()).st_mtime_ns == self._old_status:
                return None
            data = msgspec.json.decode(file.read())
        found = [finding for finding in data["findings"] if finding["level"] != "ok"]
        return found if found or data["sweep"]["count"] else None

    def until(self, met: Callable[[], bool], what: str, seconds: float = 240) -> None:
        """Wait for something; raises LabError with the end of the agent's log."""
        deadline = time.monotonic() + seconds
        while not met():
            if time.monotonic() > deadline or (self._agent is not None and self._agent.poll() is not None):
                raise LabError(f"node {self.name}: no {what}; its agent's log ends\n{self.log_end()}")
            time.sleep(0.01)

    def sweeps(self, count: int, *, thorough: bool = False) -> None:
        """Wait until the agent has published so many more verdicts, or looked thoroughly so often."""
        sweeps = max(count, int(count * THOROUGH_SECONDS / (self.interval * self.speed)) + 1) if thorough else count
        before = self._sequence_now()
        self.until(lambda: self._sequence_now() >= before + sweeps, f"{sweeps} more verdicts", 240 + 2 * sweeps * self.interval)

    def command(self, script: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A shell script in the node, as root; raises LabError when it fails."""
        words = [*enter_command(self._pid), "/bin/sh", "-ec", self._with_paths(script)]
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=120, check=False)
        if check and done.returncode:
            raise LabError(f"node {self.name}: {script}: {done.stderr.strip() or done.stdout.strip()}")
        return done

    def _boottime(self) -> float:
        """The node's CLOCK_BOOTTIME."""
        began, then = self._begun
        return then + (time.clock_gettime(time.CLOCK_BOOTTIME) - began) * self.speed

    def _with_paths(self, text: str) -> str:
        for number, pci in enumerate(self.gpus):
            text = text.replace(f"{{gpu{number}}}", pci).replace(f"{{gpu{number}:bus}}", pci[:-2])
            if f"{{port{number}}}" in text:
                device = os.path.realpath(self.tree / "sys/bus/pci/devices" / pci)
                text = text.replace(f"{{port{number}}}", Path(device).parent.name)
        return text

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


def _family(pid: int) -> list[int]:
    """A process, its child, and so on: nsenter, unshare, the agent, its NVML worker."""
    found = [pid]
    while True:
        try:
            children = Path(f"/proc/{found[-1]}/task/{found[-1]}/children").read_text().split()
        except OSError:
            return found
        if not children:
            return found
        found.append(int(children[0]))
