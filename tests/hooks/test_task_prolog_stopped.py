"""Signals, limits and a stop by the task prolog's own user: it ends with 0, soon, and prints what it has."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hooks.disk import BEGIN, Disk, until
from tests.hooks.stage import NOBODY, UNUSED, Stage
from tests.hooks.steps import JOB, PYTHON, exports, for_planner, lay_out, run, step, two_cpus

pytestmark = pytest.mark.root
HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
HOLDING = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
#: A shell that traps those its own faults raise would repeat the fault for ever. 32 and 33 are libc's.
NOT_TRAPPED = {signal.SIGKILL, signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, 32, 33}
ENDING = sorted(set(range(1, 65)) - HARMLESS - HOLDING - NOT_TRAPPED)


def start(stage: Stage, shell: str, before: Callable[[], object] | None = None) -> subprocess.Popen[str]:
    """The task prolog of the batch step, whose user has no folder on the disk yet."""
    words = stage.words(shell, "task-prolog", JOB, as_nobody=True)
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before)


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def unserved(stage: Stage, disk: Disk, shell: str) -> None:
    """The job's record is there, the user's folder is not: the task prolog waits for it."""
    disk.serve()
    assert stage.start(shell, "prolog", BEGIN).rc == 0


def waits(process: subprocess.Popen[str]) -> bool:
    """For the sleep that bounds it: then every signal meets it there."""
    assert process.poll() is None, "it has ended"
    return any(Path(f"/proc/{child}/comm").read_text() == "sleep\n" for child in children(process.pid))


def test_no_signal_of_its_users_ends_a_task(stage: Stage, disk: Disk, shell: str) -> None:
    """While it waits for the folder: all that end a process by default, and that a program can take."""
    unserved(stage, disk, shell)
    with start(stage, shell) as process:
        until(lambda: waits(process))
        for number in ENDING:
            process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "export CUDA_DEVICE_ORDER=PCI_BUS_ID\n" in out and "TMPDIR" not in out


def test_the_sites_task_prolog_takes_signals_as_ever(stage: Stage, shell: str) -> None:
    lay_out(stage, site="/run/fairlead/site")
    (stage.run / "site").write_text("#!/bin/sh\nkill -TERM $$\n")
    (stage.run / "site").chmod(0o755)
    assert run(stage, shell, JOB).rc == 143


@pytest.mark.parametrize("how", ["blocked", "ignored"])
@pytest.mark.parametrize("there", [True, False])
def test_started_with_all_signals_out_of_reach(stage: Stage, disk: Disk, shell: str, how: str, there: bool) -> None:
    """It ends, with the folder where that is there."""

    def before() -> None:
        every = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, 32, 33}
        if how == "blocked":
            signal.pthread_sigmask(signal.SIG_BLOCK, every)
        else:
            for each in every:
                signal.signal(each, signal.SIG_IGN)

    unserved(stage, disk, shell)
    if there:
        disk.serve()
    with start(stage, shell, before) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "export CUDA_DEVICE_ORDER=PCI_BUS_ID\n" in out and ("export TMPDIR=" in out) is there


def test_without_a_further_process_there_is_no_folder_and_no_wait(stage: Stage, disk: Disk, shell: str) -> None:
    """bash tries each fork again for 15 s and says so, then it ends."""
    disk.begin(shell)
    ran = stage.start(shell, "task-prolog", JOB, no_fork=True)
    assert (ran.rc, ran.err) == (0, "")
    assert "CUDA_DEVICE_ORDER" in exports(ran) and "TMPDIR" not in exports(ran)


@pytest.mark.parametrize("plans", [True, False])
def test_without_a_further_process_nothing_is_bound(stage: Stage, shell: str, plans: bool) -> None:
    lay_out(stage, python="/bin/true", clear=False)
    if not plans:
        stage.inside("rm", "-r", "/run/fairlead/plans")
    ran = stage.start(shell, "task-prolog", step(os.getpid(), 0), no_fork=True)
    assert ran.rc == 0 and "retry" not in ran.err
    if "bash" in shell:  # the others end at their first fork
        assert "CUDA_DEVICE_ORDER" in exports(ran)


#: One that has no process yet, not even a dead one: those count until their parent takes note of them.
USERS = itertools.count(UNUSED + (1 << 23) + os.getpid(), 1 << 23)


@contextmanager
def at_the_limit(stage: Stage, most: int, there: int) -> Iterator[list[str]]:
    """The words before a hook of a user who may have ``most`` processes and has ``there``."""
    limited = [
        "prlimit",
        f"--nproc={most}:{most}",
        "setpriv",
        f"--reuid={next(USERS)}",
        f"--regid={NOBODY}",
        "--clear-groups",
        "--",
    ]
    words = [*limited, "sh", "-c", "while [ $((i += 1)) -lt $0 ]; do sleep 600 >&2 & done; echo there; wait", str(there)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, process_group=0) as others:
        try:
            assert others.stdout is not None and others.stdout.readline() == b"there\n"
            yield ["nsenter", "-m", "-t", str(stage.pid), *limited]
        finally:
            os.killpg(others.pid, signal.SIGKILL)


@pytest.mark.parametrize("what", ["taskset", "planner", "folder"])
def test_at_a_used_up_limit_of_processes_nothing_is_tried_for_long(stage: Stage, disk: Disk, shell: str, what: str) -> None:
    """bash tries each process that it may not have for 15 s, and says so."""
    if what == "folder":
        disk.begin("dash")
    else:
        stage.reset()
        lay_out(stage, python=PYTHON)
        if what == "planner":
            (stage.run / "topology").write_text(for_planner((stage.run / "topology").read_text()))
            shutil.rmtree(stage.run / "plans")
    environment = JOB if what == "folder" else step(4194000, 0)
    with at_the_limit(stage, most=20, there=19) as enter:
        words = stage.words(shell, "task-prolog", environment)
        done = subprocess.run([*enter, *words[words.index("env") :]], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.count("retry")) == (0, 0)
    if "bash" in shell:  # the others end at their first process
        assert "export CUDA_DEVICE_ORDER=PCI_BUS_ID\n" in done.stdout


@two_cpus
def test_below_the_limit_of_processes_the_task_is_bound(stage: Stage, shell: str) -> None:
    """Also where the limit is lower than the number of all threads on the node, so that the user's own are counted."""
    lay_out(stage)
    with at_the_limit(stage, most=60, there=20) as enter:
        words = stage.words(shell, "task-prolog", step(0, 0))
        words = [*enter, *words[words.index("env") :]]
        task = subprocess.Popen([*enter[4:], "sleep", "600"])
        try:
            until(lambda: Path(f"/proc/{task.pid}/comm").read_text() == "sleep\n")
            os.sched_setaffinity(task.pid, {0})
            words[words.index("SLURM_TASK_PID=0")] = f"SLURM_TASK_PID={task.pid}"
            assert subprocess.run(words, capture_output=True, timeout=120, check=False).returncode == 0
            assert os.sched_getaffinity(task.pid) == {1}
        finally:
            task.kill()
            task.wait()


