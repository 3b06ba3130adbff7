"""What users do to the folders on a local disk, in advance, meanwhile and afterwards; and a disk that hangs."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from tests.hooks.disk import BASE, BEGIN, MALLORY, Disk, environment_of, until
from tests.hooks.stage import NOBODY, Stage
from tests.hooks.steps import JOB, exports, run

pytestmark = pytest.mark.root


def test_nobody_can_make_a_jobs_folder_in_advance(stage: Stage, disk: Disk, shell: str) -> None:
    """Mallory knows the job's number, and even its start: everywhere on the way only root can make names."""
    own = disk.begin(shell)
    tries = [own, f"{disk.folder}/{NOBODY}", f"{disk.folder}/4243", f"{Path(disk.folder).parent}/00000000"]
    script = f"import os\nfor p in {tries!r}:\n try: os.makedirs(p); print('made', p)\n except OSError as e: print(e.errno)"
    assert disk.as_user(script, MALLORY).out.split() == ["13", "17", "13", "13"]  # EACCES; EEXIST for what root made
    assert environment_of(stage, shell, JOB)["TMPDIR"] == f"{own}/tmp"


def test_what_somebody_made_before_the_service_is_not_used(stage: Stage, disk: Disk) -> None:
    """Before its first run ever the disk is as the site made it: then anybody may have made our folder. It says so."""
    elsewhere = disk.path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    for make, words in (
        (lambda top: os.chown(top.mkdir() or top, MALLORY, MALLORY), "does not belong to root alone"),
        (lambda top: top.symlink_to("elsewhere"), "is no folder: remove it"),
        (lambda top: top.touch(), "is no folder: remove it"),
        (lambda top: (top.mkdir(), top.chmod(0o777)), "does not belong to root alone"),
    ):
        top = disk.path / "fairlead"
        make(top)  # type: ignore[no-untyped-call]
        assert words in disk.serve(1) and not disk.folder
        assert (elsewhere / "kept").exists() and top.lstat()
        stage.inside("rm", "-rf", f"{BASE}/fairlead")
    assert "TMPDIR" not in exports(run(stage, "dash", JOB))


@pytest.mark.parametrize("trap", ["link", "file"])
def test_what_the_user_put_there_is_not_followed(stage: Stage, disk: Disk, shell: str, trap: str) -> None:
    own = disk.begin(shell)
    (disk.path / "elsewhere").mkdir(mode=0o777)
    (disk.path / "elsewhere/kept").touch()
    os.chown(disk.path / "elsewhere", NOBODY, NOBODY)
    make = f"ln -s {BASE}/elsewhere {own}" if trap == "link" else f": >{own}"
    assert stage.command("/bin/sh", "-c", make).rc == 0
    assert "TMPDIR" not in exports(run(stage, shell, JOB))
    disk.end(shell)
    disk.serve()
    assert not os.path.lexists(disk.seen(own)) and (disk.path / "elsewhere/kept").exists()


def test_a_tree_that_resists(stage: Stage, disk: Disk) -> None:
    """Hostile names, links out, folders that their owner cannot enter, 3,000 levels, another file system."""
    own = disk.begin()
    assert "TMPDIR" in environment_of(stage, "dash", JOB)
    outside = disk.path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    made = disk.as_user(f"""
import os
os.chdir({own + "/tmp"!r})
for name in ("-rf", "a b", "line\\nbreak", "\\x1b[31m", "locked", "locked/in", "mnt"):
    os.mkdir(name)
for name in ("-rf/--", "a b/*", "locked/in/x"):
    open(name, "w").close()
os.mkfifo("pipe")
os.symlink("../../../../../../outside", "out")
os.symlink("/", "root")
os.chmod("locked/in", 0)
os.chmod("locked", 0)
for i in range(3000):
    os.mkdir("d" * 200, 0o500 if i % 100 == 99 else 0o700)
    os.chmod("d" * 200, 0o700)
    os.chdir("d" * 200)
    open("file", "w").close()
    if i % 100 == 99:
        os.mkdir("shut"), os.chmod("shut", 0)
""")
    assert made.rc == 0, made.err
    stage.inside("mount", "-t", "tmpfs", "-o", f"mode=777,uid={NOBODY}", "tmpfs", f"{own}/tmp/mnt")
    try:
        stage.command("/bin/touch", f"{own}/tmp/mnt/kept")
        disk.end()
        said = disk.serve()
        assert f"job folder {Path(own).name} of user {NOBODY} could not be removed whole: another file system is mounted" in said
        assert os.listdir(disk.seen(own)) == ["tmp"] and os.listdir(disk.seen(f"{own}/tmp")) == ["mnt"]
        assert os.listdir(disk.seen(f"{own}/tmp/mnt")) == ["kept"] and (outside / "kept").exists()
    finally:
        stage.inside("umount", f"{own}/tmp/mnt")


