"""A virtual machine that runs: it boots, is spoken to over ssh, reboots, and leaves nothing behind.

QEMU dies with the process that started it (prctl(2), PR_SET_PDEATHSIG), and the lab's ledger names it, so that `make lab-down`
and the next test run end what a killed one left. What the guest writes lies in a file without a name, which ends with QEMU.
"""

from __future__ import annotations

import itertools
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from tests.lab import linux
from tests.lab.ledger import Ledger, own_name
from tests.lab.pause import pause
from tests.lab.roots import LabError, ssh_key
from tests.vm.emulator import qemu
from tests.vm.qemu import Direct, arguments

#: A boot takes 40 to 70 s under emulation on two idle cores.
BOOT_SECONDS = 600


class Guest:
    """A virtual machine of one release. Use it with ``with``: it boots, and it is ended. ``program`` is another QEMU than the
    one of tests/vm/emulator.py."""

    def __init__(
        self,
        suite: str,
        disk: Path,
        accelerator: str,
        *,
        direct: Direct | None = None,
        writable: bool = False,
        program: str = "",
    ) -> None:
        self.suite, self.disk, self.accelerator = suite, disk, accelerator
        self.direct, self.writable, self.program = direct, writable, program
        self.ledger = Ledger(own_name(f"vm-{suite}"))
        self.port = 0
        self.qemu: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Guest:
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.down()

    @property
    def console(self) -> Path:
        """The file with what the guest has printed on its serial port."""
        return self.ledger.folder / "console"

    def up(self) -> None:
        """Start QEMU and wait until ssh answers. Raises LabError with one line if QEMU or the guest does not start."""
        program = self.program or qemu()
        self.ledger.open()
        try:
            self.port = free_port()
            words = arguments(self.disk, self.port, self.console, self.accelerator, direct=self.direct, writable=self.writable)
            with open(self.ledger.folder / "qemu.log", "wb") as log:
                self.qemu = subprocess.Popen(
                    [program, *words],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=linux.die_with_parent,
                )  # fmt: skip
            self.ledger.process("process", self.qemu.pid)
            self.wait_for_ssh()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End QEMU, as pulling the plug does, and forget everything about the guest."""
        stuck = self.ledger.end() if self.ledger.folder.is_dir() else []
        if self.qemu:
            self.qemu.wait(30)
        assert not stuck, stuck

    def ssh_options(self, answer_seconds: int = 10) -> list[str]:
        """Return ssh's options for this guest. Its host key is new with each image, and nobody else has its port."""
        options = [
            "UserKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=no",
            "LogLevel=ERROR",
            f"ConnectTimeout={answer_seconds}",
            "BatchMode=yes",
        ]
        options += [
            "ControlMaster=auto",
            f"ControlPath={self.ledger.folder}/ssh",
            "ControlPersist=600",
            f"IdentityFile={ssh_key()}",
        ]
        return ["-p", str(self.port), *(word for option in options for word in ("-o", option))]

    def run(
        self, script: str, *, stdin: str | bytes = "", check: bool = True, timeout: float = 120, answer_seconds: int = 10
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell script as root in the guest. ``timeout`` is in seconds. Raises AssertionError if it fails and ``check``."""
        input_bytes = stdin if isinstance(stdin, bytes) else stdin.encode()
        done = subprocess.run(
            ["ssh", *self.ssh_options(answer_seconds), "root@127.0.0.1", script],
            input=input_bytes,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        printed, complained = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if check:
            assert done.returncode == 0, f"{script}: {done.returncode}\n{printed}\n{complained}"
        return subprocess.CompletedProcess(script, done.returncode, printed, complained)

    def ssh(self, script: str, *, stdin: str | bytes = "", timeout: float = 120) -> str:
        """Run a shell script as root in the guest and return what it prints. Raises AssertionError if it fails."""
        return self.run(script, stdin=stdin, timeout=timeout).stdout

    def boot_id(self, answer_seconds: int = 10) -> str:
        """Return the kernel's name for this boot; '' if the guest's sshd does not answer within ``answer_seconds``.

        Raises subprocess.TimeoutExpired if sshd answers and the command then does not end. A guest that shuts down does that.
        """
        words = "cat /proc/sys/kernel/random/boot_id"
        return self.run(words, check=False, timeout=3 * answer_seconds, answer_seconds=answer_seconds).stdout.strip()

    def wait_for_ssh(self, other_than: str = "") -> None:
        """Wait until ssh answers from another boot than ``other_than``. Raises LabError with one line if it never does."""
        end = time.monotonic() + BOOT_SECONDS
        # A connection that begins before the guest's network is up gets its answer late, and a new one gets it at once. On a busy
        # machine sshd itself answers late.
        for tries in itertools.count():
            began = time.monotonic()
            self.still_running()
            try:
                if self.boot_id(min(10, 3 + tries // 6)) not in ("", other_than):
                    return
            except subprocess.TimeoutExpired:
                self._disconnect()
            if began > end:
                raise LabError(
                    f"{self.suite}: no ssh after {BOOT_SECONDS} s under {self.accelerator}; its console said: {self.last_words()}"
                )
            pause(began, 0.5)

    def _disconnect(self) -> None:
        """End the ssh connection that is kept. ssh does not notice that the guest has gone, and would wait for it."""
        subprocess.run(["ssh", *self.ssh_options(), "-O", "exit", "root@127.0.0.1"], capture_output=True, check=False)

    def still_running(self) -> None:
        """Raise LabError with QEMU's own last line if QEMU has ended."""
        assert self.qemu is not None
        if self.qemu.poll() is None:
            return
        said = (self.ledger.folder / "qemu.log").read_text(errors="replace").strip().splitlines()
        reason = said[-1] if said else f"exit code {self.qemu.returncode}"
        raise LabError(f"QEMU ended: {reason}; try FAIRLEAD_VM_ACCEL=tcg, or another QEMU: FAIRLEAD_VM_QEMU=PROGRAM")

    def last_words(self) -> str:
        """Return the last line of the guest's console."""
        said = self.console.read_text(errors="replace").strip().splitlines() if self.console.is_file() else []
        return said[-1] if said else "nothing"

    def reboot(self) -> float:
        """Reboot as a person does, wait until ssh answers, and return the seconds that this took."""
        before, began = self.boot_id(), time.monotonic()
        self.run("systemctl reboot", check=False, timeout=60)
        self._disconnect()
        self.wait_for_ssh(other_than=before)
        return time.monotonic() - began

    def off(self) -> None:
        """Power the guest off and wait until QEMU has ended."""
        assert self.qemu is not None
        self.run("systemctl poweroff", check=False, timeout=60)
        self.qemu.wait(BOOT_SECONDS)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
