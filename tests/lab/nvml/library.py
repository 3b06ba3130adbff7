"""Build the simulated libnvidia-ml.so.1 and write the files it reads."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.lab.gpufacts import flatten
from tests.lab.machines import read_nvml
from tests.lab.nvml.mig_input import mig_lines
from tests.lab.nvml.nvml_layout import entry_points, layout_header, stubs_source

HERE = Path(__file__).resolve().parent
SOURCES = (
    "store.c",
    "faults.c",
    "system.c",
    "device.c",
    "health.c",
    "links.c",
    "events.c",
    "clocks.c",
    "mig.c",
    "mig_devices.c",
    "load.c",
    "samples.c",
)
NAME = "libnvidia-ml.so.1"
FLAGS = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-pthread")


def implemented() -> set[str]:
    """Entry points that the C sources define."""
    names: set[str] = set()
    for source in SOURCES:
        # Written out (NVML_API type nvmlX(...) or by a macro at the line's start (UINT(nvmlX, "key")).
        text = (HERE / source).read_text()
        names |= set(re.findall(r"^NVML_API [\w ]+\*?(nvml\w+)\(", text, re.MULTILINE))
        names |= set(re.findall(r"^[A-Z_0-9]+\((nvml\w+)[,)]", text, re.MULTILINE))
    return names


def build(outdir: Path, compiler: Sequence[str] = ("gcc",)) -> Path:
    """Compile the library into `outdir` and return the path of `libnvidia-ml.so.1`.

    `libnvidia-ml.so` is linked to it, for clients that ask for the name without version (Slurm 22.05). Nothing is done
    where `outdir` already holds what these sources give. Raises subprocess.CalledProcessError, with the compiler's
    words on stderr, where it does not compile.
    """
    outdir.mkdir(parents=True, exist_ok=True)
    generated = {"nvml_layout.h": layout_header(), "stubs.c": stubs_source(implemented())}
    digest = hashlib.sha256(repr((FLAGS, tuple(compiler))).encode())
    for text in [*generated.values(), *((HERE / name).read_text() for name in ("sim.h", *SOURCES))]:
        digest.update(text.encode())
    library, stamp = outdir / NAME, outdir / ".sources"
    if library.exists() and stamp.exists() and stamp.read_text() == digest.hexdigest():
        return library
    with tempfile.TemporaryDirectory(dir=outdir) as scratch:
        work = Path(scratch)
        for name, text in generated.items():
            (work / name).write_text(text)
        for name in ("sim.h", *SOURCES):
            shutil.copy(HERE / name, work / name)
        command = [*compiler, *FLAGS, f"-Wl,-soname,{NAME}", "-o", NAME, *SOURCES, "stubs.c"]
        subprocess.run(command, cwd=work, check=True, timeout=120)
        os.replace(work / NAME, library)
    with contextlib.suppress(FileExistsError):
        (outdir / "libnvidia-ml.so").symlink_to(NAME)
    stamp.write_text(digest.hexdigest())
    return library


def common_ancestor(tree: Path, a: str, b: str) -> int:
    """nvmlGpuTopologyLevel between two devices, by the rule that reproduces published `nvidia-smi topo -m` output."""
    if a == b:
        return 0  # INTERNAL
    devices = tree / "sys/bus/pci/devices"
    left, right = ((devices / address).resolve().relative_to(tree.resolve()).parts[2:] for address in (a, b))
    if left[0] != right[0]:  # host bridges
        nodes = {(devices / address / "numa_node").read_text().strip() for address in (a, b)}
        return 40 if len(nodes) == 1 and "-1" not in nodes else 50  # NODE, SYSTEM
    common = sum(1 for x, y in zip(left, right, strict=False) if x == y) - 1  # bridges above both
    if not common:
        return 30  # HOSTBRIDGE
    return 10 if max(len(left), len(right)) - 2 - common <= 1 else 20  # at most one port below it: SINGLE, else MULTIPLE


def write_conf(tree: Path, conf: Path) -> Path:
    """Write the library's input from a machine tree (whole or not at all) and return its path.

    It is nvml.json, and the distances between the GPUs, which follow from sys/.
    """
    nvml = read_nvml(tree)
    distances = [
        f"gpu.{a}.common_ancestor.{b}={common_ancestor(tree, left['pci'], right['pci'])}\n"
        for a, left in enumerate(nvml["gpus"])
        for b, right in enumerate(nvml["gpus"])
    ]
    conf.parent.mkdir(parents=True, exist_ok=True)
    scratch = conf.with_name(conf.name + ".new")
    divided = [f"{line}\n" for number, gpu in enumerate(nvml["gpus"]) for line in mig_lines(number, gpu)]
    scratch.write_text(flatten(nvml) + "".join(distances) + "".join(divided))
    os.replace(scratch, conf)
    return conf


__all__ = ["build", "entry_points", "flatten", "implemented", "write_conf"]