def test_what_cannot_be_removed_is_said_and_the_rest_goes(stage: Stage, disk: Disk, tmp_path: Path) -> None:
    """An immutable file (chattr), and a folder of another user's in which that user has left something."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    stage.inside("mount", "-o", "loop", str(image), BASE)
    try:
        stage.inside("chmod", "1777", BASE)
        own = disk.begin()
        assert "TMPDIR" in environment_of(stage, "dash", JOB)
        stage.command("/bin/sh", "-c", f"cd {own}/tmp; : >fixed; mkdir go shared; : >go/1; chmod 777 shared {own} {own}/tmp")
        disk.seen(f"{disk.folder}/{NOBODY}").chmod(0o711)
        stage.inside("chattr", "+i", f"{own}/tmp/fixed")
        theirs = disk.as_user(f"import os; os.makedirs({own + '/tmp/shared/theirs/x'!r})", MALLORY)
        assert theirs.rc == 0, theirs.err
        disk.end()
        said = disk.serve()
        assert "Operation not permitted" in said and "Permission denied" in said and "\x1b" not in said
        assert sorted(os.listdir(disk.seen(f"{own}/tmp"))) == ["fixed", "shared"]
        assert not list((stage.run / "ended").iterdir()), "it is not tried again at every start"
        stage.inside("chattr", "-i", f"{own}/tmp/fixed")
    finally:
        stage.inside("umount", "-l", BASE)


def test_what_it_may_delete_its_user_may_delete(stage: Stage, disk: Disk) -> None:
    """Mallory moves a folder that a friend shares, with private things below, into a job folder of Mallory's: it stays."""
    own = disk.begin(uid=MALLORY)
    shared = disk.path / "shared"
    (shared / "theirs/private").mkdir(parents=True)
    (shared / "theirs/private/kept").touch()
    for path, mode in ((shared, 0o777), (shared / "theirs", 0o777), (shared / "theirs/private", 0o700)):
        path.chmod(mode)
        os.chown(path, NOBODY, NOBODY)
    moved = disk.as_user(f"import os; os.mkdir({own!r}); os.rename('{BASE}/shared/theirs', {own + '/theirs'!r})", MALLORY)
    assert moved.rc == 0, moved.err
    disk.end()
    disk.serve()
    assert disk.seen(f"{own}/theirs/private/kept").exists()


def test_its_user_can_neither_stop_nor_hold_it(stage: Stage, disk: Disk) -> None:
    """While it removes a large tree as that user as far as files go: no signal, no ptrace, no scheduling, and no /proc of it."""
    own = disk.begin()
    assert "TMPDIR" in environment_of(stage, "dash", JOB)
    fill = f"import os\nos.chdir({own + '/tmp'!r})\nfor i in range(60000): open(str(i), 'w').close()"
    assert disk.as_user(fill).rc == 0
    disk.end()
    attack = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def seize(pid):
    if libc.ptrace(0x4206, pid, 0, 0): raise OSError(ctypes.get_errno(), "")
attacks = {
    "stop": lambda pid: os.kill(pid, signal.SIGSTOP), "kill": lambda pid: os.kill(pid, signal.SIGKILL), "ptrace": seize,
    "renice": lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 20), "affinity": lambda pid: os.sched_setaffinity(pid, {0}),
    "mem": lambda pid: open(f"/proc/{pid}/mem"),
}
print("up", flush=True)
seen = 0
while not seen:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if b"fairlead.host.scratch_folders" not in open(f"/proc/{pid}/cmdline", "rb").read(): continue
            ids = [line.split()[1:] for line in open(f"/proc/{pid}/status") if line.startswith("Uid:")][0]
        except OSError: continue
        if ids != ["0", "0", "0", str(os.getuid())]: continue
        seen = int(pid)
        for name, attack in attacks.items():
            try: attack(seen); print(name, "done")
            except OSError as e: print(name, e.errno)
