"""Each fabric profile on each healthy machine: the plan can be made, and where it cannot, for a reason that is told here.

Found by an outside verification of 0.1.0: with `fabric = "roce"` the plan of a healthy L40S node failed, since its machine tree
did not hold the kernel parameters that this profile declares.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import config
from fairlead.apply import TreeNvml, apply
from fairlead.cli import main
from fairlead.host.root import Root
from fairlead.model.sysctl_files import proc_path
from fairlead.settings import sysctl
from fairlead.settings.sysctl import SysctlWant
from tests.lab.machines import write_machine
from tests.lab.models import MODELS
from tests.lab.trees import MACHINES

#: Compute ports of the machines; a shape of a cloud that declares another number is not this machine.
PORTS = {"hgx-h100": 8, "hgx-a100": 8, "l40s-pcie": 2}
BAD = {"failed", "refused", "unreadable"}


@pytest.fixture
def shm(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory: thousands of small files take a disk seconds."""
    folder = Path("/dev/shm") / f"fabrics-{os.getpid()}" if os.access("/dev/shm", os.W_OK) else tmp_path / "x"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def declared_ports(fabric: str) -> int | None:
    return getattr(config.profile_document("n1", "", fabric).settings.get("nccl"), "hcas", None)


@pytest.mark.parametrize("machine", MODELS)
@pytest.mark.parametrize("fabric", config.fabric_names())
def test_a_plan_for_a_healthy_machine_can_be_made(fabric: str, machine: str) -> None:
    root = Root(str(MACHINES / machine))
    document = config.profile_document("n1", machine, fabric)
    report = apply(document, root, dry_run=True, nvml=TreeNvml(root))
    failed = {item.setting: item.message for item in report.items if item.state in BAD}
    wanted = declared_ports(fabric)
    if wanted in (None, PORTS[machine]):
        assert failed == {}
    else:
        assert set(failed) == {"nccl"}
        assert f"{wanted} compute ports expected, {PORTS[machine]} usable" in failed["nccl"]


def declared_keys() -> list[str]:
    """Kernel parameters that any profile of ours declares."""
    documents = [config.profile_document("n1", name, "") for name in config.profile_names()]
    documents += [config.profile_document("n1", "", name) for name in config.fabric_names()]
    wants = [d.settings["sysctl"] for d in documents if "sysctl" in d.settings]
    return sorted({key for want in wants if isinstance(want, SysctlWant) for key in want.values})


@pytest.mark.parametrize("key", declared_keys())
def test_what_a_profile_declares_is_known_and_recorded_and_there(key: str) -> None:
    """A snapshot that was taken before a profile was declared can be planned for with it."""
    assert key in sysctl.RANGES or key in sysctl.TRIPLES or re.match("net.ipv4.tcp_congestion", key)
    for machine in MODELS:
        assert (MACHINES / machine / proc_path(key).lstrip("/")).is_file(), f"{machine} has no {key}"


def test_a_snapshot_can_be_planned_for_with_another_fabric(shm: Path) -> None:
    tree = write_machine(shm / "machine", "l40s-pcie", cpus=4)
    assert main(["snapshot", "--root", str(tree), str(shm / "taken")]) == 0
    for key in declared_keys():
        assert (shm / "taken" / proc_path(key).lstrip("/")).is_file(), f"the snapshot has no {key}"
