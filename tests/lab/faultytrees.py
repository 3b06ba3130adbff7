"""The committed machine trees: the healthy ones, and faulty ones made from `hgx-h100` by one documented edit each."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

from tests.lab.gpufacts import NOT_SUPPORTED, UNKNOWN, error, lose
from tests.lab.machines import read_nvml, write_machine, write_nvml
from tests.lab.pcitree import put

SMALL = 2  # CPUs of the faulty trees: keeps them small; two sockets and two NUMA nodes remain


def xid79(tree: Path) -> str:
    """GPU 3 fell off the bus."""
    nvml = read_nvml(tree)
    gpu = nvml["gpus"][3]
    lose(gpu)
    write_nvml(tree, nvml)
    address = gpu["pci"][:-2]
    with (tree / "dev/kmsg").open("a") as log:
        log.write(f"4,1339,81234567890,c;NVRM: Xid (PCI:{address}): 79, pid='<unknown>', name=<unknown>, "
                  "GPU has fallen off the bus.\n")  # fmt: skip
        log.write(f"4,1340,81234567931,c;NVRM: GPU {gpu['pci']}: GPU has fallen off the bus.\n")
    device = tree / "sys/bus/pci/devices" / gpu["pci"]
    (device / "config").write_bytes(b"\xff" * 4096)
    put(device / "current_link_width", 63)
    put(device / "current_link_speed", "Unknown")
    return (
        f"GPU 3 ({gpu['pci']}) fell off the bus: Xid 79 in dev/kmsg, NVML answers GPU_IS_LOST (15) for all but its\n"
        "identity, and its configuration space reads as all ones (so the link is 63 lanes wide)."
    )


def take_out(tree: Path, number: int) -> str:
    """GPU ``number`` is not there at all: the firmware did not find it at power-on."""
    nvml = read_nvml(tree)
    gpu = nvml["gpus"].pop(number)
    for other in nvml["gpus"]:
        other["index"] -= other["index"] > number
    write_nvml(tree, nvml)
    devices = [*tree.rglob(gpu["pci"])]
    for path in sorted(devices, key=lambda each: not each.is_symlink()):
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    nodes = (tree / "dev/nodes").read_text().splitlines(keepends=True)
    (tree / "dev/nodes").write_text("".join(line for line in nodes if not line.startswith(f"nvidia{gpu['minor']} ")))
    return f"GPU {number} ({gpu['pci']}) is not on the bus."


def row_remap_failed(tree: Path) -> str:
    """Row remapping failed on GPU 5."""
    nvml = read_nvml(tree)
    gpu = nvml["gpus"][5]
    gpu["remap"] = {"corrected": 0, "uncorrected": 8, "pending": 0, "failed": 1, "histogram": [2558, 1, 0, 0, 1]}
    gpu["ecc"]["aggregate_uncorrected"] = 9
    write_nvml(tree, nvml)
    with (tree / "dev/kmsg").open("a") as log:
        log.write(f"4,1339,71234567890,c;NVRM: Xid (PCI:{gpu['pci'][:-2]}): 64, pid='<unknown>', name=<unknown>, "
                  "Row Remapper: Failed to remap row\n")  # fmt: skip
    return f"A row of GPU 5 ({gpu['pci']}) could not be remapped: remap.failed is 1, one bank has no spare row, Xid 64."


def width_x8(tree: Path) -> str:
    """GPU 2's link trained to half its width."""
    nvml = read_nvml(tree)
    gpu = nvml["gpus"][2]
    gpu["pcie"]["width_current"] = 8
    write_nvml(tree, nvml)
    device = (tree / "sys/bus/pci/devices" / gpu["pci"]).resolve()
    for port, offset in ((device, 0x60), (device.parent, 0x68)):  # the GPU and the switch port above it
        put(port / "current_link_width", 8)
        config = bytearray((port / "config").read_bytes())
        (status,) = struct.unpack_from("<H", config, offset + 0x12)
        struct.pack_into("<H", config, offset + 0x12, status & ~0x3F0 | 8 << 4)
        (port / "config").write_bytes(config)
    return f"GPU 2 ({gpu['pci']}) runs on 8 of its 16 PCIe lanes: NVML, sysfs and configuration space agree."


def ecc_unreadable(tree: Path) -> str:
    """GPU 6's ECC counters cannot be read after a double-bit error."""
    nvml = read_nvml(tree)
    gpu = nvml["gpus"][6]
    gpu["ecc"] = dict.fromkeys(gpu["ecc"], error(UNKNOWN))
    gpu["sram"] = error(NOT_SUPPORTED)
    write_nvml(tree, nvml)
    with (tree / "dev/kmsg").open("a") as log:
        log.write(f"4,1339,61234567890,c;NVRM: Xid (PCI:{gpu['pci'][:-2]}): 48, pid='<unknown>', name=<unknown>, "
                  "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer.\n")  # fmt: skip
    return (
        f"GPU 6 ({gpu['pci']}) had a double-bit error (Xid 48) and no longer answers for its ECC counters: DRAM counts\n"
        "give UNKNOWN (999), SRAM counts NOT_SUPPORTED (3), although ECC is on. Neither is a healthy zero."
    )


def numa_minus_1(tree: Path) -> str:
    """The firmware says nothing about NUMA locality of PCI devices."""
    everything = (tree / "sys/devices/system/cpu/online").read_text().strip()
    for link in (tree / "sys/bus/pci/devices").iterdir():
        put(link / "numa_node", -1)
        put(link / "local_cpulist", everything)
    nvml = read_nvml(tree)
    for gpu in nvml["gpus"]:
        gpu["cpu_affinity"], gpu["numa"] = everything, error(NOT_SUPPORTED)
    write_nvml(tree, nvml)
    return "Every PCI device has numa_node -1 and all CPUs in local_cpulist: the firmware gives no locality."


EDITS = {
    "hgx-h100.xid79": xid79,
    "hgx-h100.row-remap-failed": row_remap_failed,
    "hgx-h100.width-x8": width_x8,
    "hgx-h100.ecc-unreadable": ecc_unreadable,
    "hgx-h100.numa-minus-1": numa_minus_1,
}


def write_faulty(directory: Path, name: str) -> Path:
    """Write the small, tuned `hgx-h100` with one fault."""
    tree = write_machine(directory, "hgx-h100", cpus=SMALL, tuned=True)
    what = EDITS[name](tree)
    put(tree / "README.md",
        f"# {name}\n\n{what}\n\nOtherwise the tree `hgx-h100.tuned`. Written by tests/lab/faultytrees.py; all values, the\n"
        "fault's too, are written by hand.")  # fmt: skip
    return tree


def committed() -> dict[str, Callable[[Path], Path]]:
    """Every tree of tests/machines that is generated, with what writes it; the base trees first."""
    trees: dict[str, Callable[[Path], Path]] = {
        name: (lambda directory, name=name: write_machine(directory, name))  # type: ignore[misc]
        for name in ("hgx-h100", "hgx-a100", "l40s-pcie")
    }
    trees["hgx-h100.tuned"] = lambda directory: write_machine(directory, "hgx-h100", cpus=SMALL, tuned=True)
    for name in EDITS:
        trees[name] = lambda directory, name=name: write_faulty(directory, name)  # type: ignore[misc]
    return trees
