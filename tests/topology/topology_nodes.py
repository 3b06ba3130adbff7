"""The machines that topology tests run on, as Nodes, each read once a session: the lab's models, published machines
(tests/lab/sites.py), and what is recorded in ../shared/data."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

import msgspec
import pytest
from _pytest.mark import ParameterSet

from fairlead.cli.machine_tree import recorded_nvml
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.facts import Node
from tests.lab.machines import write_machine
from tests.lab.models import MODELS
from tests.lab.sites import SITES, write_site
from tests.lab.unpack import unpack

RECORDED = Path(__file__).resolve().parents[3] / "shared/data/sysroots"
MEMORY = "/dev/shm"  # thousands of small files: a disk takes seconds
READS = ("/proc/cpuinfo",)


def recorded_names() -> list[str]:
    return sorted(p.name.removesuffix(".tar.gz") for p in RECORDED.glob("*.tar.gz"))


def marked(name: str) -> ParameterSet:
    """A recorded machine; hwloc's own have no GPUs (but one) and many files, which take a while to unpack."""
    return pytest.param(name, marks=pytest.mark.slow if name.startswith("hwloc_") else pytest.mark.trees)


NAMES = [*MODELS, *SITES, *map(marked, recorded_names())]


@cache
def node(name: str) -> Node:
    """The node of one machine, healthy and tuned where the tree is ours."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        tree = Path(folder) / name
        if name in MODELS:
            write_machine(tree, name, tuned=True)
        elif name in SITES:
            write_site(tree, name)
        else:
            if not (RECORDED / f"{name}.tar.gz").exists():
                pytest.skip(f"{RECORDED}: no recorded tree {name} here")
            unpack(RECORDED / f"{name}.tar.gz", folder)
        found = gather(Root(str(tree)), recorded_nvml(str(tree)), reads=READS)
    return msgspec.structs.replace(found, name=name)
