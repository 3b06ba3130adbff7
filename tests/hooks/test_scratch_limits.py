"""No user's files, names or use of the disk keep the folders of others from being made and removed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlead.host import scratch_sweep
from fairlead.host.removal import TimeUp
from tests.hooks.disk import BASE, BEGIN, MALLORY, Disk, environment_of, until
from tests.hooks.stage import NOBODY, UNUSED, Stage
from tests.hooks.steps import JOB

pytestmark = pytest.mark.root
LARGEST = 3_000_000_000  # a user id over 2^31, as directory services give them


@contextmanager
def running(stage: Stage, uid: int, script: str, count: int = 1) -> Iterator[None]:
    """Processes of a user, which have begun with what they do."""
    enter = ["nsenter", "-m", "-t", str(stage.pid), "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
    processes = [
        subprocess.Popen([*enter, "/usr/bin/python3", "-Ic", f"print('up', flush=True)\n{script}"], stdout=subprocess.PIPE)
        for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def left_by_an_earlier_boot(disk: Disk, uid: int, files: int) -> Path:
    folder = disk.path / f"fairlead/00000000/{uid}"
    (folder / "4700.1.00").mkdir(parents=True)
    for number in range(files):
        (folder / f"4700.1.00/{number}").touch()
    for path in (folder, folder / "4700.1.00"):
        os.chown(path, uid, uid)
        path.chmod(0o700)
    for path in (disk.path / "fairlead", disk.path / "fairlead/00000000"):
        path.chmod(0o711)
    return folder.parent


@pytest.mark.parametrize("first", [True, False], ids=["before-this-boots-folder", "before-a-users-folder"])
def test_a_disk_without_an_inode_left_is_made_room_on(stage: Stage, disk: Disk, first: bool) -> None:
    """Otherwise what fills it would stay for ever: removing it is what makes room for a new user's folder."""
    stage.inside("mount", "-t", "tmpfs", "-o", "mode=1777,nr_inodes=60", "tmpfs", BASE)
    try:
        if first:
            left_by_an_earlier_boot(disk, NOBODY, 1)
        else:
            disk.serve()
            left_by_an_earlier_boot(disk, NOBODY, 1)
        for number in range(60):
            try:
                (disk.path / f"fairlead/00000000/{NOBODY}/4700.1.00/more{number}").touch()
            except OSError:
                break
        own = disk.begin(uid=MALLORY)
        assert disk.seen(own).parent.stat().st_uid == MALLORY
        assert not (disk.path / "fairlead/00000000").exists()
    finally:
        stage.inside("umount", "-l", BASE)


def test_a_full_disk_is_told_once_a_user(stage: Stage, disk: Disk) -> None:
    """What fills it is not ours to remove: no folder, one line for each user, and the hooks go on."""
    stage.inside("mount", "-t", "tmpfs", "-o", "mode=1777,nr_inodes=60", "tmpfs", BASE)
    try:
        disk.serve()
        for number in range(60):
            try:
                (disk.path / f"elses{number}").touch()
            except OSError:
                break
        assert stage.start("dash", "prolog", {**BEGIN, "SLURM_JOB_UID": str(MALLORY)}).rc == 0
        assert disk.serve().count("no folder for user") == 1
        assert not disk.seen(f"{disk.folder}/{MALLORY}").exists()
    finally:
        stage.inside("umount", "-l", BASE)


def test_twenty_thousand_names_take_seconds_of_work(stage: Stage, disk: Disk) -> None:
    """Names that are no job's need a look at all processes: one look for each user, not one for each name."""
    uid = UNUSED + os.getpid()
    own = disk.begin(uid=uid)
    made = disk.as_user(
        f"import os\nos.chdir({os.path.dirname(own)!r})\nopen('0', 'w').close()\nfor i in range(1, 20000): os.link('0', str(i))",
        uid,
    )
    assert made.rc == 0, made.err
    disk.end()
    disk.under = ("prlimit", "--cpu=3:3")  # seconds of CPU time: a busy machine changes nothing
    assert "removed 20000 files" in disk.serve()
    assert os.listdir(os.path.dirname(disk.seen(own))) == []


