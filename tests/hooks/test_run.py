"""`fairlead run`: real affinity and memory policy of real commands, as an ordinary user, read back from the kernel."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from fairlead.topology.binding import published_files
from tests.hooks.stage import HOOKS, Ran, Stage
from tests.hooks.steps import PYTHON, lay_out, two_cpus
from tests.lab import cpus
from tests.topology.build import hgx

pytestmark = pytest.mark.root
ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(HOOKS.parent / "agent"), "LC_ALL": "C.UTF-8"}
#: What the kernel says of the command: its CPUs, and the policy of its memory (proc(5), numa_maps).
PRINT_MASK = ("sh", "-c", "grep -h Cpus_allowed_list /proc/self/status; cut -d' ' -f2 /proc/self/numa_maps | sort -u")
#: numactl --interleave=0, for a machine without numactl: set_mempolicy(MPOL_INTERLEAVE, node 0), then the command.
INTERLEAVE = """
import ctypes, os, sys
from fairlead.host import own_task
node = ctypes.c_ulong(1)
own_task._call(0, 3, ctypes.byref(node), 64)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def ranked(local: int, ranks: int = 2, **more: str) -> dict[str, str]:
    return {**ENV, "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(ranks), **more}


def fairlead(stage: Stage, *words: str, env: dict[str, str], before: tuple[str, ...] = ()) -> Ran:
    return stage.command(*before, PYTHON, "-m", "fairlead", "run", *words, env=env)


def mask_of(ran: Ran) -> tuple[str, str]:
    assert ran.rc == 0, ran.err
    lines = ran.out.split("\n")
    return lines[0].split("\t")[1], " ".join(lines[1:]).strip()


@two_cpus
@pytest.mark.parametrize("local", [0, 1])
def test_a_rank_gets_the_cpus_and_memory_of_its_gpu(stage: Stage, local: int) -> None:
    """GPU 0 is on socket 1, GPU 1 on socket 0; this machine may have NUMA node 0 only."""
    lay_out(stage)
    ran = fairlead(stage, "--", *PRINT_MASK, env=ranked(local))
    node = 1 - local
    policy = f"prefer:{node}" if os.path.exists(f"/sys/devices/system/node/node{node}") else "default"
    assert mask_of(ran) == (str(1 - local), policy)
    assert ran.err == ""


@two_cpus
def test_a_users_own_choice_stays(stage: Stage) -> None:
    lay_out(stage, numa=[0, 1])
    taskset = ("taskset", "-c", "1")
    ran = fairlead(stage, "--verbose", *PRINT_MASK, env=ranked(0), before=taskset)
    assert mask_of(ran) == ("1", "default")
    assert (
        ran.err == "fairlead run: rank 0 of 2: unchanged; "
        "somebody has already chosen fewer CPUs than the task has: they stay bound\n"
    )
    ran = fairlead(stage, *PRINT_MASK, env=ranked(0), before=(PYTHON, "-c", INTERLEAVE))
    assert mask_of(ran) == ("0", "interleave:0")
    assert mask_of(fairlead(stage, *PRINT_MASK, env=ranked(0, FAIRLEAD_PROFILE="off"))) == ("0-1", "default")
    assert mask_of(fairlead(stage, *PRINT_MASK, env=ranked(0, FAIRLEAD_SKIP="MEMORY"))) == ("0", "default")


@two_cpus
@pytest.mark.parametrize("doubt", ["no rank", "disabled", "comment", "cut topology", "garbage topology", "unreadable topology"])
def test_in_doubt_the_command_runs_unchanged(stage: Stage, doubt: str) -> None:
    lay_out(stage)
    env = ranked(0, SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,1")
    if doubt == "no rank":
        env = ENV
    elif doubt == "disabled":
        (stage.etc / "disabled").touch()
    elif doubt == "comment":
        (stage.run / "jobs/7").write_text("1\trunning\t65534\t0,1\t5\t-\toff\t.\n")
    elif doubt == "cut topology":
        (stage.run / "topology").write_text("1\tnode\tn1\t2\t0-1\t2\ngpu\t0\t0")
    elif doubt == "garbage topology":
        (stage.run / "topology").write_bytes(b"\xff\x00" * 4000)
    else:
        (stage.run / "topology").unlink()
        (stage.run / "topology").mkdir()
    ran = fairlead(stage, *PRINT_MASK, env=env)
    assert (mask_of(ran), ran.err) == (("0-1", "default"), "")


def test_without_a_published_topology_the_command_runs(stage: Stage) -> None:
    assert mask_of(fairlead(stage, *PRINT_MASK, env=ranked(0)))[1] == "default"


def test_status_signals_and_environment_are_the_commands_own(stage: Stage) -> None:
    lay_out(stage)
    assert fairlead(stage, "sh", "-c", "exit 3", env=ranked(0)).rc == 3
    assert fairlead(stage, "sh", "-c", "kill -TERM $$", env=ranked(0)).rc == -signal.SIGTERM
    missing = fairlead(stage, "--", "/nonexistent/program", env=ranked(0))
    assert (missing.rc, missing.err) == (127, "fairlead run: /nonexistent/program: No such file or directory\n")
    assert fairlead(stage, "--", "/etc", env=ranked(0)).rc == 126
    # Python ignores SIGPIPE and sets LC_CTYPE where the locale is C: neither may reach the command.
    bare = {k: v for k, v in ranked(0).items() if k != "LC_ALL"}
    for words in (("env",), ("grep", "SigIgn", "/proc/self/status")):
        direct = stage.command(*words, env=bare)
        assert fairlead(stage, "--", *words, env=bare).out == direct.out
    assert fairlead(stage, "--", "printf", "%s.", "--json", "-x", "--", "", env=ranked(0)).out == "--json.-x.--.."


@two_cpus
def test_dry_run_and_json_tell_and_change_nothing(stage: Stage) -> None:
    lay_out(stage)
    told = json.loads(fairlead(stage, "--json", "--", "touch", "/run/fairlead/ran", env=ranked(1)).out)
    assert told == {
        "rank": 1,
        "ranks": 2,
        "source": "LOCAL_RANK",
        "gpus": ["0000:1b:00.0"],
        "cpus": "0",
        "memory": "preferred:0",
        "notes": [],
    }
    ran = fairlead(stage, "--dry-run", env=ranked(1))
    assert (ran.rc, ran.out) == (0, "rank 1 of 2: cpus 0, memory preferred:0\n")
    assert not (stage.run / "ran").exists()
    assert fairlead(stage, env=ranked(0)).rc == 64


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
def test_eight_ranks_of_one_task_on_a_node_of_112_cpus(stage: Stage) -> None:
    """The CPUs are pretended (fakeaff.c); affinity is read back by taskset in each command."""
    lay_out(stage)
    (stage.run / "topology").write_text(published_files.render_topology(hgx()))
    stage.inside("mkdir", "-p", "-m", "777", "/run/fakeaff")
    preload = {**cpus.simulation(2, 56), "LD_PRELOAD": str(cpus.fakeaff())}
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7", "SLURM_CPUS_ON_NODE": "112"}
    said = [
        fairlead(stage, "--", "sh", "-c", "taskset -cp $$", env=ranked(i, 8, **preload, **job)).out.split()[-1] for i in range(8)
    ]
    assert said == ["0-13", "14-27", "28-41", "42-55", "56-69", "70-83", "84-97", "98-111"]