"""
    enter = ["nsenter", "-m", "-t", str(stage.pid), "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    with subprocess.Popen([*enter, "/usr/bin/python3", "-Ic", attack], stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None and user.stdout.readline() == "up\n"
        assert "removed" in disk.serve() and not disk.seen(own).exists()
        try:
            told, _ = user.communicate(timeout=30)
        finally:
            user.kill()
    refused = dict.fromkeys(("stop", "kill", "ptrace", "renice", "affinity"), "1")  # EPERM; EACCES
    assert dict(line.split() for line in told.splitlines()) == refused | {"mem": "13"}


def test_a_user_who_goes_on_there_ends_it_no_later(stage: Stage, disk: Disk) -> None:
    """Processes that outlived the job rename, make and remove what is being removed; and nothing outside is touched."""
    own = disk.begin()
    assert "TMPDIR" in environment_of(stage, "dash", JOB)
    (disk.path / "outside").mkdir(mode=0o777)
    (disk.path / "outside/kept").touch()
    script = f"""
import os, random
os.chdir({own + "/tmp"!r})
print("up", flush=True)
name = lambda: f"d{{random.randrange(40)}}"
while os.path.exists({own + "/tmp"!r}):
    for act in (lambda: os.mkdir(name()), lambda: os.rename(name(), name()), lambda: os.symlink("{BASE}/outside", name()),
                lambda: os.unlink(name()), lambda: os.makedirs(name() + "/a/b")):
        try: act()
        except OSError: pass
"""
    argv = ["nsenter", "-m", "-t", str(stage.pid), "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    with subprocess.Popen([*argv, "/usr/bin/python3", "-c", script], stdout=subprocess.PIPE) as user:
        assert user.stdout is not None and user.stdout.readline() == b"up\n"
        disk.end()
        try:
            disk.serve()
        finally:
            user.kill()
    disk.serve()
    (stage.run / "ended" / Path(own).name).touch()
    disk.serve()
    assert not disk.seen(own).exists() and (disk.path / "outside/kept").exists()


def test_a_hung_disk_holds_no_task_and_no_epilog(stage: Stage, disk: Disk, shell: str, tmp_path: Path) -> None:
    """A frozen file system (FIFREEZE): who writes waits in D state, where not even SIGKILL ends it. The service waits, once."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    stage.inside("mount", "-o", "loop", str(image), BASE)
    try:
        stage.inside("chmod", "1777", BASE)
        disk.begin(shell, job="4710")
        own = disk.begin(shell)
        assert "TMPDIR" in environment_of(stage, shell, JOB)
        stage.inside("fsfreeze", "--freeze", BASE)
        thaw = threading.Timer(150, stage.inside, ("fsfreeze", "--unfreeze", BASE))  # nobody else could, should it hang
        thaw.start()
        ran = run(stage, shell, {**JOB, "SLURM_JOB_ID": "4710"})
        disk.end(shell)
        with disk.start() as service:
            until(lambda: Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text() != "")  # it removes, and hangs
            stage.start(shell, "prolog", {**BEGIN, "SLURM_JOB_ID": "4712", "SLURM_JOB_UID": str(MALLORY)})
            second = disk.serve(1)
            held = not thaw.is_alive()
            thaw.cancel()
            thaw.join()
            stage.inside("fsfreeze", "--unfreeze", BASE)
            service.communicate(timeout=60)
        said = exports(ran)
        assert "TMPDIR" not in said and said["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert (ran.rc, ran.err) == (0, "") and not held, "all but the first service came to their ends before the thaw"
        assert "does the disk hang?" in second and disk.folder == "", "tasks do not wait for it any more"
        disk.begin(shell, job="4713")
        assert "TMPDIR" in environment_of(stage, shell, {**JOB, "SLURM_JOB_ID": "4713"})  # the disk is back
        assert not disk.seen(own).exists()
    finally:
        stage.inside("umount", "-l", BASE)
