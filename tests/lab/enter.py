"""Run a command inside a box, from the machine: nsenter(1) into every namespace of the box's init."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.roots import LabError

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def enter_command(pid: int | str) -> list[str]:
    """The words before a command that is to run inside the box of init ``pid``."""
    return [
        *("nsenter", f"--target={pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--time"),
        *("--root", "--wd", "--"),
    ]


def run_inside(
    pid: int,
    command: Sequence[str],
    *,
    user: str = "",
    env: Mapping[str, str] | None = None,
    check: bool = True,
    timeout: float = 120,
    stdin: str = "",
    cgroup: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` as ``user`` (root when '') in a clean environment plus ``env``, within ``cgroup`` where one is named.

    Bounded by ``timeout`` seconds (subprocess.TimeoutExpired); raises LabError when ``check`` and it fails.
    """
    environment = {"PATH": PATH, "HOME": f"/home/{user}" if user else "/root", "LC_ALL": "C.UTF-8", **(env or {})}
    inner = ["/usr/bin/env", "-i", *(f"{key}={value}" for key, value in environment.items())]
    if user:
        inner = ["/usr/bin/setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", *inner]
    join = ["/bin/sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$@"', "join"] if cgroup else []
    done = subprocess.run(
        [*join, *enter_command(pid), *inner, *command],
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )
    if check and done.returncode:
        raise LabError(f"{shlex.join(command)} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done