RECORDER = '#!/bin/sh\necho $1 >>/run/said/sleeps\nexec /run/sleep "$@"\n'


@pytest.fixture
def sleeps(stage: Stage) -> Iterator[Path]:
    """What is said of each sleep(1): for how long."""
    said = stage.run.parent / "said"
    said.mkdir(exist_ok=True)
    said.chmod(0o777)
    shutil.copy("/bin/sleep", said.parent / "sleep")
    (said.parent / "recorder").write_text(RECORDER)
    (said.parent / "recorder").chmod(0o755)
    stage.inside("mount", "--bind", "/run/recorder", "/bin/sleep")
    try:
        yield said / "sleeps"
    finally:
        stage.inside("umount", "/bin/sleep")
        shutil.rmtree(said)


def test_what_it_waits_for_has_one_deadline(stage: Stage, disk: Disk, shell: str, sleeps: Path) -> None:
    """A planner that never answers and a folder that never comes: 2 s for both, and the environment is set."""
    unserved(stage, disk, shell)
    stage.hooks_line(python="/run/fairlead/python")
    (stage.run / "python").write_text("#!/bin/sh\nexec /run/sleep 60\n")
    (stage.run / "python").chmod(0o755)
    (stage.run / "topology").write_text(for_planner((stage.run / "topology").read_text()))
    shutil.rmtree(stage.run / "plans")
    ran = run(stage, shell, step(4194000, 0))
    assert (ran.rc, ran.err) == (0, "")
    assert exports(ran)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    waits = [float(line) for line in sleeps.read_text().split() if line != "0.05"] if sleeps.exists() else []
    assert sum(waits) < 0.5, "the planner has had 1.5 s and more of the 2 s"


def test_the_users_history_stays(stage: Stage, shell: str) -> None:
    """`set -o history; export SHELLOPTS HISTFILE` in a job's script: bash adds each line of every script to that file."""
    lay_out(stage)
    history = stage.run / "history"
    history.write_text("ls\n")
    history.chmod(0o666)
    stage.inside("chmod", "777", "/run/fairlead")
    assert run(stage, shell, {**JOB, "SHELLOPTS": "history", "HISTFILE": "/run/fairlead/history"}).rc == 0
    assert history.read_text() == "ls\n"


def test_a_stop_leaves_nothing_that_goes_on(stage: Stage, disk: Disk, shell: str) -> None:
    """The stopped shell reaps nobody; what looks for the folder ends by itself, and the rest when it goes on."""
    unserved(stage, disk, shell)
    with start(stage, shell) as process:
        until(lambda: waits(process))
        process.send_signal(signal.SIGSTOP)
        try:
            until(lambda: not waiting(disk))
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "export CUDA_DEVICE_ORDER=PCI_BUS_ID\n" in out


def waiting(disk: Disk) -> list[str]:
    """Processes that look for the user's folder: its name is among their words."""
    own, found = f"{disk.folder}/{NOBODY}".encode(), []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if own in each.read_bytes().split(b"\0"):
                found.append(each.parent.name)
        except OSError:
            continue
    return found
