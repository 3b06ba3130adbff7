"""Signals, limits and a stop by the task prolog's own user: it ends with 0, soon, and prints what it has."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hooks.disk import BEGIN, Disk, until
from tests.hooks.stage import NOBODY, Stage
from tests.hooks.steps import JOB, exports, lay_out, run, step

pytestmark = pytest.mark.root
ENDING = ["HUP", "INT", "QUIT", "ALRM", "TERM", "USR1", "USR2", "PIPE", "XCPU", "XFSZ", "VTALRM", "PROF"]


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
    """While it waits for the folder: all that end a process by default."""
    unserved(stage, disk, shell)
    with start(stage, shell) as process:
        until(lambda: waits(process))
        for name in ENDING:
            process.send_signal(signal.Signals[f"SIG{name}"])
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


def test_a_stop_leaves_nothing_that_goes_on(stage: Stage, disk: Disk, shell: str) -> None:
    """The stopped shell reaps nobody; what looks for the folder ends by itself, and the rest when it goes on."""
    unserved(stage, disk, shell)
    with start(stage, shell) as process:
        until(lambda: waits(process))
        process.send_signal(signal.SIGSTOP)
        try:
            until(lambda: not looking(disk))
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "export CUDA_DEVICE_ORDER=PCI_BUS_ID\n" in out


def looking(disk: Disk) -> list[str]:
    """Processes that look for the user's folder: its name is among their words."""
    own, found = f"{disk.folder}/{NOBODY}".encode(), []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if own in each.read_bytes().split(b"\0"):
                found.append(each.parent.name)
        except OSError:
            continue
    return found
