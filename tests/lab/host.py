"""One host of a rack as tests and the demo see it: ssh, power, kernel log, and what it has in /sys and /proc."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab import kmsg, linux
from tests.lab.enter import run_inside
from tests.lab.nvml import library
from tests.lab.roots import LabError


@dataclass(frozen=True)
class Host:
    """``folder`` is its own on disk (see node.py), ``rack`` the rack's run folder, ``tree`` its machine tree."""

    name: str
    address: str
    folder: Path
    rack: Path
    tree: Path | None = None

    @property
    def sim(self) -> Path:
        """What the host sees as /etc/fairlead-sim: nvml.conf, nvml.control, kmsg."""
        return self.folder / "sim"

    @property
    def pid(self) -> int:
        """Its init as the machine sees it. Raises LabError when the host is off."""
        try:
            pid, started = (self.folder / "init").read_text().split()[:2]
        except (FileNotFoundError, ValueError):
            raise LabError(f"{self.name} is off; its console: {self.folder / 'log'}") from None
        if linux.start_time(int(pid)) != int(started):
            raise LabError(f"{self.name} is going down; its console: {self.folder / 'log'}")
        return int(pid)

    def path(self, inside: str) -> Path:
        """A file of the running host, such as /proc/sys/kernel/numa_balancing or /sys/..., for the machine to use.

        Absolute symlinks in it would lead to the machine's own files: resolve them with run() first.
        """
        return Path(f"/proc/{self.pid}/root", inside.lstrip("/"))

    def run(
        self,
        command: Sequence[str] | str,
        *,
        user: str = "",
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 120,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command (a string: by its shell) on the host without ssh, in about 5 ms; see enter.run_inside."""
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        return run_inside(self.pid, words, user=user, env=env, check=check, timeout=timeout, stdin=stdin)

    def ssh(self, command: str, *, check: bool = True, timeout: float = 120, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command line as root by ssh. Raises LabError when ``check`` and it fails."""
        words = [str(self.rack / "enter"), "ssh", "-F", str(self.rack / "ssh_config"), self.name, command]
        done = subprocess.run(words, input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout, check=False)
        if check and done.returncode:
            raise LabError(f"{self.name}: {command} ended with {done.returncode}: {done.stderr.strip()}")
        return done

    def wait_ssh(self, seconds: float = 120) -> None:
        """Wait until root can log in; raises LabError with the console's last line."""
        deadline = time.monotonic() + seconds
        last = ""
        while time.monotonic() < deadline:
            try:
                done = self.ssh("true", check=False, timeout=20)
            except subprocess.TimeoutExpired:
                continue
            if done.returncode == 0:
                return
            last = done.stderr.strip()
            time.sleep(0.1)
        console = (self.folder / "log").read_text(errors="replace").splitlines() if (self.folder / "log").exists() else []
        raise LabError(f"no login on {self.name} within {seconds:g} s: {last}; console: {console[-1] if console else 'empty'}")

    # -- power ------------------------------------------------------------------------------------

    def boot_id(self) -> str:
        """The running boot's id. Raises LabError while it is off or its root is not there yet."""
        found = self.path("/proc/sys/kernel/random/boot_id").read_text().strip()
        if found == Path("/proc/sys/kernel/random/boot_id").read_text().strip():  # of the machine: its own is not mounted yet
            raise LabError(f"{self.name} is booting; its console: {self.folder / 'log'}")
        return found

    def reboot(self, seconds: float = 120) -> None:
        """``systemctl reboot`` and wait for a login under a new boot id."""
        before = self.boot_id()
        self.run(["systemctl", "reboot"], check=False)
        self.wait_boot(before, seconds)

    def wait_boot(self, before: str, seconds: float = 120) -> None:
        """Wait until the host runs with another boot id than ``before`` and root can log in."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if self.boot_id() != before:
                    break
            except (LabError, OSError):
                pass
            time.sleep(0.05)
        else:
            raise LabError(f"{self.name} has not rebooted within {seconds:g} s; console: {self.folder / 'log'}")
        self._forget_ssh()
        self.wait_ssh(max(1.0, deadline - time.monotonic()))

    def power(self, verb: str) -> None:
        """``on``, ``off`` (pull the plug), ``cycle``, or ``lose`` (it does not come back from its next reboot, until ``on``).

        By the rack's supervisor; does not wait.
        """
        if verb not in ("on", "off", "cycle", "lose"):
            raise LabError(f"no such power command: {verb!r}")
        with open(self.rack / "power", "w") as fifo:
            fifo.write(f"{verb} {self.name}\n")

    def refit(self, edit: Callable[[Path], object] = lambda tree: None, *, address: str = "", machine_id: str = "") -> None:
        """What it is from its next power-on: the tree it was made with as ``edit`` leaves it (so without one it is itself again),
        at another address, of another installation.
        """
        following = self.folder / "next"
        following.mkdir(exist_ok=True)
        if self.tree is not None:
            made = self.folder / "tree.made"
            if not made.is_symlink():
                made.symlink_to(self.tree.resolve())
            tree = Path(tempfile.mkdtemp(prefix="tree-", dir=self.folder))
            shutil.copytree(made.resolve(), tree, symlinks=True, dirs_exist_ok=True)
            tree.chmod(0o755)
            edit(tree)
            library.write_conf(tree, following / "nvml.conf")
            (following / "tree").unlink(missing_ok=True)
            (following / "tree").symlink_to(tree)
        for name, text in (("address", address), ("machine-id", machine_id)):
            if text:
                (following / name).write_text(f"{text}\n")

    def firmware(self, seconds: float) -> None:
        """What its firmware takes at the reboots to come."""
        (self.folder / "firmware_seconds").write_text(f"{seconds}\n")

    def _forget_ssh(self) -> None:
        """Drop the shared ssh connection of the boot that ended."""
        words = [str(self.rack / "enter"), "ssh", "-F", str(self.rack / "ssh_config"), "-O", "exit", self.name]
        subprocess.run(words, capture_output=True, timeout=30, check=False)

    def monotonic(self) -> float:
        """The host's own CLOCK_MONOTONIC, in seconds: zero is its boot where the kernel has time namespaces."""
        now = time.clock_gettime(time.CLOCK_MONOTONIC)
        offsets = Path(f"/proc/{self.pid}/timens_offsets")
        for line in offsets.read_text().splitlines() if offsets.exists() else ():
            name, seconds, nanoseconds = line.split()
            if name == "monotonic":
                return now + int(seconds) + int(nanoseconds) / 1e9
        return now

    # -- kernel log -------------------------------------------------------------------------------

    def inject_kmsg(self, text: str, *, level: int = 3, facility: int = 0) -> None:
        """Put one kernel record per line of ``text`` into the host's kernel log, in /dev/kmsg's format.

        ``level`` is syslog's severity (3 err); the time is the host's own CLOCK_MONOTONIC. Where no reader has it
        open, up to 64 KiB of records wait. Raises LabError when they are full.
        """
        stamp = int(self.monotonic() * 1e6)
        with open(self.sim / "kmsg.sequence", "a+") as counter:
            fcntl.flock(counter, fcntl.LOCK_EX)
            counter.seek(0)
            sequence = int(counter.read() or 2000)
            lines = text.splitlines()
            counter.truncate(0)
            counter.write(str(sequence + len(lines)))
        fifo = os.open(self.sim / "kmsg", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            for number, line in enumerate(lines, sequence):
                os.write(fifo, kmsg.record(line, number, stamp, level=level, facility=facility).encode())
        except BlockingIOError:
            raise LabError(f"{self.name}: the kernel log's FIFO is full: nothing reads it") from None
        finally:
            os.close(fifo)

    def console(self, lines: int = 20) -> str:
        """The end of its console: systemd's messages."""
        return "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-lines:])

    def units_failed(self) -> list[str]:
        """Names of failed units."""
        listed = self.run(["systemctl", "list-units", "--failed", "--plain", "--no-legend"]).stdout
        return [line.split()[0] for line in listed.splitlines() if line.split()]

    def __str__(self) -> str:
        return f"{self.name} ({self.address}, {shlex.quote(str(self.folder))})"
