"""The rack's supervisor: ``python -m tests.lab.supervise FOLDER``, FOLDER with hosts.json. Power for every host.

One process for the whole rack. It boots the hosts, boots a host again that rebooted, and keeps each kernel log's
FIFO open, so that records wait for a reader. Commands come as lines through FOLDER/power: ``on NAME``, ``off NAME``
(as pulling the plug), ``cycle NAME``, and ``lose NAME``: it does not come back from its next reboot, until ``on``. It ends
on SIGTERM; everything it started ends with it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.lab import node

#: What a PID namespace's init ends with: SIGHUP stands for a reboot, SIGINT for a halt (pid_namespaces(7)).
REBOOT = 128 + signal.SIGHUP
#: What firmware takes at a reboot, in seconds. slurmctld counts in whole seconds, and takes a node that is back
#: within two of them for one that has not rebooted at all.
FIRMWARE_SECONDS = 1.5


class Supervisor:
    """See the module's text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = Path(json.loads((folder / "hosts.json").read_text())["cgroup"])
        specs = json.loads((folder / "hosts.json").read_text())["hosts"]
        self.hosts = {spec.name: spec for spec in map(node.HostSpec.from_json, specs)}
        self.waiting: dict[int, str] = {}
        self.wanted_on: set[str] = set()
        self.cycled: set[str] = set()
        self.due: dict[str, float] = {}
        self.kernel_logs = {name: self._kernel_log(spec) for name, spec in self.hosts.items() if spec.tree}
        self.own_group = os.open(self.home / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        self.power = os.open(folder / "power", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    @staticmethod
    def _kernel_log(spec: node.HostSpec) -> int:
        path = Path(spec.folder, "sim/kmsg")
        if not path.exists():
            os.mkfifo(path, 0o600)
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def leave(self) -> None:
        """Move the calling process to the supervisor's own cgroup. Needs no path: its root may be gone by then."""
        os.write(self.own_group, b"0")

    def on(self, name: str) -> None:
        """Power on and boot, unless it is on."""
        self.wanted_on.add(name)
        if name in self.waiting.values():
            return
        self.due.pop(name, None)
        spec = node.refitted(self.hosts[name])
        node.power_on(spec, self.kernel_logs.get(name, -1))
        self.waiting[node.boot(spec, self.leave)] = name

    def off(self, name: str) -> None:
        """Pull the plug: SIGKILL to its init."""
        self.wanted_on.discard(name)
        if name in self.waiting.values():
            pid = int(Path(self.hosts[name].folder, "init").read_text().split()[0])
            os.kill(pid, signal.SIGKILL)

    def lose(self, name: str) -> None:
        """Let it not come back from its next reboot."""
        self.wanted_on.discard(name)
        self.due.pop(name, None)

    def _firmware_seconds(self, name: str) -> float:
        path = Path(self.hosts[name].folder, "firmware_seconds")
        return float(path.read_text()) if path.exists() else FIRMWARE_SECONDS

    def reap(self) -> None:
        """Look after every host that ended."""
        while self.waiting:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            name = self.waiting.pop(pid, "")
            if not name:
                continue
            ended = os.waitstatus_to_exitcode(status)
            Path(self.hosts[name].folder, "init").unlink(missing_ok=True)
            print(f"{name}: init ended with {ended}", flush=True)
            if name in self.wanted_on and (ended == REBOOT or name in self.cycled):
                self.cycled.discard(name)
                self.due[name] = time.monotonic() + self._firmware_seconds(name)
            else:
                self.wanted_on.discard(name)

    def command(self, line: str) -> None:
        """One line from the power FIFO; an unknown one is only noted."""
        verb, _, name = line.strip().partition(" ")
        calls: dict[str, Callable[[str], None]] = {"on": self.on, "off": self.off, "cycle": self.cycle, "lose": self.lose}
        if verb in calls and name in self.hosts:
            calls[verb](name)
        else:
            print(f"not understood: {line.strip()!r}", flush=True)

    def cycle(self, name: str) -> None:
        """Pull the plug and power on again."""
        if name in self.waiting.values():
            self.cycled.add(name)
            self.off(name)
            self.wanted_on.add(name)
        else:
            self.on(name)

    def run(self) -> None:
        """Until SIGTERM."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for name in self.hosts:
            self.on(name)
        while True:
            for name in [name for name, when in self.due.items() if when <= time.monotonic()]:
                self.on(name)
            wait = min((when - time.monotonic() for when in self.due.values()), default=None)
            ready, _, _ = select.select([wake_read, self.power], [], [], None if wait is None else max(0.0, wait))
            if wake_read in ready:
                os.read(wake_read, 4096)
                self.reap()
            if self.power in ready:
                for line in os.read(self.power, 65536).decode().splitlines():
                    self.command(line)


if __name__ == "__main__":
    Supervisor(Path(sys.argv[1])).run()
