"""`make demo` where it cannot run: one clear line, 77 or 69, and nothing touched.

tests/lab/preflight.sh runs in a mount namespace of its own, in which this machine looks like another.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PREFLIGHT = Path(__file__).resolve().parents[1] / "lab/preflight.sh"
pytestmark = [pytest.mark.root, pytest.mark.timeout(60)]
BOOKWORM = 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'


def preflight(folder: Path, change: str = "true", *, release: str = BOOKWORM, become: str = "", **env: str) -> tuple[int, str]:
    """Its exit code and what it says, after ``change`` in its namespace."""
    if os.geteuid():
        pytest.skip("needs root: the machine is dressed up in a mount namespace")
    (folder / "os-release").write_text(release)
    (folder / "none").touch()
    # /etc/os-release is a symlink: what it points to is covered.
    script = f"mount --bind {folder}/os-release /etc/os-release && {change} && cd / && exec {become} sh -s"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        input=PREFLIGHT.read_text(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **env},
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def one_line(said: str) -> str:
    assert said.startswith("lab: ") and said.count("\n") == 1, said
    return said


def test_not_root(tmp_path: Path) -> None:
    code, said = preflight(tmp_path, become="setpriv --reuid=65534 --regid=65534 --clear-groups")
    assert (code, "needs root" in one_line(said)) == (77, True)


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ('ID=fedora\nVERSION_ID=42\nPRETTY_NAME="Fedora Linux 42"\n', "Fedora Linux 42"),
        ('ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04 LTS"\n', "Ubuntu 24.04 LTS"),
        ('ID=debian\nVERSION_ID="11"\nPRETTY_NAME="Debian GNU/Linux 11 (bullseye)"\n', "Debian GNU/Linux 11 (bullseye)"),
        ("", "unknown"),
    ],
)
def test_another_distribution(tmp_path: Path, release: str, name: str) -> None:
    code, said = preflight(tmp_path, release=release)
    assert code == 69
    assert f"needs Debian 12 or newer, this is {name}" in one_line(said)


@pytest.mark.parametrize("release", [BOOKWORM, 'ID=debian\nPRETTY_NAME="Debian GNU/Linux forky/sid"\n'])
def test_debian_12_and_testing_are_right(tmp_path: Path, release: str) -> None:
    """Debian's testing has no VERSION_ID."""
    room = f"mkdir {tmp_path}/room && mount -t tmpfs -o size=5g none {tmp_path}/room"
    assert preflight(tmp_path, room, release=release, FAIRLEAD_LAB_DIR=f"{tmp_path}/room") == (0, "")


def test_no_room(tmp_path: Path) -> None:
    room = f"mkdir {tmp_path}/room && mount -t tmpfs -o size=64m none {tmp_path}/room"
    wanted = f"{tmp_path}/room/not/there/yet"
    code, said = preflight(tmp_path, room, FAIRLEAD_LAB_DIR=wanted)
    assert code == 69
    assert "MiB free in" in one_line(said) and f"{tmp_path}/room" in said and "FAIRLEAD_LAB_DIR" in said
    assert not Path(wanted).exists(), "nothing is touched"


@pytest.mark.parametrize(
    ("file", "text", "word"),
    [("/proc/filesystems", "nodev\tsysfs\n", "overlay"), ("/proc/mounts", "proc /proc proc rw 0 0\n", "cgroup2")],
)
def test_a_kernel_without(tmp_path: Path, file: str, text: str, word: str) -> None:
    (tmp_path / "instead").write_text(text)
    room = f"mkdir {tmp_path}/room && mount -t tmpfs -o size=5g none {tmp_path}/room"
    # /proc/mounts is a link into the process's own folder, where nothing can be mounted: another /proc has it as a file
    if file == "/proc/mounts":
        proc = tmp_path / "proc"
        cover = f"mkdir -p {proc}/self/ns && cp /proc/filesystems {proc}/ && cp {tmp_path}/instead {proc}/mounts"
        cover += f" && touch {proc}/self/ns/net {proc}/self/ns/cgroup && cp /proc/self/mountinfo {proc}/self/"
        cover += f" && mount --bind {proc} /proc"
    else:
        cover = f"mount --bind {tmp_path}/instead {file}"
    code, said = preflight(tmp_path, f"{room} && {cover}", FAIRLEAD_LAB_DIR=f"{tmp_path}/room")
    assert (code, word in one_line(said)) == (69, True), said
