"""A private mount namespace in which the real hooks find their real paths: /run and /etc are its own tmpfs.

The hooks take no path from their environment, so the tests give them a machine instead. One namespace serves a whole
test module: files are laid out through /proc/PID/root, hooks are started with nsenter.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HOOKS = Path(__file__).resolve().parents[2] / "slurm"
SHELLS: dict[str, tuple[str, ...]] = {
    "dash": ("dash",),
    "bash": ("bash",),
    "bash-posix": ("bash", "--posix"),
    "busybox": ("busybox", "sh"),
}
NOBODY = 65534
#: With this process's pid on top, a user that nobody else is, not even another test process.
UNUSED = 1 << 24


@dataclass(frozen=True)
class Ran:
    rc: int
    out: str
    err: str


def uptime_seconds() -> int:
    """Whole seconds of /proc/uptime, as the hooks read it."""
    return int(Path("/proc/uptime").read_text().split(".")[0])


class Stage:
    """The namespace. ``run`` and ``etc`` are its /run/fairlead and /etc/fairlead as seen from outside."""

    def __init__(self) -> None:
        script = "mount -t tmpfs tmpfs /etc && mount -t tmpfs tmpfs /run && echo ready && exec cat >/dev/null"
        self._holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n", "no private mount namespace"
        self._view = Path(f"/proc/{self._holder.pid}/root")
        self.run = self._view / "run/fairlead"
        self.etc = self._view / "etc/fairlead"
        for name in ("passwd", "group", "ld.so.cache"):
            if Path("/etc", name).exists():
                shutil.copy(Path("/etc", name), self._view / "etc" / name)
        self.reset()

    @property
    def pid(self) -> int:
        """A process in the namespace, for nsenter."""
        return self._holder.pid

    def close(self) -> None:
        assert self._holder.stdin is not None and self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.wait(timeout=10)
        self._holder.stdout.close()

    def reset(self) -> None:
        """An empty /run/fairlead with jobs/, an empty /etc/fairlead."""
        for folder in (self.run, self.etc):
            if folder.is_symlink() or folder.is_file():
                folder.unlink()
            elif folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(mode=0o755)
        (self.run / "jobs").mkdir(mode=0o711)

    def inside(self, *argv: str) -> None:
        """Run a command in the namespace (mount, chmod and the like)."""
        subprocess.run(["nsenter", "-m", "-t", str(self._holder.pid), *argv], check=True, timeout=60)

    def verdict(self, line: str | bytes) -> None:
        (self.run / "verdict").write_bytes(line if isinstance(line, bytes) else line.encode())

    def hooks_line(self, on_stale: str = "allow", profile: str = "full", site: str = "-", python: str = "-") -> None:
        (self.etc / "hooks").write_text(f"1\t{on_stale}\t{profile}\t{site}\t{python}\n")

    def start(
        self,
        shell: str,
        hook: str | Path,
        env: dict[str, str] | None = None,
        *,
        as_nobody: bool = False,
        no_fork: bool = False,
    ) -> Ran:
        """Run a hook by one shell, with a bare environment as slurmd gives it.

        ``no_fork``: as an otherwise unused user whose process limit is 1, so that any fork fails (root is exempt).
        """
        argv = self.words(shell, hook, env, as_nobody=as_nobody, no_fork=no_fork)
        done = subprocess.run(argv, capture_output=True, timeout=120, check=False)
        return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def words(
        self, shell: str, hook: str | Path, env: dict[str, str] | None = None, *, as_nobody: bool = False, no_fork: bool = False
    ) -> list[str]:
        """The command that ``start`` runs: one process, which becomes the shell."""
        argv = ["nsenter", "-m", "-t", str(self._holder.pid)]
        if no_fork:
            argv += ["prlimit", "--nproc=1:1", "setpriv", f"--reuid={UNUSED + os.getpid()}", "--clear-groups", "--"]
        elif as_nobody:
            argv += ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
        argv += ["env", "-i", *(f"{k}={v}" for k, v in (env or {}).items()), self._which(shell), *SHELLS[shell][1:]]
        path = Path(hook) if str(hook).startswith("/") else HOOKS / hook
        return [*argv, str(path)]

    def command(self, *argv: str, env: dict[str, str] | None = None) -> Ran:
        """Run a program as nobody in a bare environment, with the signals as a login shell has them."""
        enter = ["nsenter", "-m", "-t", str(self._holder.pid), "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}"]
        words = ["--clear-groups", "--", "env", "-i", *(f"{k}={v}" for k, v in (env or {}).items())]
        done = subprocess.run([*enter, *words, *argv], capture_output=True, timeout=120, check=False)
        return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    @staticmethod
    def _which(shell: str) -> str:
        path = shutil.which(SHELLS[shell][0])
        assert path, f"{SHELLS[shell][0]} is needed to test the hooks: apt-get install {SHELLS[shell][0]}"
        return path

    def job(self, job_id: int | str) -> list[str]:
        """The fields of a job's record, [] where there is none."""
        path = self.run / "jobs" / str(job_id)
        return path.read_text().removesuffix("\n").split("\t") if path.exists() else []


needs_root = os.geteuid() != 0