def test_more_names_than_one_pass_takes_hold_no_other_user(stage: Stage, disk: Disk) -> None:
    """They stay while their user has a process; the other's folder goes, and so does what epilogs have said of it."""
    uid = UNUSED + os.getpid()
    mine, other = disk.begin(uid=uid, job="4710"), disk.begin()
    assert "TMPDIR" in environment_of(stage, "dash", JOB)
    make = f"import os\nos.chdir({os.path.dirname(mine)!r})\nfor i in range(5000): os.mkdir(str(i))"
    assert disk.as_user(make, uid).rc == 0
    disk.end(job="4710")
    disk.end()
    disk.limits = {"NAMES_MAX": 2000}
    with running(stage, uid, "import time; time.sleep(600)"):
        said = disk.serve()
        assert f"user {uid} left takes too long: it goes on later" in said
        assert not disk.seen(other).exists()
        assert [p.name for p in (stage.run / "ended").iterdir()] == [Path(mine).name], "the other's is dealt with"
        assert disk.serve() == "", "the same is said once"
    disk.limits = {}
    assert "removed 5000 files" in disk.serve() and not list((stage.run / "ended").iterdir())


def test_a_user_who_makes_folders_without_end_takes_no_others_time(stage: Stage, disk: Disk) -> None:
    """Four processes against the one that removes: the others' folders go in the same pass, and the pass ends."""
    mallorys = disk.begin(uid=MALLORY, job="4710")
    others = [disk.begin(uid=uid, job=str(uid)) for uid in (5001, 5002, 5003)]
    for uid, own in zip((MALLORY, 5001, 5002, 5003), (mallorys, *others), strict=True):
        assert disk.as_user(f"import os; os.makedirs({own!r} + '/tmp/a/b')", uid).rc == 0
    loop = f"""
import os
while True:
    try: os.makedirs({mallorys!r} + f"/tmp/{{os.getpid()}}/" + os.urandom(4).hex())
    except OSError: pass
"""
    for job in ("4710", "5001", "5002", "5003"):
        disk.end(job=job)
    disk.limits = {"USER_SECONDS": 2.0}
    with running(stage, MALLORY, loop, count=4):
        until(lambda: len(os.listdir(disk.seen(f"{mallorys}/tmp"))) == 5)  # "a" is there
        began = time.monotonic()
        said = disk.serve()
        took = time.monotonic() - began
    assert f"user {MALLORY} left takes too long" in said and took < 90
    assert [own for own in others if disk.seen(own).exists()] == []
    disk.limits = {}
    disk.serve()
    assert not disk.seen(mallorys).exists()


def test_a_user_id_over_two_to_the_31(stage: Stage, disk: Disk) -> None:
    own, others = disk.begin(uid=LARGEST, job="4710"), disk.begin()
    assert disk.seen(own).parent.stat().st_uid == LARGEST
    assert disk.as_user(f"import os; os.setresuid(*[{LARGEST}] * 3); os.makedirs({own!r} + '/tmp/a')", 0).rc == 0
    assert "TMPDIR" in environment_of(stage, "dash", JOB)
    disk.end(job="4710")
    disk.end()
    assert "Operation not permitted" not in disk.serve()
    assert not disk.seen(own).exists() and not disk.seen(others).exists()


def test_a_record_with_an_id_that_nobody_can_have(stage: Stage, disk: Disk) -> None:
    disk.begin()
    for number, uid in enumerate((0xFFFFFFFF, 1 << 40)):
        (stage.run / f"jobs/{number}").write_text(f"1\trunning\t{uid}\t0\t1.00\t-\t-\t.\n")
    disk.serve()
    assert os.listdir(disk.seen(disk.folder)) == [str(NOBODY)]


def test_junk_among_what_epilogs_have_said(stage: Stage, disk: Disk) -> None:
    """Only root can put it there. It stops no removal, is not followed, and keeps the service from no end."""
    own = disk.begin()
    assert "TMPDIR" in environment_of(stage, "dash", JOB)
    disk.end()
    ended, kept = stage.run / "ended", stage.run / "kept"
    kept.touch()
    for name in ("folder", "12.34.56"):
        (ended / name / "inner").mkdir(parents=True)
    for name in ("fifo", "13.34.56"):
        os.mkfifo(ended / name)
    for name in ("link", "14.34.56"):
        (ended / name).symlink_to("../kept")
    (ended / "-rf\n\x1b[31m").touch()
    for number in range(10_000):
        (ended / f"{number}.1.{number}").touch()
    disk.serve()
    assert not disk.seen(own).exists() and kept.exists()
    assert sorted(os.listdir(ended)) == ["12.34.56", "folder"]


