"""Only root and the owner of a job read its usage record, and only root writes one. Real users try it, in child processes."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from fairlead.cli import main
from fairlead.controller.running_report import from_lines
from fairlead.host.bounded_disk import Direct
from fairlead.host.file_acl import allow_reading
from fairlead.host.usage_files import UsageFiles

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes other users")]
OWNER, OTHER = 61001, 61002
OPEN, DONE = b'{"job":17,"node":"n1"}\n', b'{"job":17,"node":"n1","end_unix":5.0}\n'
NAME = "17-100.json"


def as_user(uid: int, act: Callable[[], object]) -> str:
    """Return what ``act`` returns as this user, as a text, or the name of the error that it ends with."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            said = str(act())
        except OSError as e:
            said = errno.errorcode[e.errno or 0]
        except BaseException as e:
            said = repr(e)
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def has_acls(folder: Path) -> bool:
    path = folder / "probe"
    path.touch()
    try:
        with path.open("r+b") as f:
            allow_reading(f.fileno(), OWNER)
    except OSError:
        return False
    finally:
        path.unlink()
    return True


@pytest.fixture
def state() -> Iterator[Path]:
    """A folder that every user can reach, as /var/lib/fairlead is."""
    folder = Path(tempfile.mkdtemp(prefix="fairlead-records-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def without_acls(state: Path) -> Iterator[Path]:
    """A file system that has no ACLs."""
    folder = state / "ramfs"
    folder.mkdir()
    subprocess.run(["mount", "-t", "ramfs", "ramfs", str(folder)], check=True, timeout=30)
    folder.chmod(0o755)
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=30)


def written(state: Path, data: bytes = OPEN) -> Path:
    files = UsageFiles(str(state), Direct())
    files.open_files()
    assert files.write({NAME: data}, readers={NAME: OWNER}, sync=False)
    return state / "usage"


def usage_records(state: Path, uid: int, job: str = "17") -> str:
    """What ``fairlead usage-records`` prints as this user in a step of the job."""

    def act() -> str:
        slurm = mock.patch.dict(os.environ, SLURMD_NODENAME="n1")
        with slurm, redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()):
            main(["usage-records", "--lines", job, "--state-dir", str(state)])
        return out.getvalue()

    act()  # as root, so that every module is imported: another user cannot read this interpreter's folder
    return as_user(uid, act)


@pytest.mark.parametrize("data", [OPEN, DONE], ids=["open", "ended"])
def test_the_owner_reads_and_nobody_else(state: Path, data: bytes) -> None:
    if not has_acls(state):
        pytest.skip("/tmp has no ACLs")
    path = written(state, data) / NAME
    assert as_user(OWNER, lambda: path.read_bytes() == data) == "True"
    assert as_user(OTHER, path.read_bytes) == "EACCES"


def test_the_owner_cannot_write_replace_or_remove_it(state: Path) -> None:
    folder = written(state)
    path = folder / NAME
    tries: list[Callable[[], object]] = [
        lambda: path.write_bytes(b"x"),
        lambda: path.open("ab"),
        path.unlink,
        lambda: path.rename(folder / "18-100.json"),
        lambda: path.chmod(0o666),
        lambda: (folder / "19-100.json").write_bytes(OPEN),
        (folder / "17").unlink,
        lambda: os.link(path, folder / "20-100.json"),
        lambda: os.setxattr(path, "system.posix_acl_access", b""),
    ]
    for uid in (OWNER, OTHER):
        for at, act in enumerate(tries):
            assert as_user(uid, act) in ("EACCES", "EPERM"), (uid, at)
    assert path.read_bytes() == OPEN and path.stat().st_uid == 0


def test_nobody_lists_the_jobs_of_others(state: Path) -> None:
    folder = written(state)
    for uid in (OWNER, OTHER):
        assert as_user(uid, lambda: os.listdir(folder)) == "EACCES"


def test_the_record_of_a_running_job_is_found_by_its_owner(state: Path) -> None:
    if not has_acls(state):
        pytest.skip("/tmp has no ACLs")
    written(state)
    (answer,) = from_lines(usage_records(state, OWNER).splitlines()).values()
    assert OPEN in answer
    assert usage_records(state, OTHER).splitlines()[-1] == "fairlead-denied n1"
    assert "denied" not in usage_records(state, OTHER, "18"), "a job without a record"


def test_without_acls_only_root_reads_and_that_is_said(without_acls: Path) -> None:
    assert not has_acls(without_acls)
    path = written(without_acls) / NAME
    assert path.stat().st_mode & 0o777 == 0o600
    assert as_user(OWNER, path.read_bytes) == "EACCES"
    assert usage_records(without_acls, OWNER).splitlines()[-1] == "fairlead-denied n1"


def test_the_link_goes_with_the_end_of_the_record(state: Path) -> None:
    folder = written(state)
    assert os.readlink(folder / "17") == NAME
    files = UsageFiles(str(state), Direct())
    assert files.open_files() == {NAME: OPEN}
    assert not (folder / "17").is_symlink(), "a killed agent has left it"
    later = "17-200.json"
    for name, data, link in ((NAME, OPEN, NAME), (NAME, DONE, ""), (later, OPEN, later), (NAME, DONE, later), (later, DONE, "")):
        assert files.write({name: data}, readers={}, sync=False)
        assert (os.readlink(folder / "17") if (folder / "17").is_symlink() else "") == link


def test_the_files_of_an_earlier_fairlead_are_closed_to_others(state: Path) -> None:
    folder = state / "usage"
    folder.mkdir(mode=0o755)
    for name, data in (("16-100.json", DONE), (NAME, OPEN)):
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o644)
    UsageFiles(str(state), Direct()).open_files()
    assert folder.stat().st_mode & 0o777 == 0o711
    assert [path.stat().st_mode & 0o777 for path in folder.glob("*.json")] == [0o600, 0o600]
