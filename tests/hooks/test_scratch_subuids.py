"""What a user's containers leave: files of the user's subordinate ids (/etc/subuid). They go where the user holds these ids
alone, and where that is not certain they stay, and an admin is told which, where and what to do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fairlead.host.subuids import FILE_MAX_BYTES, SubUids
from tests.hooks.disk import BASE, MALLORY, Disk, environment_of
from tests.hooks.stage import NOBODY, UNUSED, Stage
from tests.hooks.steps import JOB
from tests.hooks.test_scratch_limits import running

pytestmark = pytest.mark.root
FIRST = 300_000  # of NOBODY's range
MALLORYS = 400_000
RANGES = f"nobody:{FIRST}:65536\n{MALLORY}:{MALLORYS}:65536\n"


@pytest.fixture
def own(stage: Stage, disk: Disk) -> str:
    """A job's folder, in which its user and the user's ids can make what they like; and who holds which ids."""
    subuid = disk.seen("/etc/subuid")
    subuid.write_text(RANGES)
    subuid.chmod(0o644)
    path = disk.begin()
    assert "TMPDIR" in environment_of(stage, "dash", JOB)
    disk.seen(os.path.dirname(path)).chmod(0o711)  # that a container's process holds open what it works in is made simpler so
    assert disk.as_user(f"import os; os.chmod({path!r}, 0o711); os.chmod({path + '/tmp'!r}, 0o777)").rc == 0
    return path


def made(disk: Disk, script: str, uid: int) -> None:
    done = disk.as_user(f"import os\n{script}", uid)
    assert done.rc == 0, done.err


def test_a_containers_files_go_with_the_job(disk: Disk, own: str) -> None:
    """Folders that only a subordinate id may enter, of several ids one in the other, also thousands of levels deep."""
    root, home = f"{own}/tmp/root", f"{own}/tmp/root/home"
    made(disk, f"os.makedirs('{root}/usr'); os.mkdir('{home}'); os.chmod('{home}', 0o777)", FIRST)
    made(disk, f"os.makedirs('{home}/a/b'); open('{home}/a/b/f', 'w'); os.chmod('{home}/a', 0)", FIRST + 1000)
    deep = f"""
os.mkdir('{own}/tmp/deep', 0o700)
os.chdir('{own}/tmp/deep')
for i in range(3000):
    os.mkdir('d' * 200)
    os.chdir('d' * 200)
    open('f', 'w').close()
"""
    made(disk, deep, FIRST + 65535)
    made(disk, f"os.symlink('/', '{own}/tmp/root/usr/link')", FIRST)
    disk.end()
    assert "could not be removed" not in disk.serve()
    assert not disk.seen(own).exists()


def test_a_true_user_namespace_leaves_nothing(disk: Disk, own: str) -> None:
    """As newuidmap(1) maps it: the user is root inside, and gives files to others there."""
    inside = """
import os, sys
os.chdir(sys.argv[1])
os.setresgid(0, 0, 0), os.setresuid(0, 0, 0)
os.makedirs("image/var/lib")
for path, uid in (("image/var/lib", 101), ("image/var", 1), ("image", 65000)):
    open(path + "/file", "w").close()
    os.chown(path + "/file", uid, 0)
    os.chown(path, uid, 0)
    os.chmod(path, 0o500)
