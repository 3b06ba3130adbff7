"""A report in which everything is as the documentation claims, made from the claims, and real runs of the command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fairlead import __version__, checks, settings
from fairlead.selftest import claims
from fairlead.selftest.fact_sources import FILES, NVML, SOURCES
from fairlead.selftest.selftest_report import SelftestReport

PROJECT = Path(__file__).resolve().parents[2]


def good() -> dict[str, Any]:
    """A report of a node with GPUs, as JSON has it, that differs in nothing."""
    platform = claims.PLATFORMS[0]
    data: dict[str, Any] = msgspec.to_builtins(SelftestReport(fairlead=__version__, root=True, document="read"))
    data["machine"] |= {
        "distribution": platform.distribution, "version": platform.version, "python": f"{platform.python}.2", "init": "systemd",
        "systemd": platform.systemd, "slurm": f"{platform.slurm}.8", "cgroup": platform.cgroups[0],
        "kernel": f"{claims.KERNELS[0]}.7", "gpus_on_bus": 8, "gpus_of_nvml": 8,
    }  # fmt: skip
    data["sources"] = [{"name": s.name, "state": "read", "count": 9} for s in (*SOURCES, FILES, NVML)]
    data["checks"] = [{"name": name, "state": "judged"} for name in checks.load()]
    data["settings"] = [{"name": name, "state": "planned"} for name in settings.load()]
    data["hooks"] = [
        {"name": n, "state": "run", "status": c.status, "runs": 11, "digest": c.digest} for n, c in claims.HOOKS.items()
    ]
    return data


def row(data: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    """One row of a report."""
    return next(entry for entry in data[kind] if entry["name"] == name)


def run(
    *words: str, before: tuple[str, ...] = (), env: Mapping[str, str] | None = None, agent: Path = PROJECT / "agent"
) -> subprocess.CompletedProcess[str]:
    """Run `fairlead selftest` in a process of its own. ``before``: a command that runs it. ``agent``: the source root."""
    variables = {**os.environ, "PYTHONPATH": str(agent), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    command = [*before, sys.executable, "-m", "fairlead", "selftest", *words]
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=240, check=False)
