"""Finds the GPU that the proof uses, and refuses before anything is changed: a bad driver, a GPU that somebody uses."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from typing import Any

from fairlead.errors import ExitCode
from fairlead.host.gpu_reader import return_text
from fairlead.host.nvml import Worker
from fairlead.model.facts import Missing

DEADLINE_SECONDS = 30.0  # without persistence mode nvmlInit starts every GPU, which takes seconds
UNOWNED_BYTES = 1 << 30  # more memory in use than this, without a process that NVML lists, belongs to somebody


class Refused(Exception):
    """The proof cannot begin. The text has the next step; nothing was changed."""

    def __init__(self, text: str, code: ExitCode) -> None:
        super().__init__(f"{text} Nothing was changed.")
        self.code = code


@dataclass(frozen=True)
class Target:
    """The GPU that the proof uses, as NVML lists it. ``values``: its entry of nvml.json. ``node``: all of nvml.json."""

    pci: str
    values: dict[str, Any]
    node: dict[str, Any]


def find(index: int, *, deadline_seconds: float = DEADLINE_SECONDS, in_use: bool = False) -> Target:
    """Return the GPU with this NVML index. ``in_use``: also one that somebody uses. Raises Refused."""
    worker = Worker(deadline_seconds=deadline_seconds)
    try:
        result = worker.sweep()
    finally:
        worker.close()
    if isinstance(result.raw, Missing):
        stuck = result.stuck
        if stuck is not None and not stuck.call and stuck.process_state == "X":
            raise Refused(f"{result.raw.detail}: see whether {sys.executable} can run.", ExitCode.UNAVAILABLE)
        if stuck is not None and stuck.process_state == "X":
            raise Refused(f"{result.raw.detail}: see `dmesg`, and install the driver again.", ExitCode.UNAVAILABLE)
        raise Refused(f"{result.raw.detail}: see `dmesg`; a reboot ends a driver that hangs.", ExitCode.UNAVAILABLE)
    if "error" in result.raw:
        said = f"{result.raw['call']} answers {return_text(result.raw['error'])}"
        raise Refused(f"{said}: run this on a machine with an NVIDIA GPU and its driver.", ExitCode.UNAVAILABLE)
    gpus = [gpu for gpu in result.raw["gpus"] if gpu["index"] == index and gpu.get("pci")]
    if not gpus:
        raise Refused(f"NVML lists {len(result.raw['gpus'])} GPUs, and none has index {index}: see --gpu.", ExitCode.NO_INPUT)
    if not in_use and (user := user_of(gpus[0])):
        step = "wait until it is free, choose another GPU with --gpu, or insist with --in-use."
        raise Refused(f"GPU {gpus[0]['pci']} is in use: {user}; {step}", ExitCode.TRY_AGAIN)
    return Target(gpus[0]["pci"], gpus[0], result.raw)


def user_of(gpu: dict[str, Any]) -> str:
    """Say who uses this GPU, or "" if nobody does. In a PID namespace NVML lists no processes, so memory in use counts too."""
    processes = gpu["processes"]
    if isinstance(processes, list) and processes:
        return "process " + ", ".join(str(process["pid"]) for process in processes[:5])
    used = gpu["memory"].get("used_bytes", 0)
    if used > UNOWNED_BYTES:
        return f"{used >> 20} MiB of its memory, by no process that NVML lists"
    return ""


def machine_lines(target: Target) -> dict[str, Any]:
    """Return what the report says of the machine."""
    simulated = {"simulated": "yes: these are the answers of tests/lab/nvml, not of a driver"}
    return {
        **(simulated if os.environ.get("FAIRLEAD_SIM_NVML") else {}),
        "gpu": f"{target.values['name']} at {target.pci}, one of {len(target.node['gpus'])}",
        "driver": target.node["driver_version"],
        "nvml": target.node["nvml_version"],
        "cuda": target.node["cuda_driver_version"],
        "vbios": target.values.get("vbios_version"),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "root": "yes" if os.geteuid() == 0 else "no",
        "load": round(os.getloadavg()[0], 2),
    }
