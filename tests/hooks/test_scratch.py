"""A job's folder on the local disk: made by the task prolog as the user, removed by fairlead-scratch@.service after the epilog.

The service's program is run here without systemd; with it: tests/playbooks/test_scratch_disk.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from fairlead.host import mount_lines, scratch
from tests.hooks.disk import BEGIN, Disk, environment_of, until
from tests.hooks.stage import NOBODY, Stage
from tests.hooks.steps import JOB, exports, run

pytestmark = pytest.mark.root


def test_made_as_the_user_and_gone_after_the_epilog(stage: Stage, disk: Disk, shell: str) -> None:
    own = disk.begin(shell)
    said = environment_of(stage, shell, {**JOB, "SLURM_JOB_GPUS": "0"})
    assert said["TMPDIR"] == f"{own}/tmp" and said["TRITON_CACHE_DIR"] == f"{own}/triton"
    info = disk.seen(own).stat()
    assert (info.st_uid, info.st_mode & 0o777) == (NOBODY, 0o700)
    assert environment_of(stage, shell, JOB).keys() & {"TMPDIR", "CUDA_CACHE_PATH"} == {"TMPDIR"}  # no GPU, no caches of GPUs
    disk.serve()
    assert disk.seen(own).exists(), "a running job's folder stays"
    disk.end(shell)
    disk.serve()
    assert not disk.seen(own).exists() and not list((stage.run / "ended").iterdir())


def test_the_epilog_starts_nothing(stage: Stage, disk: Disk, shell: str) -> None:
    """Under a process limit of 1, where every fork fails; and the job is said to have ended all the same."""
    own = disk.begin(shell)
    for path in (stage.run, stage.run / "ended", stage.run / "jobs"):
        path.chmod(0o777)
    (stage.run / "jobs/4711").chmod(0o666)
    ran = stage.start(shell, "epilog", BEGIN, no_fork=True)
    assert (ran.rc, ran.out, ran.err) == (0, "", "") and stage.job(4711)[1] == "ended"
    assert [p.name for p in (stage.run / "ended").iterdir()] == [Path(own).name]


def test_a_users_first_job_waits_for_the_users_folder(stage: Stage, disk: Disk, shell: str) -> None:
    """The service makes it a moment after the prolog's record; the task prolog asks meanwhile."""
    disk.serve()
    assert stage.start(shell, "prolog", BEGIN).rc == 0
    assert not list((disk.path / "fairlead").glob("*/*"))
    timer = threading.Timer(0.3, disk.serve)
    timer.start()
    assert "TMPDIR" in environment_of(stage, shell, JOB)
    timer.join()


def test_a_requeued_job_gets_another_folder(stage: Stage, disk: Disk, shell: str) -> None:
    """It has the same number, and may start here while the first start's files still go, or before anybody removes them."""
    first = disk.begin(shell)
    assert "TMPDIR" in environment_of(stage, shell, JOB)
    stage.command("/bin/sh", "-c", f"cd {first}/tmp && mkdir a b c && touch a/1 b/2 c/3")
    disk.end(shell)
    until(lambda: f"{time.clock_gettime(time.CLOCK_BOOTTIME):.2f}" != Path(first).name.partition(".")[2])
    assert stage.start(shell, "prolog", BEGIN).rc == 0
    second = f"{disk.folder}/{NOBODY}/4711.{stage.job(4711)[4]}"
    assert environment_of(stage, shell, JOB)["TMPDIR"] == f"{second}/tmp" and second != first
    stage.command("/bin/touch", f"{second}/tmp/second")
    disk.serve()
    assert not disk.seen(first).exists() and os.listdir(disk.seen(f"{second}/tmp")) == ["second"]