@pytest.mark.parametrize("how", ["immutable", "read-only"])
def test_a_folder_that_cannot_be_removed_is_told_once_and_the_others_go(
    stage: Stage, disk: Disk, tmp_path: Path, how: str
) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    stage.inside("mount", "-o", "loop", str(image), BASE)
    try:
        stage.inside("chmod", "1777", BASE)
        mine, other = disk.begin(uid=MALLORY, job="4710"), disk.begin()
        assert disk.as_user(f"import os; os.makedirs({mine!r} + '/tmp/a')", MALLORY).rc == 0
        assert "TMPDIR" in environment_of(stage, "dash", JOB)
        theirs = os.path.dirname(mine)
        if how == "immutable":
            stage.inside("chattr", "-R", "+i", theirs)
        else:
            stage.inside("mount", "--bind", theirs, theirs)
            stage.inside("mount", "-o", "remount,bind,ro", theirs)
        disk.end(job="4710")
        disk.end()
        said = disk.serve()
        why = "Operation not permitted" if how == "immutable" else "Read-only file system"
        words = f"job folder {Path(mine).name} of user {MALLORY} could not be removed whole: {why}; look at {mine}"
        assert said.count(words) == 1 and said.count("could not be removed") == 1
        assert not disk.seen(other).exists() and not list((stage.run / "ended").iterdir())
        assert "could not be removed" not in disk.serve(), "it is said once"
        stage.inside(*(("chattr", "-R", "-i", theirs) if how == "immutable" else ("umount", theirs)))
        disk.serve()
        assert not disk.seen(mine).exists()
    finally:
        stage.inside("umount", "-l", BASE)


def test_one_user_whose_folder_cannot_be_made_keeps_no_other_from_theirs(stage: Stage, disk: Disk, tmp_path: Path) -> None:
    """An admin made it fast for root: its owner cannot be set."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    stage.inside("mount", "-o", "loop", str(image), BASE)
    try:
        stage.inside("chmod", "1777", BASE)
        disk.serve()
        stage.inside("mkdir", f"{disk.folder}/{MALLORY}")
        stage.inside("chattr", "+i", f"{disk.folder}/{MALLORY}")
        for job, uid in (("4710", MALLORY), ("4711", NOBODY)):
            assert stage.start("dash", "prolog", {**BEGIN, "SLURM_JOB_ID": job, "SLURM_JOB_UID": str(uid)}).rc == 0
        assert disk.serve().count(f"no folder for user {MALLORY}: Operation not permitted") == 1
        assert "TMPDIR" in environment_of(stage, "dash", JOB)
        stage.inside("chattr", "-i", f"{disk.folder}/{MALLORY}")
    finally:
        stage.inside("umount", "-l", BASE)


def test_a_mark_stays_while_anybody_is_not_done_though_its_record_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent forgets the record of an ended job within a second; the mark alone then says that the job has ended."""
    for name in ("jobs", "ended"):
        (tmp_path / name).mkdir()
    mark, top = tmp_path / "ended/7.1", tmp_path / "disk"
    mark.touch()
    (top / "0badcafe/4242").mkdir(parents=True)
    monkeypatch.setattr(scratch_sweep, "RUN", str(tmp_path))
    folder = os.open(top, os.O_RDONLY)
    try:
        late = scratch_sweep.Sweep(scratch_sweep.ScratchDisk(str(tmp_path), "0badcafe"), time.monotonic() - 1)
        monkeypatch.setattr(late, "_user", lambda *_: False)
        with pytest.raises(TimeUp):
            late.all(folder)
        assert mark.exists()
        scratch_sweep.Sweep(scratch_sweep.ScratchDisk(str(tmp_path), "0badcafe"), time.monotonic() + 60).all(folder)
        assert not mark.exists()
    finally:
        os.close(folder)
