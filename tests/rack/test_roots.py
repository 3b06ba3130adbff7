"""The Debian roots and the wheels for their Python."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab import roots, wheels

pytestmark = [pytest.mark.root, pytest.mark.slurm]
PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("suite", roots.SUITES)
def test_root_is_there_and_runs_its_slurm(suite: str) -> None:
    folder = roots.root(suite)
    asked = subprocess.run(["chroot", folder, "/usr/sbin/slurmd", "-V"], capture_output=True, text=True, check=True)
    assert roots.SUITES[suite] in asked.stdout
    assert (folder / "etc/munge/munge.key").read_bytes() == roots.munge_key()
    assert (folder / "etc/munge/munge.key").stat().st_mode & 0o777 == 0o400
    assert roots.uid(folder, roots.USER) == 2001
    assert not list(folder.glob("usr/sbin/policy-rc.d"))


def test_nothing_of_slurm_is_on_the_machine() -> None:
    for program in ("slurmctld", "slurmd", "munged", "sinfo"):
        assert not Path("/usr/sbin", program).exists()
        assert not Path("/usr/bin", program).exists()


@pytest.mark.parametrize("suite", roots.SUITES)
def test_wheels_import_in_the_root(suite: str, tmp_path: Path) -> None:
    house = wheels.wheelhouse(suite)
    names = {path.name.split("-")[0] for path in house.glob("*.whl")}
    assert {"msgspec", "nvidia_ml_py", "prometheus_client"} <= names
    tags = {path.name.split("-")[2] for path in house.glob("msgspec-*.whl")}
    assert tags == {f"cp{wheels.python_version(suite).replace('.', '')}"}


def test_an_ubuntu_root_is_built_from_a_named_and_signed_archive_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAIRLEAD_LAB_UBUNTU_MIRROR", raising=False)
    with pytest.raises(roots.LabError, match="noble: no Ubuntu archive is known here; name one: FAIRLEAD_LAB_UBUNTU_MIRROR=URL"):
        roots.debootstrap("noble", tmp_path)
    monkeypatch.setenv("FAIRLEAD_LAB_UBUNTU_MIRROR", "file:///archive")
    monkeypatch.setattr(roots, "UBUNTU_KEYRING", tmp_path / "keyring.gpg")
    with pytest.raises(roots.LabError, match=r"keyring\.gpg is missing, and nothing unsigned is installed"):
        roots.debootstrap("noble", tmp_path)
    (tmp_path / "keyring.gpg").touch()
    words = roots.debootstrap("noble", tmp_path)
    assert "--force-check-gpg" in words and words[words.index("noble") + 2] == "file:///archive"
    assert roots.root_path("noble").name.startswith("noble-")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_build_leaves_nothing_half_done(tmp_path: Path) -> None:
    """SIGKILL in the middle of debootstrap: no root, no process; the next build starts over and ends well."""
    environment = {**os.environ, "FAIRLEAD_LAB_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.lab.roots", "bookworm"]
    with subprocess.Popen(
        command, cwd=PROJECT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as build:
        assert build.stderr is not None
        for line in build.stderr:
            if "unpacking packages" in line:
                break
        build.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 90
    while [pid for pid in os.listdir("/proc") if pid.isdigit() and _names(pid, tmp_path)]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert [path.name for path in (tmp_path / "roots").iterdir() if not path.name.startswith(".building-")] == []
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=280, check=True)
    built = Path(done.stdout.strip())
    assert (built / "usr/sbin/slurmd-wlm").exists()
    assert list(built.parent.iterdir()) == [built]
    shutil.rmtree(built)  # pytest keeps its folders, and this one holds a whole Debian


def _names(pid: str, folder: Path) -> bool:
    """Whether a process of another session than ours works below ``folder``."""
    try:
        return str(folder).encode() in Path("/proc", pid, "cmdline").read_bytes() and int(pid) != os.getpid()
    except OSError:
        return False