"""
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "unshare", "--user"]
    wait = ["sh", "-c", 'echo up; read _; exec /usr/bin/python3 -Ic "$@"', "sh", inside, f"{own}/tmp"]
    argv = ["nsenter", "-m", "-t", str(disk.stage.pid), *user, *wait]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as container:
        assert container.stdout is not None and container.stdout.readline() == "up\n"
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{container.pid}/{name}").write_text(f"0 {NOBODY} 1\n1 {FIRST} 65536\n")
        assert container.communicate("go\n", timeout=120)[1] == "" and container.returncode == 0
    assert {p.stat().st_uid for p in disk.seen(f"{own}/tmp/image").rglob("*")} >= {FIRST, FIRST + 100}
    disk.end()
    assert "could not be removed" not in disk.serve()
    assert not disk.seen(own).exists()


def test_a_containers_process_keeps_a_folder_of_which_nobody_has_said_anything(stage: Stage, disk: Disk) -> None:
    uid = UNUSED + os.getpid()
    subuid = disk.seen("/etc/subuid")
    subuid.write_text(f"{uid}:{FIRST}:10\n")
    subuid.chmod(0o644)
    lost = f"{os.path.dirname(disk.begin(uid=uid))}/4799.1.00"
    made(disk, f"os.mkdir({lost!r})", uid)
    with running(stage, FIRST + 3, "import time; time.sleep(600)"):
        disk.serve()
        assert disk.seen(lost).exists()
    disk.serve()
    assert not disk.seen(lost).exists()


@pytest.mark.parametrize(
    "ranges", ["", f"{MALLORY}:{FIRST}:65536\n", f"{RANGES}{MALLORY}:{FIRST}:65536\n", f"nobody:{FIRST}:4\n"],
    ids=["none", "another's", "two users'", "too short"],
)  # fmt: skip
def test_ids_that_the_user_does_not_hold_alone_stay_and_are_told(disk: Disk, own: str, ranges: str) -> None:
    disk.seen("/etc/subuid").write_text(ranges)
    made(disk, f"os.makedirs('{own}/tmp/x/y'); open('{own}/tmp/x/f', 'w')", FIRST + 4)
    disk.end()
    said = disk.serve()
    assert disk.seen(f"{own}/tmp/x/f").exists()
    whose = f"Permission denied (folders of user {FIRST + 4}, not in this user's range of /etc/subuid)"
    whose += f"; look at {own}, remove it as root"
    assert f"job folder {Path(own).name} of user {NOBODY} could not be removed whole: {whose}" in said
    assert "could not be removed" not in disk.serve(), "once"


def test_a_user_id_of_an_account_is_nobodys_subordinate(disk: Disk, own: str) -> None:
    """A range that was given over the accounts of people: their files are theirs."""
    passwd = disk.seen("/etc/passwd")
    before = passwd.read_text()
    passwd.write_text(f"{before}alice:x:{FIRST + 7}:100::/:/bin/sh\n")
    try:
        made(disk, f"os.makedirs('{own}/tmp/alices/private'); open('{own}/tmp/alices/private/kept', 'w')", FIRST + 7)
        disk.end()
        assert f"folders of user {FIRST + 7}" in disk.serve()
        assert disk.seen(f"{own}/tmp/alices/private/kept").exists()
    finally:
        passwd.write_text(before)


def test_what_another_user_s_container_shared_stays(disk: Disk, own: str) -> None:
    """Mallory's container shares a folder with everybody, with private things below, and NOBODY moves it into the job folder."""
    shared = disk.path / "shared"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    made(disk, f"os.makedirs('{BASE}/shared/theirs/private', 0o777); open('{BASE}/shared/theirs/private/kept', 'w')\n"
               f"os.chmod('{BASE}/shared/theirs/private', 0o700); os.chmod('{BASE}/shared/theirs', 0o777)", MALLORYS)  # fmt: skip
    made(disk, f"os.rename('{BASE}/shared/theirs', '{own}/tmp/theirs')", NOBODY)
    disk.end()
    assert f"folders of user {MALLORYS}" in disk.serve()
    assert disk.seen(f"{own}/tmp/theirs/private/kept").exists()


def test_a_hard_link_to_another_s_file_costs_that_file_nothing(disk: Disk, own: str) -> None:
    elsewhere = disk.path / "elsewhere"
    elsewhere.write_text("kept")
    elsewhere.chmod(0o666)
    os.chown(elsewhere, MALLORYS, MALLORYS)
    made(disk, f"os.mkdir('{own}/tmp/links'); os.link('{BASE}/elsewhere', '{own}/tmp/links/it')", FIRST)
    disk.end()
    disk.serve()
    assert not disk.seen(own).exists() and elsewhere.read_text() == "kept"


