"""The tasks of a step share one planner: the first asks, the others take its answer, and nothing that another user put there.

/usr/bin/taskset and the planner are recorders here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.topology.binding import published_files
from tests.hooks.stage import HOOKS, NOBODY, SHELLS, Stage, needs_root
from tests.hooks.steps import for_planner, step
from tests.topology.build import hgx

pytestmark = pytest.mark.root
SAID = "/run/fairlead/said/calls"
RECORDER = f'#!/bin/sh\necho "$SLURM_LOCALID taskset $1 $2" >>{SAID}\n'
ANSWER = "0-13 14 14-27 14 56-69 14 70-83 14"
PLANNER = f'#!/bin/sh\necho "$SLURM_LOCALID planner" >>{SAID}\necho {ANSWER}\n'
MASKS = ",".join(f"0x{((1 << 14) - 1) << first:028X}" for first in (0, 56, 14, 70))
GPUS = "0,1,4,5"
ROOM = "/dev/shm/fairlead.n1.4711.0"
FILE = f"{ROOM}/plan"
QUESTION = f"{MASKS} {GPUS} - -"
ALL = f"""for i in 0 1 2 3; do SLURM_LOCALID=$i {HOOKS}/task-prolog >/dev/null & done; wait"""


@pytest.fixture(scope="module")
def site() -> Iterator[Stage]:
    if needs_root:
        pytest.skip("needs root: the hooks run in a private mount namespace")
    stage = Stage()
    try:
        (stage.run.parent / "recorder").write_text(RECORDER)
        (stage.run.parent / "recorder").chmod(0o755)
        stage.inside("mount", "--bind", "/run/recorder", "/usr/bin/taskset")
        yield stage
    finally:
        stage.close()


@pytest.fixture
def shared(site: Stage) -> Stage:
    """The stage, with an empty /dev/shm and a step of four tasks that the shell leaves to the planner."""
    site.reset()
    site.inside("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
    (site.run / "said").mkdir()
    (site.run / "said").chmod(0o777)
    (site.run / "planner").write_text(PLANNER)
    (site.run / "planner").chmod(0o755)
    (site.run / "topology").write_text(for_planner(published_files.render_topology(hgx())))
    site.hooks_line(python="/run/fairlead/planner")
    return site


def environment(local: int = 1) -> dict[str, str]:
    return {**step(4194000, local, masks=MASKS, gpus=GPUS), "SLURMD_NODENAME": "n1", "PATH": "/usr/bin:/bin"}


def calls(stage: Stage) -> list[str]:
    said = stage.run / "said/calls"
    return sorted(said.read_text().splitlines()) if said.exists() else []


def in_memory(stage: Stage) -> list[str]:
    return os.listdir(f"/proc/{stage.pid}/root/dev/shm")


def tree(stage: Stage) -> dict[str, str]:
    """All that is in /dev/shm, and what the files hold."""
    top = Path(f"/proc/{stage.pid}/root/dev/shm")
    return {str(p.relative_to(top)): p.read_text() if p.is_file() and not p.is_symlink() else "" for p in top.rglob("*")}


def test_all_tasks_are_bound_by_one_plan(shared: Stage) -> None:
    """At once: one asks, and whoever comes after it has answered asks again. Each task has its own share; nothing is left."""
    ran = shared.command("/bin/sh", "-c", ALL, env=environment())
    assert (ran.rc, ran.err) == (0, "")
    bound = [call for call in calls(shared) if "taskset" in call]
    assert bound == [f"{i} taskset -cp {cpus}" for i, cpus in enumerate(ANSWER.split()[::2])]
    assert 1 <= len(calls(shared)) - len(bound) <= 4
    assert in_memory(shared) == []


@pytest.mark.parametrize("shell", list(SHELLS))
def test_an_answer_that_is_there_is_taken(shared: Stage, shell: str) -> None:
    put(shared, f"{QUESTION}\n{ANSWER}\n")
    assert shared.start(shell, "task-prolog", environment(2), as_nobody=True).rc == 0
    assert calls(shared) == ["2 taskset -cp 56-69"]


def test_a_planner_that_knows_none_is_not_asked_again(shared: Stage) -> None:
    put(shared, f"{QUESTION}\n-\n")
    assert shared.start("dash", "task-prolog", environment(), as_nobody=True).rc == 0
    assert calls(shared) == []


def put(stage: Stage, text: str, owner: int = NOBODY) -> None:
    make = f"mkdir -m 700 {ROOM}; printf %s '{text}' >{FILE}; chown {owner} {ROOM} {FILE}; chmod 666 {FILE}"
    stage.inside("sh", "-c", make)


LIE = "98-111 14 98-111 14 98-111 14 98-111 14"
#: What another user has put in the folder's place, or this user's earlier task left there.
NO_ANSWERS = {
    "another's": f"mv {ROOM} /dev/shm/x; mkdir -m 777 {ROOM}; cp /dev/shm/x/plan {ROOM}; rm -r /dev/shm/x; chown -R 4242 {ROOM}",
    "a link": f"mv {ROOM} /dev/shm/there && ln -s there {ROOM} && chown -h {NOBODY} {ROOM}",
    "a link to another place": f"mkdir -m 1777 /dev/shm/in; mv {ROOM} /dev/shm/in/there && ln -s in/there {ROOM}",
    "a link to nothing": f"rm -r {ROOM}; ln -s /dev/shm/made {ROOM}",
    "a file": f"mv {FILE} /dev/shm/x && rmdir {ROOM} && mv /dev/shm/x {ROOM}",
    "a pipe": f"rm -r {ROOM}; mkfifo -m 666 {ROOM}",  # whose other end nobody opens
    "a pipe inside": f"rm {FILE}; mkfifo -m 666 {FILE}",
    "a folder inside": f"rm {FILE}; mkdir {FILE}",
    "another question": f"sed -i 's/- -/- 1/' {FILE}; chown {NOBODY} {FILE}",
    "cut": f"printf %s '{QUESTION}\n98-111 14' >{FILE}",
    "no line": f"printf %s '{QUESTION}' >{FILE}",
    "no /dev/shm": f"rm -r {ROOM}; mount -o remount,ro /dev/shm",
}


@pytest.mark.parametrize("case", NO_ANSWERS)
@pytest.mark.parametrize("shell", list(SHELLS))
def test_what_is_no_answer_is_not_taken(shared: Stage, shell: str, case: str) -> None:
    put(shared, f"{QUESTION}\n{LIE}\n")
    shared.inside("sh", "-ec", NO_ANSWERS[case])
    before = tree(shared)
    ran = shared.start(shell, "task-prolog", environment(), as_nobody=True)
    assert (ran.rc, ran.err) == (0, "")
    wanted = [] if case == "a pipe inside" else ["1 planner", "1 taskset -cp 14-27"]  # the user's own: the CPUs stay
    assert calls(shared) == wanted
    assert tree(shared) == before


def test_who_waits_in_vain_leaves_the_cpus(shared: Stage) -> None:
    """A task that never answers holds the others for 2 s at most."""
    put(shared, "")
    enter = ["nsenter", "-m", "-t", str(shared.pid), "flock", FILE, "sh", "-c", "echo held; exec sleep 600"]
    with subprocess.Popen(enter, stdout=subprocess.PIPE, process_group=0) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
            assert shared.start("dash", "task-prolog", environment(), as_nobody=True).rc == 0
            assert calls(shared) == []
        finally:
            os.killpg(holder.pid, 9)


EXCHANGE = f"""
import os
while True:
    for make in (lambda: os.symlink("/dev/shm/made", {ROOM!r}), lambda: os.symlink("/dev/shm/there", {ROOM!r}),
                 lambda: os.symlink("/dev/shm/in/there", {ROOM!r}), lambda: os.mkdir({ROOM!r}, 0o777)):
        try:
            make()
            for _ in range(20): os.stat({ROOM!r})
        except OSError: pass
        try: os.rmdir({ROOM!r}) if not os.path.islink({ROOM!r}) else os.unlink({ROOM!r})
        except OSError: pass
