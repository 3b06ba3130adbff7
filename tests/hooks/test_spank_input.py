"""The SPANK plugin on hostile files and environments, without Slurm, under AddressSanitizer: in doubt nothing changes."""

from __future__ import annotations

import os
import random

import pytest

from tests.hooks.stage import Ran, Stage
from tests.hooks.steps import lay_out, step, two_cpus
from tests.hooks.test_task_prolog import LEFT_ALONE
from tests.lab import spank

pytestmark = [pytest.mark.root, two_cpus]
#: What the task has afterwards: its CPUs and its memory's policy.
PRINT_MASK = ("sh", "-c", "grep -h Cpus_allowed_list /proc/self/status | cut -f2; cut -d' ' -f2 /proc/self/numa_maps | sort -u")
BATCH = "4294967291"


def start(stage: Stage, local: int = 0, command: tuple[str, ...] = PRINT_MASK, **env: str) -> Ran:
    """Task ``local`` of two, on the CPU of its number, as Slurm's masks say."""
    words = {"PATH": "/usr/bin:/bin", "STUB_LOCAL": str(local), "STUB_TASKS": "2", "STUB_STEP": "0", **step(1, local), **env}
    return stage.command("taskset", "-c", str(local), str(spank.stub()), *command, env=words)


def seen(ran: Ran) -> str:
    assert (ran.rc, ran.err) == (0, "")
    return " ".join(ran.out.split())


def prefers(node: int) -> str:
    return f"prefer:{node}" if os.path.exists(f"/sys/devices/system/node/node{node}") else "default"


def test_the_plan_is_applied(stage: Stage) -> None:
    lay_out(stage)
    assert [seen(start(stage, local)) for local in (0, 1)] == [f"1 {prefers(1)}", f"0 {prefers(0)}"]
    assert seen(start(stage, 1, SLURM_MEM_BIND_TYPE="local")) == "0 default"
    (stage.etc / "disabled").touch()
    assert seen(start(stage)) == "0 default"
    (stage.etc / "disabled").unlink()
    stage.hooks_line(profile="off")
    assert seen(start(stage)) == "0 default"
    assert seen(start(stage, FAIRLEAD_PROFILE="full")) == f"1 {prefers(1)}"
    assert seen(start(stage, FAIRLEAD_PROFILE="deep")) == "0 default"  # no such preset
    (stage.run / "presets").mkdir()
    (stage.run / "presets/deep").touch()
    assert seen(start(stage, FAIRLEAD_PROFILE="deep")) == f"1 {prefers(1)}"
    for wrong in ("../presets/deep", "Deep", "d" * 31):
        assert seen(start(stage, FAIRLEAD_PROFILE=wrong)) == "0 default"
    assert seen(start(stage, STUB_SWITCH="on")) == f"1 {prefers(1)}"


def test_a_mask_that_is_no_longer_slurms_stays(stage: Stage) -> None:
    lay_out(stage)
    words = {"PATH": "/usr/bin:/bin", "STUB_LOCAL": "0", "STUB_TASKS": "2", **step(1, 0)}
    assert seen(stage.command(str(spank.stub()), *PRINT_MASK, env=words)) == "0-1 default"


#: These only a process title tells; the plugin asks Slurm for the step and its tasks.
OF_THE_SHELL = {"batch step", "batch step by number", "hostile local id", "octal local id", "more tasks than masks"}


@pytest.mark.parametrize("case", sorted(LEFT_ALONE.keys() - OF_THE_SHELL))
def test_left_alone_as_the_task_prolog_does(stage: Stage, case: str) -> None:
    lay_out(stage)
    assert seen(start(stage, **LEFT_ALONE[case])) == "0 default"


@pytest.mark.parametrize(
    "env",
    [
        {"STUB_STEP": BATCH},
        {"STUB_TASKS": "1"},
        {"STUB_TASKS": "3"},
        {"STUB_LOCAL": "-1"},
        {"STUB_LOCAL": "2"},
        {"SLURM_CPU_BIND_LIST": ",".join(["0x1"] * 1025), "STUB_TASKS": "1025"},
        {"SLURM_CPU_BIND_LIST": "0x" + "F" * 4000 + ",0x" + "F" * 4000},
        {"SLURM_CPU_BIND_LIST": "0x1,0x2,"},
        {"SLURM_CPU_BIND_LIST": ",,"},
        {"SLURM_CPU_BIND_LIST": "0x1,0x0"},
        {"SLURM_CPU_BIND_LIST": "0x1," * 20000},
        {"SLURM_STEP_GPUS": "0," * 3000},
        {"SLURM_STEP_GPUS": "0,1," + "9" * 60},
        {"SLURM_STEP_GPUS": "00,1"},
        {"CUDA_VISIBLE_DEVICES": "0," * 5000},
        {"FAIRLEAD_SKIP": "A" * 5000},
        {"FAIRLEAD_PROFILE": "full" * 100},
        {"SLURM_GPUS_ON_NODE": "99999999999999999999"},
    ],
    ids=lambda env: " ".join(f"{k}={v[:24]}" for k, v in env.items()),
)
def test_hostile_environments_change_nothing(stage: Stage, env: dict[str, str]) -> None:
    lay_out(stage)
    assert seen(start(stage, **env)) == "0 default"


@pytest.mark.parametrize("kind", ["fifo", "zero", "folder", "not root's", "endless line", "no newline"])
@pytest.mark.parametrize("name", ["plans/2", "topology", "../../etc/fairlead/hooks", "jobs/4711"])
def test_files_that_are_none(stage: Stage, kind: str, name: str) -> None:
    lay_out(stage)
    path = stage.etc / "hooks" if name.endswith("hooks") else stage.run / name
    text = path.read_text() if path.exists() else "1\trunning\t0\t-\t1\t-\toff\t.\n"
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "endless line":
        path.write_text("1\t" * 10 + "x" * (1 << 20))
    else:
        path.write_text(text.rstrip("\n") if kind == "no newline" else text)
        if kind == "not root's":
            os.chown(path, 65534, 65534)
    # A job's record only switches off; a topology or hooks line without its newline is still complete.
    usable = (name == "jobs/4711" and kind != "no newline") or (
        kind == "no newline" and name in ("topology", "../../etc/fairlead/hooks")
    )
    assert seen(start(stage)) == (f"1 {prefers(1)}" if usable else "0 default")


def test_torn_and_mixed_up_files_never_break_it(stage: Stage) -> None:
    """Bytes changed, cut and doubled at random: the task runs, on one of the two CPUs that Slurm assigned to the step."""
    lay_out(stage)
    dice = random.Random(4711)
    files = {stage.run / "plans/2": b"", stage.run / "topology": b"", stage.etc / "hooks": b""}
    files = {path: path.read_bytes() for path in files}
    changed = 0
    for _ in range(60):
        for path, whole in files.items():
            text = bytearray(whole)
            for _ in range(dice.randrange(3)):
                at = dice.randrange(len(text))
                match dice.randrange(4):
                    case 0:
                        text[at] = dice.randrange(256)
                    case 1:
                        del text[at:]
                    case 2:
                        text[at:at] = text[: dice.randrange(len(text))]
                    case _:
                        text[at:at] = dice.choice([b"\t", b"\n", b"\0", b"99999999999", b"F" * 3000])
                if not text:
                    break
            path.write_bytes(bytes(text))
        cpu = seen(start(stage)).split()[0]
        assert cpu in ("0", "1")
        changed += cpu == "1"
    assert 0 < changed < 60  # both happened: the files were not all broken, nor all whole
