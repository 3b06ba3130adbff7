"""Simulated hardware for a rack's nodes, made once for its sources and kept: machine trees and the NVML library."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.lab import cpufacts, cpus, gpufacts, hostfacts, kernelfacts, machines, models, packages, pcitree, roots, software
from tests.lab.nvml import library
from tests.lab.roots import LabError, lab_dir


def machine_tree(model: str, name: str, size: int, seed: int) -> Path:
    """The tree of one node with ``size`` CPUs, written once for its sources: hosts only ever read it."""
    modules = (machines, models, pcitree, cpufacts, gpufacts, cpus, software, kernelfacts, hostfacts)
    sources = [Path(module.__file__ or "") for module in modules]
    made = lab_dir() / "trees" / cpus.digest(sources) / f"{model}-{name}-{size}-{seed}"
    if not made.is_dir():
        fresh = made.with_name(f".{made.name}.{os.getpid()}")
        shutil.rmtree(fresh, ignore_errors=True)
        machines.write_machine(fresh, model, node=name, cpus=size, seed=seed)
        cpus.write_masks(fresh)
        try:
            fresh.rename(made)
        except OSError:  # another lab was faster
            shutil.rmtree(fresh)
    return made


def simulated_nvml() -> Path:
    """Folder of the simulated NVML library, built once for its sources."""
    sources = sorted(Path(library.__file__).parent.glob("*.[chp]*"))
    built = lab_dir() / "build" / f"nvml-{cpus.digest(sources)}"
    with roots.locked("nvml"):
        if not built.is_dir():
            fresh = built.with_name(f".{built.name}.{os.getpid()}")
            fresh.mkdir(parents=True)
            library.build(fresh)
            fresh.rename(built)
    return built


def nvml_plugin(suite: str) -> Path | None:
    """Slurm's gpu_nvml.so of ``suite`` (Debian's contrib package slurm-wlm-nvml-plugin), None where there is none.

    Taken out of the package, which is not installed: it would ask for NVIDIA's own library. That a suite has none is kept too.
    """
    none = lab_dir() / "build" / f"no-nvml-plugin-{roots.root(suite).name}"
    if none.exists():
        return None
    try:
        return next(packages.alone(suite, "slurm-wlm-nvml-plugin", component="contrib").rglob("gpu_nvml.so"), None)
    except LabError as e:
        roots.say(f"no NVML plug-in of Slurm for {suite}: {e}")
        if "Unable to locate" in str(e):
            none.touch()
        return None