def test_other_boots_and_what_nobody_uses(stage: Stage, disk: Disk) -> None:
    """Folders of an earlier boot go; one of this boot without any record goes once its user has no process here."""
    own = disk.begin()
    earlier = disk.seen(f"{Path(disk.folder).parent}/00000000/{NOBODY}")
    (earlier / "4711.1.00").mkdir(parents=True)
    (earlier / "4711.1.00/file").touch()
    for path in (earlier, earlier / "4711.1.00"):
        os.chown(path, NOBODY, NOBODY)
    lost = Path(own).parent / "4712.1.00"
    stage.command("/bin/mkdir", str(lost), own)
    script = "import time; print('up', flush=True); time.sleep(100)"
    argv = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "/usr/bin/python3", "-c", script]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        disk.serve()
        assert not earlier.parent.exists() and disk.seen(str(lost)).exists()
        process.kill()

    def is_removed() -> bool:
        """Other tests have processes of the same user, for a moment each."""
        disk.serve()
        return not disk.seen(str(lost)).exists()

    until(is_removed)
    assert disk.seen(own).exists(), "its job runs"


@pytest.mark.parametrize("record", [
    "", "1\trunning\t65534\t0\t1.00\t-\t-\t", "1\trunning\t-\t0\t1.00\t-\t-\t.\n",
    "1\trunning\t65534\t0\t-\t-\t-\t.\n", "1\trunning\t65534\t0\t../x\t-\t-\t.\n", "1\trunning\t../0\t0\t1.00\t-\t-\t.\n",
])  # fmt: skip
def test_without_a_whole_record_there_is_no_folder(stage: Stage, disk: Disk, record: str) -> None:
    disk.begin()
    (stage.run / "jobs/4711").write_text(record)
    assert "TMPDIR" not in exports(run(stage, "dash", JOB))
    disk.end()
    assert all(name.replace(".", "").isdigit() for name in os.listdir(stage.run / "ended"))


def test_no_disk_declared_nothing_is_kept_for_anybody(stage: Stage, disk: Disk, shell: str) -> None:
    disk.begin(shell)
    shutil.rmtree(stage.run / "ended")
    disk.end(shell)
    assert stage.job(4711)[1] == "ended" and not (stage.run / "ended").exists()


@pytest.mark.parametrize(
    "table", [None, "", "half a line\n", "x" * 70_000, "/dev/sda /elsewhere ext4 rw 0 0\n", "too large", "a folder"]
)
def test_a_mount_table_that_does_not_say_where_the_folder_is_refuses_it(
    tmp_path: Path, table: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the disk is the machine's own is then not known, and nobody deletes on a file server for want of knowing."""
    base, mounts = tmp_path / "scratch", tmp_path / "mounts"
    base.mkdir(mode=0o755)
    if table == "too large":
        monkeypatch.setattr(mount_lines, "TABLE_MAX_BYTES", 10)
        mounts.write_text("/dev/sda / ext4 rw 0 0\n")
    elif table == "a folder":
        mounts.mkdir()
    elif table is not None:
        mounts.write_text(table)
    assert scratch.fault(str(base), str(mounts)) == f"{mounts} does not say on which file system {base} is"


def test_a_mount_point_with_blanks_in_its_name_is_recognised(tmp_path: Path) -> None:
    base = tmp_path / "my disk\\1"
    base.mkdir(mode=0o755)
    mounts = tmp_path / "mounts"
    escaped = str(base).replace("\\", "\\134").replace(" ", "\\040")
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {escaped} nfs4 rw 0 0\n")
    assert "nfs4, which is not local" in scratch.fault(str(base), str(mounts))


def test_which_folders_can_be_used(tmp_path: Path) -> None:
    base = tmp_path / "scratch"
    base.mkdir(mode=0o755)
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/sda / ext4 rw 0 0\n")
    for mode, usable in ((0o755, True), (0o711, True), (0o1777, True), (0o777, False), (0o775, False)):
        base.chmod(mode)
        assert (scratch.fault(str(base), str(mounts)) == "") is usable, oct(mode)
    link = tmp_path / "link"
    link.symlink_to(base)
    assert "a link on the way" in scratch.fault(str(link), str(mounts))
    assert "No such file" in scratch.fault(str(tmp_path / "none"), str(mounts))
    base.chmod(0o1777)
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n")
    assert "nfs4, which is not local" in scratch.fault(str(base), str(mounts))
    os.chown(base, NOBODY, NOBODY)
    base.chmod(0o1777)
    assert f"owner {NOBODY}" in scratch.fault(str(base), str(mounts))
