"""gather on machine trees: made, described in tests/machines, and recorded from real machines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fairlead.host.gather import Gatherer, gather, nvidia_gpus
from fairlead.host.root import Root
from fairlead.model.facts import Missing, Node, PcieLink
from tests.host.conftest import write
from tests.host.test_config_space import space
from tests.lab.trees import MACHINES
from tests.lab.unpack import unpack

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"sample data not found at {DATA}")
TREES = sorted(p.parent.name for p in MACHINES.glob("*/nvml.json"))


def nvml(machine: str) -> dict[str, Any]:
    raw = json.loads((MACHINES / machine / "nvml.json").read_text())
    assert isinstance(raw, dict)
    return raw


def gathered(tree: Path, raw: dict[str, Any] | Missing | None = None, **more: Any) -> Node:
    return gather(Root(os.fspath(tree)), raw, **more)


def device(tree: Path, address: str, *, parents: str = "pci0000:15", klass: str = "0x060400", **attributes: str | bytes) -> None:
    real = f"/sys/devices/{parents}/{address}"
    given = {"vendor": "0x1000\n", "device": "0xc030\n", "class": klass + "\n", "numa_node": "0\n", "config": space()}
    for name, value in {**given, **attributes}.items():
        write(tree, f"{real}/{name}", value)
    link = tree / "sys/bus/pci/devices" / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../../devices/{parents}/{address}")


@pytest.mark.parametrize("machine", TREES)
def test_machines(machine: str) -> None:
    node = gathered(MACHINES / machine, nvml(machine))
    assert isinstance(node.gpus, tuple)
    assert {g.pci for g in node.gpus} == {d.address for d in nvidia_gpus(node.pci)}
    assert all(d.path[0].startswith("pci") and d.path[-1] == d.address for d in node.pci)
    assert {d.bridge_role for d in node.pci if d.class_code >> 8 == 0x0604} <= {
        "root_port",
        "switch_upstream",
        "switch_downstream",
    }
    assert sum(len(n.cpus) for n in node.numa) == len(node.cpus)
    assert node.driver.module_version == node.driver.library_version == "570.172.08"
    assert node.virtual is False


def test_h100_facts() -> None:
    node = gathered(MACHINES / "hgx-h100", nvml("hgx-h100"))
    by_address = {d.address: d for d in node.pci}
    gpu = by_address["0000:1b:00.0"]
    assert gpu.link == PcieLink(gen_current=5, gen_max=5, width_current=16, width_max=16)
    assert (gpu.driver, gpu.numa, gpu.bridge_role, gpu.vendor) == ("nvidia", 0, "", 0x10DE)
    bridges = [by_address[a] for a in gpu.path[1:-1]]
    assert [b.bridge_role for b in bridges] == ["root_port", "switch_upstream", "switch_downstream"]
    assert all(isinstance(b.acs_control, int) for b in bridges if b.acs_offset)
    rails = [n for n in node.nics if n.rdma and n.link_layer == "InfiniBand"]
    assert {(n.state, n.physical_state, n.rate_gbps) for n in rails} == {("ACTIVE", "LinkUp", 400.0)}
    assert all(len(n.interfaces) == 1 and n.pci in by_address for n in rails)
    assert len(node.numa) == 2
    assert node.numa[0].distances[0] == 10
    assert {c.package for c in node.cpus} == {0, 1}


def test_tree_with_nothing_in_it(tree: Path) -> None:
    node = gathered(tree, None, reads=("/proc/cmdline", "/sys/kernel/iommu_groups/*/type"))
    assert (node.cpus, node.numa, node.pci, node.nics) == ((), (), (), ())
    for value in (node.boot_id, node.uptime_seconds, node.virtual, node.gpus, node.driver.module_version):
        assert isinstance(value, Missing)
    assert dict(node.texts) == {"/proc/cmdline": None}
    assert isinstance(node.text("/not/asked"), Missing)


def test_unreadable_sources_stay_missing(tree: Path) -> None:
    device(tree, "0000:16:00.0", klass="0x030200", numa_node="-1\n", current_link_speed="Unknown\n", current_link_width="255\n",
           max_link_speed="32.0 GT/s PCIe\n", max_link_width="16\n", config=b"")  # fmt: skip
    device(tree, "10000:e1:00.0", parents="pci10000:e0", vendor="nonsense", config=space(size=256))
    (tree / "proc/sys/kernel/random/boot_id").mkdir(parents=True)
    node = gathered(tree)
    wide, gpu = sorted(node.pci, key=lambda d: len(d.address), reverse=True)
    assert wide.path == ("pci10000:e0", "10000:e1:00.0")
    assert wide.vendor == 0
    assert isinstance(wide.acs_control, Missing)
    assert isinstance(gpu.numa, Missing)
    assert "numa_node is -1" in gpu.numa.detail
    assert isinstance(gpu.link, PcieLink)
    assert isinstance(gpu.link.gen_current, Missing)
    assert isinstance(gpu.link.width_current, Missing)
    assert (gpu.link.gen_max, gpu.link.width_max) == (5, 16)
    assert isinstance(gpu.acs_capability, Missing)
    assert isinstance(node.boot_id, Missing)
    assert "Is a directory" in node.boot_id.detail


def test_a_quick_look_sees_what_changes(tree: Path) -> None:
    acs = bytearray(space(extended={0x100: (0x000D, 0)}))
    device(tree, "0000:16:00.0", config=bytes(acs), current_link_width="16\n")
    device(tree, "0000:17:00.0", klass="0x030200", current_link_width="16\n", current_link_speed="32.0 GT/s PCIe\n")
    write(tree, "/proc/sys/kernel/numa_balancing", "0\n")
    gatherer = Gatherer(Root(os.fspath(tree)), reads=("/proc/sys/kernel/numa_balancing",), slow_seconds=1000)
    before = gatherer.gather(None)
    assert gatherer.gather(None).pci == before.pci
    acs[0x106] = 0x1D
    write(tree, "/sys/devices/pci0000:15/0000:16:00.0/config", bytes(acs))
    write(tree, "/sys/devices/pci0000:15/0000:17:00.0/current_link_width", "8\n")
    write(tree, "/proc/sys/kernel/numa_balancing", "1\n")
    device(tree, "0000:18:00.0")
    node = gatherer.gather(None)
    after = {d.address: d for d in node.pci}
    assert after["0000:16:00.0"].acs_control == 0  # what somebody set can wait for the next thorough look
    assert after["0000:17:00.0"].link.width_current == 16  # type: ignore[union-attr]  # and so can links
    assert "0000:18:00.0" not in after  # and what is on the bus, as long as the driver lists the same GPUs
    assert node.text("/proc/sys/kernel/numa_balancing") == "1\n"
    gatherer.read_thoroughly()
    after = {d.address: d for d in gatherer.gather(None).pci}
    assert after["0000:16:00.0"].acs_control == 0x1D
    assert "0000:18:00.0" in after
    assert after["0000:17:00.0"].link.width_current == 8  # type: ignore[union-attr]
    gatherer.gather(nvml("hgx-h100"))
    (tree / "sys/bus/pci/devices/0000:17:00.0").unlink()
    fewer = nvml("hgx-h100")
    del fewer["gpus"][3]
    assert "0000:17:00.0" not in {d.address for d in gatherer.gather(fewer).pci}
    device(tree, "0000:17:00.0", klass="0x030200")
    assert "0000:17:00.0" in {d.address for d in gatherer.gather(fewer).pci}, "what is gone is looked for at every look"


def test_no_look_is_thorough_on_answers_of_an_earlier_one(tree: Path) -> None:
    gatherer = Gatherer(Root(os.fspath(tree)), slow_seconds=1e-6)
    assert gatherer.gather(None, closely=False).thorough  # the first
    assert not gatherer.gather(None, closely=False).thorough
    assert gatherer.gather(None, closely=True).thorough
    gatherer.read_thoroughly()
    assert gatherer.gather(None, closely=False).thorough  # wanted now


def test_a_gpu_that_the_driver_names_is_one_where_sysfs_does_not_say_what_it_is(tree: Path) -> None:
    addresses = ("0000:1b:00.0", "0000:1c:00.0")
    for address in addresses:
        device(tree, address)
        for name in ("vendor", "class"):
            (tree / "sys/bus/pci/devices" / address / name).unlink()
    write(tree, f"/proc/driver/nvidia/gpus/{addresses[0]}/information", "Model: NVIDIA H100\n")
    assert [d.address for d in nvidia_gpus(gathered(tree).pci)] == [addresses[0]]


def test_a_gpu_lost_before_anyone_looked_gets_the_address_left_over() -> None:
    raw = nvml("hgx-h100")
    gone = raw["gpus"][3]
    raw["gpus"][3] = {"index": 3, "pci": "", "uuid": {"error": 15}, "memory": {"error": 15}}
    node = gathered(MACHINES / "hgx-h100", raw)
    assert isinstance(node.gpus, tuple)
    assert node.gpus[3].lost
    assert node.gpus[3].pci == gone["pci"]


def test_virtual_machine_and_driver_versions(tree: Path) -> None:
    write(tree, "/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme hypervisor sse2\n")
    write(
        tree,
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (x@y)  Thu Jan 23\nGCC version: 12\n",
    )
    node = gathered(tree)
    assert node.virtual is True
    assert node.driver.module_version == "570.86.15"


@pytest.mark.parametrize(
    ("vendor", "product", "virtual"),
    [
        ("NVIDIA", "GB200 NVL", False),
        ("QEMU", "QEMU Virtual Machine", True),
        ("Amazon EC2", "p6e-gb200.36xlarge", True),
        ("Amazon EC2", "c7g.metal", False),
        ("Microsoft Corporation", "Virtual Machine", True),
        ("Lab", "KVM", True),
    ],
)
def test_an_arm_machine_is_virtual_by_its_dmi_text(tree: Path, vendor: str, product: str, virtual: bool) -> None:
    write(tree, "/proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd evtstrm aes\n")
    write(tree, "/sys/class/dmi/id/sys_vendor", f"{vendor}\n")
    write(tree, "/sys/class/dmi/id/product_name", f"{product}\n")
    assert gathered(tree).virtual is virtual


def test_an_arm_machine_without_dmi_text_does_not_say_whether_it_is_virtual(tree: Path) -> None:
    write(tree, "/proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd\n")
    assert isinstance(gathered(tree).virtual, Missing)


def test_cpus_offline_sparse_and_old(tree: Path) -> None:
    cpu = "/sys/devices/system/cpu"
    write(tree, f"{cpu}/online", "0,4\n")
    for number, core in ((0, 0), (4, 0)):
        write(tree, f"{cpu}/cpu{number}/topology/physical_package_id", "0")
        write(tree, f"{cpu}/cpu{number}/topology/core_id", str(core))
        write(tree, f"{cpu}/cpu{number}/topology/thread_siblings", "00000011\n")
        write(tree, f"{cpu}/cpu{number}/cache/index2/level", "3")
        write(tree, f"{cpu}/cpu{number}/cache/index2/shared_cpu_map", "00000011")
    (tree / "sys/devices/system/cpu/cpu5").mkdir()
    write(tree, "/sys/devices/system/node/node8/cpumap", "00000030\n")
    write(tree, "/sys/devices/system/node/node250/cpulist", "\n")
    write(tree, "/sys/devices/system/node/node250/meminfo", "Node 250 MemTotal:  1024 kB\n")
    node = gathered(tree)
    assert [(c.id, c.online, c.siblings, c.l3, c.numa) for c in node.cpus] == [
        (0, True, (0, 4), 0, -1),
        (4, True, (0, 4), 0, 8),
        (5, False, (5,), -1, 8),
    ]
    assert [(n.id, n.cpus) for n in node.numa] == [(8, (4, 5)), (250, ())]
    assert node.numa[1].memory_bytes == 1048576


@needs_data
@pytest.mark.parametrize("archive", sorted((DATA / "sysroots").glob("*.tar.gz")) or ["absent"], ids=lambda p: Path(p).name)
def test_recorded_machines(archive: Path, tmp_path: Path) -> None:
    unpack(archive, tmp_path, keep="fully_trusted")
    root = next(tmp_path.iterdir())
    node = gathered(
        root, {"schema": 1, "gpus": []}, reads=("/proc/cmdline", "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
    )
    assert node.cpus
    assert len({c.id for c in node.cpus}) == len(node.cpus)
    names = os.listdir(root / "sys/bus/pci/devices") if (root / "sys/bus/pci/devices").is_dir() else []
    assert {d.address for d in node.pci} == {n.lower() for n in names}
    assert all(c.id in c.siblings for c in node.cpus)


@needs_data
def test_recorded_infiniband(tree: Path) -> None:
    folder = tree / "sys/class"
    folder.mkdir(parents=True)
    (folder / "infiniband").symlink_to("/ib")
    (tree / "ib").symlink_to(DATA)  # leads out of the tree: must not be followed
    assert gathered(tree).nics == ()
    (tree / "ib").unlink()
    recorded = DATA / "sysfs/sys-class-infiniband-h100.0"
    for name in sorted(p.relative_to(recorded) for p in recorded.rglob("*") if p.is_file()):
        write(tree, f"/ib/{name}", (recorded / name).read_bytes())
    nics = gathered(tree).nics
    assert len(nics) == 9
    assert {n.name: (n.link_layer, n.rate_gbps) for n in nics}["mlx5_bond_0"] == ("Ethernet", 200.0)


def test_a_thorough_look_is_foreseen() -> None:
    """For it NVML is asked for what else is read only now and then."""
    gatherer = Gatherer(Root(os.fspath(MACHINES / "l40s-pcie")), slow_seconds=3600.0)
    assert gatherer.is_due()
    assert gatherer.gather(nvml("l40s-pcie")).thorough
    assert not gatherer.is_due()
    assert not gatherer.gather(nvml("l40s-pcie")).thorough
    gatherer.read_thoroughly()
    assert gatherer.is_due()
