"""Simulated hardware for a rack's nodes, made once for its sources and kept: machine trees and the NVML library."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.lab import cpufacts, cpus, gpufacts, machines, models, pcitree, roots
from tests.lab.nvml import library
from tests.lab.roots import lab_dir


def machine_tree(model: str, name: str, size: int, seed: int) -> Path:
    """The tree of one node with ``size`` CPUs, written once for its sources: hosts only ever read it."""
    sources = [Path(module.__file__ or "") for module in (machines, models, pcitree, cpufacts, gpufacts, cpus)]
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
