"""The one line that says what fairlead has set in a task, and who chose its CPUs."""

from __future__ import annotations

import pytest

from fairlead.jobenv.environment_summary import CpuBinding, cpu_binding, summary

SLURM = {"SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": "0x0F,0xF0", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    ("changes", "cpus", "expected"),
    [
        ({}, (4, 5, 6, 7), CpuBinding(cpus="4-7", slurm="4-7", by="slurm")),
        ({}, (0, 1), CpuBinding(cpus="0-1", slurm="4-7", by="fairlead")),
        ({"FAIRLEAD_CPU_BIND": "user"}, (0, 1), CpuBinding(cpus="0-1", by="user")),
        ({"SLURM_CPU_BIND_TYPE": "none"}, (0, 1), CpuBinding(cpus="0-1")),
        ({"SLURM_LOCALID": "2"}, (0, 1), CpuBinding(cpus="0-1")),
        ({"SLURM_LOCALID": "-1"}, (0, 1), CpuBinding(cpus="0-1")),
        ({"SLURM_LOCALID": "٣"}, (0, 1), CpuBinding(cpus="0-1")),
        ({"SLURM_CPU_BIND_LIST": "0xZZ,nonsense"}, (0, 1), CpuBinding(cpus="0-1")),
        ({"SLURM_CPU_BIND_LIST": f"0x0F,0x{'F' * 100_000}"}, (0, 1), CpuBinding(cpus="0-1")),
        ({}, (), CpuBinding(cpus="", slurm="4-7")),
    ],
)
def test_who_chose_the_cpus(changes: dict[str, str], cpus: tuple[int, ...], expected: CpuBinding) -> None:
    assert cpu_binding({**SLURM, **changes}, cpus) == expected


def rows(*origins: str) -> list[dict[str, str]]:
    return [{"name": f"N{i}", "origin": origin} for i, origin in enumerate(origins)]


@pytest.mark.parametrize(
    ("origins", "environment", "binding", "expected"),
    [
        (("fairlead", "user", "user", "-"), {}, CpuBinding(cpus=""), "1 variable set, 2 of yours kept"),
        ((), {"FAIRLEAD_PROFILE": "off"}, CpuBinding(cpus=""), "0 variables set, 0 of yours kept; off: FAIRLEAD_PROFILE=off"),
        (
            ("nccl.conf", "measured result"),
            {"FAIRLEAD_PROFILE": "full", "FAIRLEAD_SKIP": "A,\x1b[31mB"},
            CpuBinding(cpus="0-7", slurm="0-63", by="fairlead"),
            "2 variables set, 0 of yours kept; off: FAIRLEAD_SKIP=A, [31mB; "
            "CPUs 0-7 in place of Slurm's 0-63: fairlead's task prolog or your program bound them",
        ),
        ((), {}, CpuBinding(cpus="3", by="user"), "0 variables set, 0 of yours kept; CPUs 3, as you chose with --cpu-bind"),
        ((), {}, CpuBinding(cpus="3", slurm="3", by="slurm"), "0 variables set, 0 of yours kept; CPUs 3, as Slurm bound them"),
        ((), {}, CpuBinding(cpus="3"), "0 variables set, 0 of yours kept; CPUs 3"),
    ],
)
def test_the_line(origins: tuple[str, ...], environment: dict[str, str], binding: CpuBinding, expected: str) -> None:
    assert summary(rows(*origins), environment, binding) == expected
