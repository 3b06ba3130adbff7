"""A user's process passes for no daemon of the system, and for no job step, whatever it calls itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.checks import fabric_manager, imex
from fairlead.daemon.jobs.local_jobs import steps
from fairlead.host import process
from fairlead.host.root import Root
from fairlead.model.tuned_profile import COMM as TUNED
from fairlead.settings.irq_affinity import BALANCER

AGENT = Path(process.__file__).parents[2]
USER = 65432
JOB = 1999999999
DAEMONS = {"nv-fabricmanage": fabric_manager.STAT, "nvidia-imex": imex.STAT, "irqbalance": BALANCER, "tuned": TUNED}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it starts processes of another user")
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process with this command name: a program of that name, or a link of that name to another program."""
    made: list[subprocess.Popen[bytes]] = []
    tmp_path.chmod(0o755)
    place = Path("/tmp") / f"fairlead-impostors-{os.getpid()}"
    place.mkdir(mode=0o755)
    sleep = shutil.which("sleep")
    assert sleep is not None

    def run(name: str, *, user: int | None, link: bool = False, title: str = "") -> subprocess.Popen[bytes]:
        program = place / name
        program.unlink(missing_ok=True)
        program.symlink_to(sleep) if link else shutil.copy(sleep, program)
        child = subprocess.Popen([title or name, "600"], executable=program, user=user, group=user, cwd="/")
        made.append(child)
        while Path(f"/proc/{child.pid}/comm").read_text() != f"{name[:15]}\n":
            time.sleep(0.001)
        return child

    yield run
    for child in made:
        child.kill()
        child.wait()
    shutil.rmtree(place)


def pids(name: str) -> set[int]:
    return {pid for _, pid in process.daemons(name) if isinstance(pid, int)}


@needs_root
@pytest.mark.root
@pytest.mark.parametrize("name", DAEMONS)
def test_only_roots_own_daemon_is_found_among_impostors(start: Start, name: str) -> None:
    before = pids(name)
    start(name, user=USER)
    start(name, user=None, link=True)  # as sudo, run by a user through a link of that name, looks while it waits
    assert pids(name) == before
    if not before:
        assert process.read_text(Root("/"), DAEMONS[name]) is None
    real = start(name, user=None)
    assert pids(name) == before | {real.pid}
    text = process.read_text(Root("/"), DAEMONS[name])
    assert isinstance(text, str) and name in text


@needs_root
@pytest.mark.root
def test_a_known_daemon_whose_number_an_impostor_took_is_looked_for_again(start: Start) -> None:
    real, found = start("nvidia-imex", user=None), process.Found()
    assert found.pid("nvidia-imex", search=True) == real.pid
    false = start("nvidia-imex", user=USER)
    found._pids["nvidia-imex"] = false.pid
    assert found.pid("nvidia-imex", search=False) == real.pid


@needs_root
@pytest.mark.root
def test_a_user_makes_no_job_appear_and_no_node_busy(start: Start) -> None:
    title = f"slurmstepd: [{JOB}.0]"
    for link, user in ((False, USER), (True, None)):
        false = start("slurmstepd", user=user, link=link, title=title)
        assert JOB not in steps()[0] and false.pid not in pids("slurmstepd")
    false = start("slurmd", user=USER, title="slurmd -Nelsewhere")
    assert false.pid not in pids("slurmd") and "elsewhere" not in process.slurmd_names()
    real = start("slurmstepd", user=None, title=title)
    assert JOB in steps()[0] and real.pid in pids("slurmstepd") and process.jobs_running()


def fake(proc: Path, pid: int, name: str, *, uids: str, cgroup: str, exe: str = "/usr/bin/other") -> Path:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "status").write_text(f"Name:\t{name}\\nUid:\t0\t0\t0\t0\nUmask:\t0022\nUid:\t{uids}\nGid:\t0\t0\t0\t0\n")
    (folder / "cgroup").write_text(cgroup)
    (folder / "exe").symlink_to(exe)
    return folder


ROOT, USERS = "0\t0\t0\t0", f"{USER}\t0\t0\t0"


