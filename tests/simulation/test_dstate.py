"""A call in true D state: the file it writes to lies on a frozen file system."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a loop mount and fsfreeze"),
    pytest.mark.skipif(not shutil.which("mkfs.ext4"), reason="needs mkfs.ext4 (e2fsprogs)"),
]

# Runs in a mount namespace of its own. It thaws and unmounts when its stdin ends, and that is also when the test dies.
KEEPER = """
mount -o loop "$1" "$2" || exit 1
trap '' INT TERM HUP
touch "$2/file"
fsfreeze --freeze "$2" && echo frozen
read -r _
fsfreeze --unfreeze "$2"
echo thawed
for _ in 1 2 3 4 5 6 7 8 9 10; do umount "$2" 2>/dev/null && exit 0; sleep 0.2; done
umount -l "$2"
"""


@contextlib.contextmanager
def frozen(directory: Path) -> Iterator[tuple[int, Path, Callable[[], None]]]:
    """Yield the keeper's pid (whose mount namespace has it), a file on a frozen ext4, and what thaws it."""
    image, mount = directory / "image", directory / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, timeout=60)
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", KEEPER, "keeper", str(image), str(mount)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper:

        def thaw() -> None:
            if not keeper.stdin.closed:
                keeper.stdin.close()
                assert keeper.stdout.readline() == "thawed\n"

        assert keeper.stdout.readline() == "frozen\n"
        yield keeper.pid, mount / "file", thaw


def state(pid: int) -> str:
    """The process's state letter (proc(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def until(condition: Callable[[], bool], stays_seconds: float = 0.0) -> bool:
    """Wait for a condition, that holds for ``stays_seconds``, for at most 90 s."""
    end = time.monotonic() + 90
    since = None
    while time.monotonic() < end:
        if not condition():
            since = None
        else:
            since = since or time.monotonic()
            if time.monotonic() - since >= stays_seconds:
                return True
        time.sleep(0.01)
    return False


def test_a_call_sleeps_uninterruptibly_until_the_thaw(machine, tmp_path):
    code = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceGetTemperature(n.nvmlDeviceGetHandleByIndex(2), 0)"
    with frozen(tmp_path) as (keeper, path, thaw):
        machine.faults.dstate("nvmlDeviceGetTemperature", path, gpu=2)
        enter = ["nsenter", "--mount", f"--target={keeper}", sys.executable, "-c"]
        with subprocess.Popen([*enter, code], env=machine.environment) as client:
            try:
                # D for a moment is a page of the interpreter that comes from the disk
                assert until(lambda: client.poll() is not None or state(client.pid) == "D", 0.3), state(client.pid)
                assert client.poll() is None
                client.send_signal(signal.SIGKILL)
                time.sleep(0.3)
                assert client.poll() is None and state(client.pid) == "D"  # not even SIGKILL ends it
                others = subprocess.run([*enter, code.replace("(2)", "(3)")], env=machine.environment, timeout=120)
                assert others.returncode == 0  # the other GPUs answer
                thaw()
                assert client.wait(90) == -signal.SIGKILL
            finally:
                thaw()
                client.kill()
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    assert str(tmp_path) not in subprocess.run(["losetup", "-a"], capture_output=True, text=True).stdout
