"""Simulated hardware for a rack's nodes, made once for its sources and kept: machine trees and the NVML library."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.lab import cpufacts, cpus, gpufacts, hostfacts, kernelfacts, machines, models, pcitree, roots, software
from tests.lab.nvml import library
from tests.lab.roots import lab_dir


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

    Taken out of the package, which is not installed: it would ask for NVIDIA's own library. Fetched once by apt with a
    sources list of its own; nothing of the machine's apt is changed.
    """
    kept = lab_dir() / "plugins" / suite
    if not kept.is_dir():
        with roots.locked("plugins"):
            if not kept.is_dir():
                _fetch_plugin(suite, kept)
    return next(kept.rglob("gpu_nvml.so"), None)


def _fetch_plugin(suite: str, kept: Path) -> None:
    fresh = kept.with_name(f".{suite}")
    shutil.rmtree(fresh, ignore_errors=True)
    for sub in ("lists/partial", "root"):
        (fresh / sub).mkdir(parents=True)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (fresh / "sources").write_text(f"deb [signed-by={keyring}] {roots.mirror()} {suite} contrib\n")
    options = [f"-oDir::Etc::sourcelist={fresh}/sources", "-oDir::Etc::sourceparts=-", f"-oDir::State::Lists={fresh}/lists"]
    options += ["-oAPT::Get::List-Cleanup=0", "-oAPT::Sandbox::User=root"]
    for action in (["update"], ["download", "slurm-wlm-nvml-plugin"]):
        done = subprocess.run(["apt-get", "-qq", *options, *action], cwd=fresh, capture_output=True, text=True, check=False)
    for package in fresh.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, fresh / "root"], check=True)
    if done.returncode:
        roots.say(f"no NVML plug-in of Slurm for {suite}: {done.stderr.strip().splitlines()[-1:] or 'apt failed'}")
    (fresh / "root").rename(kept)
    shutil.rmtree(fresh)
