"""One booted guest for all tests of this folder. ``FAIRLEAD_VM_SUITE`` names the release (`make vm SUITE=forky`)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.vm import gpus
from tests.vm.cases import declared
from tests.vm.guest import Guest
from tests.vm.guest_node import Node
from tests.vm.image import image
from tests.vm.reboots import Rebooted, reboot
from tests.vm.stages import Stages, run_stages


@pytest.fixture(scope="session")
def suite() -> str:
    return os.environ.get("FAIRLEAD_VM_SUITE") or "trixie"


@pytest.fixture(scope="session")
def node(suite: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """The guest with its simulated GPUs and Slurm, without fairlead."""
    folder = tmp_path_factory.mktemp("vm")
    made = image(suite)
    with Guest(suite, made.disk, made.accelerator) as guest:
        addresses = gpus.install(guest, made, folder)
        yield Node(guest, made, folder, declared(), addresses)


@pytest.fixture(scope="session")
def stages(node: Node) -> Stages:
    """What the guest said while it was provisioned twice, tampered with and repaired."""
    return run_stages(node)


@pytest.fixture(scope="session")
def gpu(node: Node) -> str:
    """The PCI address of the guest's first GPU."""
    return node.gpus[0]


@pytest.fixture(scope="session")
def rebooted(stages: Stages, node: Node) -> Rebooted:
    """What the guest said after its reboot. Before it, an Xid of the kernel drains the node, and a person holds it."""
    return reboot(node)