def test_owners_that_change_without_end_are_told_and_hold_nobody(stage: Stage, disk: Disk, own: str) -> None:
    """Two ids of one user, one folder in the other, deeper than files may be open."""
    script = f"""
import os
os.chdir('{own}/tmp')
for i in range(40):
    os.mkdir('d', 0o777)
    os.chmod('d', 0o777)
    os.chown('d', {FIRST} + i % 2, {FIRST})
    os.chdir('d')
"""
    made(disk, script, 0)
    other = disk.begin(uid=MALLORY, job="4710")
    made(disk, f"os.makedirs('{other}/tmp')", MALLORY)
    disk.end()
    disk.end(job="4710")
    assert "more than 8 changes of the owner" in disk.serve()
    assert not disk.seen(other).exists()


OWNED = {
    "by name": ("alice:300000:10\n", True),
    "by number": ("1000:300000:10\n", True),
    "the last of the range": ("1000:299991:10\n", True),
    "one behind it": ("1000:299990:10\n", False),
    "one before it": ("1000:300001:10\n", False),
    "of several ranges": ("1000:100000:5\n1000:300000:5\n", True),
    "another's": ("bob:300000:10\n", False),
    "also another's": ("alice:300000:10\nbob:299999:2\n", False),
    "also of somebody whom passwd does not know": ("alice:300000:10\nldapuser:299999:2\n", False),
    "only of somebody whom passwd does not know": ("ldapuser:300000:10\n", False),
    "twice one's own": ("alice:300000:10\n1000:300000:10\n", True),
    "no number": ("alice:300000:x\n", False),
    "negative": ("alice:300000:-1\n", False),
    "nothing in it": ("alice:300000:0\n", False),
    "larger than any id": ("alice:300000:99999999999\n", False),
    "up to the last id": ("alice:300000:4294967295\n", True),
    "Arabic digits": ("alice:٣٠٠٠٠٠:10\n", False),
    "more fields": ("alice:300000:10:1\n", False),
    "empty": ("", False),
    "zeros": ("\0" * 5000, False),
    "no line feed": ("alice:300000:10", True),
}


@pytest.mark.parametrize(("text", "owned"), OWNED.values(), ids=OWNED)
def test_who_holds_an_id(tmp_path: Path, text: str, owned: bool) -> None:
    subuid, passwd = tmp_path / "subuid", tmp_path / "passwd"
    subuid.write_text(text)
    passwd.write_text("root:x:0:0::/:\nalice:x:1000:1000::/:\nbob:x:1001:1001::/:\n")
    assert SubUids(os.fspath(subuid), os.fspath(passwd)).assigned_to(300_000, by=1000) is owned


@pytest.mark.parametrize("uid", [0, 1, 1000, 65534, 65535, 0xFFFFFFFF, 1 << 40, -1])
def test_an_id_of_the_system_or_of_an_account_is_never_held(tmp_path: Path, uid: int) -> None:
    subuid, passwd = tmp_path / "subuid", tmp_path / "passwd"
    subuid.write_text("1000:0:4294967295\n")
    passwd.write_text("alice:x:1000:1000::/:\n")
    known = SubUids(os.fspath(subuid), os.fspath(passwd))
    assert not known.assigned_to(uid, by=1000) and known.assigned_to(65536, by=1000)


@pytest.mark.parametrize("trap", ["of a user's", "writable for others", "a FIFO", "a folder", "too large", "not there"])
@pytest.mark.parametrize("which", ["subuid", "passwd"])
def test_files_that_are_not_roots_alone_say_nothing(tmp_path: Path, which: str, trap: str) -> None:
    (tmp_path / "subuid").write_text("1000:300000:10\n")
    (tmp_path / "passwd").write_text("alice:x:1000:1000::/:\n")
    path = tmp_path / which
    if trap == "of a user's":
        os.chown(path, NOBODY, NOBODY)
    elif trap == "writable for others":
        path.chmod(0o666)
    elif trap == "too large":
        os.truncate(path, FILE_MAX_BYTES + 1)
    else:
        path.unlink()
        if trap == "a FIFO":
            os.mkfifo(path)
        elif trap == "a folder":
            path.mkdir()
    assert not SubUids(os.fspath(tmp_path / "subuid"), os.fspath(tmp_path / "passwd")).assigned_to(300_000, by=1000)