"""


@pytest.mark.parametrize("shell", list(SHELLS))
def test_names_that_another_user_exchanges_lead_nowhere(shared: Stage, shell: str) -> None:
    """Links into folders and to files of the task's own user, and folders, in turn and as fast as one can, where the kernel's
    protection of links is off: nothing is made, changed or removed but in the step's own folder."""
    own = "mkdir -m 700 there in; mkdir -m 700 in/there; chmod 777 in; : >empty; : >there/plan; : >in/there/plan"
    shared.inside("sh", "-ec", f"cd /dev/shm; {own}; chown {NOBODY} empty there there/plan in/there in/there/plan")
    before = tree(shared)
    enter = ["nsenter", "-m", "-t", str(shared.pid), "setpriv", "--reuid=4242", "--regid=4242", "--clear-groups"]
    with subprocess.Popen([*enter, "/usr/bin/python3", "-Ic", EXCHANGE]) as mallory:
        try:
            for _ in range(25):
                assert shared.start(shell, "task-prolog", environment(), as_nobody=True).rc == 0
        finally:
            mallory.kill()
    shared.inside("rm", "-rf", ROOM)
    assert tree(shared) == before
    assert calls(shared) == ["1 planner"] * 25 + ["1 taskset -cp 14-27"] * 25


@pytest.mark.parametrize("shell", list(SHELLS))
@pytest.mark.parametrize("mode", ["2770", "777"])
def test_a_folder_of_the_users_that_others_may_change_is_not_used(shared: Stage, shell: str, mode: str) -> None:
    """Another user may have moved it there from a folder of their own, and have put anything into it."""
    made = f"mkdir {ROOM}; ln -s /dev/shm/made {ROOM}/plan; chown {NOBODY}:4242 {ROOM}; chmod {mode} {ROOM}"
    shared.inside("sh", "-ec", made)
    before = tree(shared)
    assert shared.start(shell, "task-prolog", environment(), as_nobody=True).rc == 0
    assert tree(shared) == before
    assert calls(shared) == ["1 planner", "1 taskset -cp 14-27"]


def test_what_is_mounted_there_by_another_user_holds_nobody(shared: Stage) -> None:
    """A FUSE mount that all may use and that nobody serves: whoever asks it waits for ever."""
    mount = (
        "import ctypes, os, time\n"
        f"os.mkdir({ROOM!r})\n"
        "fd = os.open('/dev/fuse', os.O_RDWR)\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "said = f'fd={fd},rootmode=40000,user_id=4242,group_id=4242,allow_other'.encode()\n"
        f"done = libc.mount(b'hung', {ROOM!r}.encode(), b'fuse', 0, said)\n"
        "print('mounted' if done == 0 else os.strerror(ctypes.get_errno()), flush=True)\n"
        "time.sleep(600)\n"
    )
    enter = ["nsenter", "-m", "-t", str(shared.pid), sys.executable, "-Ic", mount]
    with subprocess.Popen(enter, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            if (said := server.stdout.readline().strip()) != "mounted":
                pytest.skip(f"no FUSE mount can be made here: {said}")
            began = time.monotonic()
            assert shared.start("dash", "task-prolog", environment(), as_nobody=True).rc == 0
            assert time.monotonic() - began < 5
            assert calls(shared) == ["1 planner", "1 taskset -cp 14-27"]
        finally:
            server.kill()
    shared.inside("umount", "-l", ROOM)
