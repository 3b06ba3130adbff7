"""The process that holds a bare cluster's, or a scorecard node's, namespaces: ``python -m tests.lab.hold SPEC``, a JSON file.

It forks a first process that puts the root together and then only reaps what is reparented to it, prints that
process's pid and waits. It dies with the process that started it, and everything inside dies with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.lab import bounds, box, linux

_NETWORK = ("link set lo up", "link add lab0 type bridge", "addr add 10.77.255.1/32 dev lab0", "link set lab0 up")


def reap() -> None:
    """What is left of an init: forget children until killed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.sigtimedwait({signal.SIGCHLD}, 0.2)


def _join(folders: list[str]) -> Callable[[], Callable[[], None]]:
    def join() -> Callable[[], None]:
        for folder in folders:
            bounds.join(Path(folder))
        return lambda: None

    return join


def main(spec: Path) -> int:
    """Hold the box that ``spec`` describes until killed."""
    given = json.loads(spec.read_text())
    made = box.Box(
        hostname=given["hostname"],
        lower=given["lower"],
        scratch=Path(given["scratch"]),
        sysfs=Path(given["sysfs"]) if given.get("sysfs") else None,
        proc_ro=given.get("proc_ro", False),
        binds=tuple((str(a), str(b), bool(c)) for a, b, c in given["binds"]),
        devices=tuple((str(a), int(b), int(c), int(d)) for a, b, c, d in given["devices"]),
        cgroups=tuple(given["controllers"]),
    )
    ready_read, ready_write = os.pipe()

    def init() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        try:
            box.compose(made)
            # Slurm resolves even 127.0.0.1 with AI_ADDRCONFIG, which wants an address that is not the loopback's.
            for command in _NETWORK:
                subprocess.run(["ip", *command.split()], check=True, capture_output=True)
            os.write(ready_write, b"ready")
        except (OSError, subprocess.CalledProcessError) as error:
            os.write(ready_write, str(error).encode())
            os._exit(70)
        os.close(ready_write)
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1):
            os.dup2(null, fd)
        reap()

    between, pid = box.fork_into(init, cgroup=_join(given["cgroups"]))
    os.close(ready_write)
    answer = os.read(ready_read, 4096).decode()
    print(pid if answer == "ready" else f"failed: {answer}", flush=True)
    os.waitpid(between, 0)
    return 0


if __name__ == "__main__":
    linux.die_with_parent()
    sys.exit(main(Path(sys.argv[1])))
