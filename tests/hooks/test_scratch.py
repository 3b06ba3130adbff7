"""A job's folder on the local disk: made by the task prolog as the user, removed after the epilog as that user."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.host import scratch
from fairlead.jobenv.render import render
from fairlead.jobenv.table import assemble
from tests.hooks.stage import HOOKS, NOBODY, Stage
from tests.hooks.steps import JOB, exports, lay_out, run

pytestmark = pytest.mark.root
BASE = "/run/local"
END = {**JOB, "SLURM_JOB_UID": str(NOBODY), "SLURM_JOB_GID": str(NOBODY), "SLURM_JOB_GPUS": "0"}


@pytest.fixture
def disk(stage: Stage) -> Path:
    """A local disk as the agent found it usable."""
    lay_out(stage)
    folder = stage.run.parent / "local"
    stage.inside("rm", "-rf", BASE)
    folder.mkdir()
    folder.chmod(0o1777)
    (stage.run / "env").write_text(render(assemble(scratch=BASE)))
    (stage.run / "scratch").write_text(f"1\t{BASE}\t.\n")
    installed = stage.etc.parent / "slurm/fairlead"
    installed.mkdir(parents=True, exist_ok=True)
    shutil.copy(HOOKS / "scratch-clean", installed)
    return folder


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def given(stage: Stage, shell: str, environment: dict[str, str]) -> dict[str, str]:
    """What a task is given where the disk is well. The hook waits 1.5 s for the folder, which a busy machine may overrun."""
    for _ in range(10):
        if "TMPDIR" in (said := exports(run(stage, shell, environment))):
            break
    return said


def test_made_as_the_user_and_gone_after_the_epilog(stage: Stage, disk: Path, shell: str) -> None:
    said = given(stage, shell, {**JOB, "SLURM_JOB_GPUS": "0"})
    assert said["TMPDIR"] == f"{BASE}/fairlead.4711/tmp" and said["TRITON_CACHE_DIR"] == f"{BASE}/fairlead.4711/triton"
    own = disk / "fairlead.4711"
    assert (own.stat().st_uid, own.stat().st_mode & 0o777) == (NOBODY, 0o700)
    assert given(stage, shell, JOB).keys() & {"TMPDIR", "CUDA_CACHE_PATH"} == {"TMPDIR"}  # no GPU, no caches of GPUs
    ran = stage.start(shell, "epilog", END)
    assert (ran.rc, ran.out, ran.err) == (0, "", "")
    until(lambda: not own.exists())


def test_a_hung_disk_holds_no_task(stage: Stage, disk: Path, shell: str, tmp_path: Path) -> None:
    """A frozen file system (FIFREEZE): mkdir waits in D state, where not even SIGKILL ends it."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    stage.inside("mount", "-o", "loop", str(image), BASE)
    try:
        stage.inside("chmod", "1777", BASE)
        stage.inside("fsfreeze", "--freeze", BASE)
        began = time.monotonic()
        thaw = threading.Timer(30, stage.inside, ("fsfreeze", "--unfreeze", BASE))  # nobody else could, should it hang
        thaw.start()
        ran = run(stage, shell, JOB)
        took = time.monotonic() - began
        thaw.cancel()
        thaw.join()
        stage.inside("fsfreeze", "--unfreeze", BASE)
        said = exports(ran)
        assert "TMPDIR" not in said and said["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert (ran.rc, ran.err) == (0, "") and took < 30  # a second and what a busy machine adds: before the thaw
        assert given(stage, shell, JOB)["TMPDIR"] == f"{BASE}/fairlead.4711/tmp"  # the disk is back
    finally:
        stage.inside("umount", "-l", BASE)


@pytest.mark.parametrize("trap", ["link", "theirs", "file"])
def test_what_somebody_else_put_there_is_not_used(stage: Stage, disk: Path, shell: str, trap: str) -> None:
    own, elsewhere = disk / "fairlead.4711", disk / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    os.chown(elsewhere, NOBODY, NOBODY)
    if trap == "link":
        own.symlink_to("elsewhere")
    elif trap == "file":
        own.touch()
    else:
        own.mkdir(mode=0o755)
        (own / "kept").touch()
    assert "TMPDIR" not in exports(run(stage, shell, JOB))
    assert stage.start(shell, "epilog", END).rc == 0
    assert own.lstat() and (elsewhere / "kept").exists() and (trap != "theirs" or (own / "kept").exists())


def test_a_tree_that_resists(stage: Stage, disk: Path) -> None:
    """Hostile names, links out, folders that their owner cannot enter, a deep one, and another file system inside."""
    own = disk / "fairlead.4711"
    outside = disk / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    script = (
        f"mkdir -m 700 -p {BASE}/fairlead.4711/tmp/mnt && cd {BASE}/fairlead.4711/tmp && mkdir -p -- -rf 'a b' locked/in &&"
        ' mkdir "$(printf "line\\nbreak")" && : >"-rf/--" && : >"a b/*" && ln -s ../../outside out && ln -s / root &&'
        " mkfifo pipe && : >locked/in/x && chmod 000 locked/in && chmod 000 locked && i=0 &&"
        " while [ $i -lt 300 ]; do mkdir dddddddddddddddddddd && cd -P dddddddddddddddddddd; i=$((i+1)); done"
    )
    ran = stage.command("/bin/sh", "-c", script)
    assert ran.rc == 0, ran.err
    stage.inside("mount", "-t", "tmpfs", "-o", f"mode=777,uid={NOBODY}", "tmpfs", f"{BASE}/fairlead.4711/tmp/mnt")
    stage.command("/bin/touch", f"{BASE}/fairlead.4711/tmp/mnt/kept")
    assert stage.start("dash", "epilog", END).rc == 0
    assert not own.exists()  # at once, under this name
    (moved,) = disk.glob("fairlead.4711.*")
    until(lambda: sorted(os.listdir(moved / "job")) == ["tmp"] and os.listdir(moved / "job/tmp") == ["mnt"])
    assert os.listdir(moved / "job/tmp/mnt") == ["kept"] and (outside / "kept").exists()
    stage.inside("umount", f"{BASE}/{moved.name}/job/tmp/mnt")


def test_the_same_job_started_again_keeps_its_own(stage: Stage, disk: Path, shell: str) -> None:
    """A requeued job has the same number, and may start here while the first one's files still go."""
    run(stage, shell, JOB)
    stage.command("/bin/sh", "-c", f"cd {BASE}/fairlead.4711/tmp && mkdir a b c && touch a/1 b/2 c/3")
    assert stage.start(shell, "epilog", END).rc == 0
    assert "TMPDIR" in given(stage, shell, JOB)
    (disk / "fairlead.4711/tmp/second").touch()
    until(lambda: sorted(os.listdir(disk)) == ["fairlead.4711"])
    assert os.listdir(disk / "fairlead.4711/tmp") == ["second"]


def test_the_epilog_does_not_wait_for_it(stage: Stage, disk: Path) -> None:
    """A removal that hangs (a stand-in that sleeps): the epilog has ended, the other is in a session of its own."""
    (stage.etc.parent / "slurm/fairlead/scratch-clean").write_text(
        "exec >/dev/null 2>&1\necho $$ >/run/local/pid\nexec sleep 61\n"
    )
    assert "TMPDIR" in given(stage, "dash", JOB)
    assert stage.start("dash", "epilog", END).rc == 0
    until(lambda: (disk / "pid").exists() and (disk / "pid").read_text().endswith("\n"))
    pid = int((disk / "pid").read_text())
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        assert int(stat[3]) == pid  # its session
        assert f"Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}" in Path(f"/proc/{pid}/status").read_text()
    finally:
        subprocess.run(["kill", str(pid)], check=False)


def test_a_disk_that_hangs_does_not_hang_the_epilog(stage: Stage, disk: Path) -> None:
    """A stand-in for mkdir that sleeps, as a disk does that no longer answers: the epilog ends, the other still waits."""
    run(stage, "dash", JOB)
    stub = stage.etc / "mkdir"
    stub.write_text(f"#!/bin/sh\necho $$ >{BASE}/pid\nexec sleep 120\n")
    stub.chmod(0o755)
    stage.inside("mount", "--bind", "/etc/fairlead/mkdir", os.path.realpath("/usr/bin/mkdir"))
    try:
        assert stage.start("dash", "epilog", END).rc == 0
        until(lambda: (disk / "pid").exists() and (disk / "pid").read_text().endswith("\n"))
        pid = int((disk / "pid").read_text())
        until(lambda: "sleep" in Path(f"/proc/{pid}/comm").read_text())
        subprocess.run(["kill", str(pid)], check=True)
    finally:
        stage.inside("umount", os.path.realpath("/usr/bin/mkdir"))
    assert (disk / "fairlead.4711").exists()


@pytest.mark.parametrize("line", ["", "1\t/run/local\t", "2\t/run/local\t.\n", "1\trelative\t.\n", "1\t/nowhere\t.\n"])
def test_no_scratch_declared(stage: Stage, disk: Path, line: str) -> None:
    run(stage, "dash", JOB)
    (stage.run / "scratch").write_text(line)
    assert stage.start("dash", "epilog", END).rc == 0
    assert (disk / "fairlead.4711").exists()


def test_which_folders_can_be_used(tmp_path: Path) -> None:
    base = tmp_path / "scratch"
    base.mkdir()
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/sda / ext4 rw 0 0\n")
    assert "needs root and 1777" in scratch.fault(str(base), str(mounts))
    base.chmod(0o1777)
    assert scratch.fault(str(base), str(mounts)) == ""
    link = tmp_path / "link"
    link.symlink_to(base)
    assert "a link on the way" in scratch.fault(str(link), str(mounts))
    assert "No such file" in scratch.fault(str(tmp_path / "none"), str(mounts))
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n")
    assert "nfs4, which is not local" in scratch.fault(str(base), str(mounts))
    os.chown(base, NOBODY, NOBODY)
    base.chmod(0o1777)
    assert f"owner {NOBODY}" in scratch.fault(str(base), str(mounts))