@pytest.mark.parametrize(
    ("uids", "cgroup", "exe", "counts"),
    [
        (ROOT, "0::/system.slice/irqbalance.service\n", "/usr/bin/other", True),
        (ROOT, "4:cpu:/\n1:name=systemd:/system.slice/irqbalance.service\n0::/\n", "/usr/bin/other", True),
        (ROOT, "9:name=systemd:/\n4:cpu:/\n0::/system.slice/irqbalance.service\n", "/usr/bin/other", True),
        (ROOT, "0::/kubepods.slice/x\n", "/usr/sbin/irqbalance", True),  # a container of the site's
        (ROOT, "0::/system.slice/x.service\n", "/usr/sbin/irqbalance-wlm", True),  # as Debian has slurmd
        (ROOT, "0::/user.slice/user-0.slice/session-3.scope\n", "/opt/irqbalance (deleted)", True),  # by hand, before an upgrade
        (USERS, "0::/system.slice/irqbalance.service\n", "/usr/sbin/irqbalance", False),  # set-user-ID: the real one counts
        (ROOT, "0::/system.slice/cron.service\n", "/usr/bin/sudo", False),
        (ROOT, "0::/system.slice/slurmd.service\n", "/usr/bin/sudo", False),
        (ROOT, "0::/user.slice/user-1.slice/system.slice/irqbalance.service\n", "/usr/bin/sudo", False),
        (ROOT, "0::/system.slice/cron.service/system.slice/irqbalance.service\n", "/usr/bin/sudo", False),
        (ROOT, "5:cpuset:/system.slice/irqbalance.service\n1:name=systemd:/user.slice/x\n", "/usr/bin/sudo", False),
        (ROOT, "0::/system.slice/xirqbalance.service\n", "/usr/bin/notirqbalance", False),
        (ROOT, "", "/usr/bin/sudo", False),
        (ROOT, "\xff::::\n\n:\n", "/usr/bin/sudo", False),
    ],
)
def test_what_counts_as_a_daemon(tmp_path: Path, uids: str, cgroup: str, exe: str, counts: bool) -> None:
    fake(tmp_path, 100, "irqbalance", uids=uids, cgroup=cgroup, exe=exe)
    assert process.find("irqbalance", str(tmp_path)) == (100 if counts else None)


def test_slurmds_own_unit_proves_nothing_for_jobs_run_in_it(tmp_path: Path) -> None:
    for pid, name in enumerate(("slurmd", "slurmstepd"), 100):
        fake(tmp_path, pid, name, uids=ROOT, cgroup="1:name=systemd:/system.slice/slurmd.service\n", exe="/usr/bin/sudo")
    assert steps(str(tmp_path)) == (frozenset(), False) and not process.jobs_running(str(tmp_path))


@pytest.mark.timeout(20)
def test_a_command_line_that_never_comes_holds_nobody(tmp_path: Path) -> None:
    """A user may put a command line on a page of a FUSE file: who reads it waits. A FIFO that nobody writes does the same."""
    for pid, name in enumerate(("slurmd", "slurmstepd"), 100):
        os.mkfifo(fake(tmp_path, pid, name, uids=USERS, cgroup="0::/\n", exe=f"/home/{name}") / "cmdline")
    assert steps(str(tmp_path)) == (frozenset(), False)
    assert process.slurmd_names(str(tmp_path)) == [] and not process.jobs_running(str(tmp_path))


FIND_AS_USER = f"""
import os
from fairlead.host import process
os.setresuid({USER}, {USER}, {USER})
print(process.find("nvidia-imex"))
"""


@needs_root
@pytest.mark.root
def test_without_root_it_is_not_known_rather_than_absent(start: Start) -> None:
    """The search runs in its own process, because a user id holds for all threads of a process."""
    real = start("nvidia-imex", user=None)
    if len(pids("nvidia-imex")) > 1:
        pytest.skip("another nvidia-imex runs on this machine")
    said = subprocess.run(
        [sys.executable, "-c", FIND_AS_USER], env={"PYTHONPATH": str(AGENT)}, capture_output=True, text=True, check=False
    )
    assert real.poll() is None and said.stdout.startswith("Missing(") and "only root may see" in said.stdout, said
