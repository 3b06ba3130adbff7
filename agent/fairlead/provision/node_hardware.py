"""Reads over ssh which hardware a node has, so that `fairlead init` can group equal nodes.

Nothing needs to be installed on the node: `head` prints files of sysfs, and every user may read them. A node's root may be
hostile. Therefore a value of another form than expected counts as not there, and texts are cut to a line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from fairlead.model.cpulist import parse_cpu_set
from fairlead.model.pci_kind import NVIDIA
from fairlead.model.plain_text import one_line
from fairlead.provision.ssh_fetch import parts_of, reading

_DEVICES = "/sys/bus/pci/devices"
_PORTS = "/sys/class/infiniband"
_DMI = "/sys/class/dmi/id"
COMMAND = reading(
    (
        *(f"{_DEVICES}/*/{name}" for name in ("vendor", "device", "class")),
        *(f"{_PORTS}/*/ports/*/{name}" for name in ("link_layer", "rate", "state")),
        *(f"{_DMI}/{name}" for name in ("sys_vendor", "product_name", "chassis_asset_tag")),
        "/proc/meminfo",
        "/sys/devices/system/cpu/online",
    )
)
#: PCI base and sub class of a GPU (display or 3D controller) and of an NVSwitch (other bridge): PCI Code and ID Assignment.
_GPU, _BRIDGE = (0x0300, 0x0302), 0x0680
_TEXT = 64
_CPULIST_MAX = 4096  # characters; a longer list would cost a hostile node nothing, and this host seconds


class SeenPort(Struct, frozen=True, order=True):
    """Describes one RDMA port. device: its kernel name. layer: InfiniBand, Ethernet, or another word for a vendor's own kind.
    gbps: its rate in Gbit/s, or 0 if it is not active."""

    device: str
    layer: str
    gbps: float


class NodeHardware(Struct, frozen=True, kw_only=True):
    """Describes the hardware of one node. gpus: how many GPUs have each PCI ID ("10de:2330"). nvswitches: how many NVSwitches the
    kernel sees. cpus: how many CPUs are online. memory_bytes: MemTotal."""

    vendor: str = ""
    product: str = ""
    asset_tag: str = ""
    gpus: Mapping[str, int] = {}
    nvswitches: int = 0
    ports: tuple[SeenPort, ...] = ()
    cpus: int = 0
    memory_bytes: int = 0

    def ports_of(self, layer: str) -> tuple[SeenPort, ...]:
        return tuple(port for port in self.ports if port.layer == layer)


def parse_hardware(answer: bytes) -> NodeHardware:
    """Return the hardware from the output of ``COMMAND``. A value that is missing or malformed counts as not there."""
    parts = {path: one_line(content.decode("utf-8", "replace")).strip() for path, content in (parts_of(answer) or {}).items()}
    gpus, nvswitches = _pci(parts)
    total = re.search(r"MemTotal:\s+([0-9]{1,12}) kB", parts.get("/proc/meminfo", ""))
    dmi = {name: parts.get(f"{_DMI}/{name}", "")[:_TEXT] for name in ("sys_vendor", "product_name", "chassis_asset_tag")}
    return NodeHardware(
        vendor=dmi["sys_vendor"],
        product=dmi["product_name"],
        asset_tag=dmi["chassis_asset_tag"],
        gpus=gpus,
        nvswitches=nvswitches,
        ports=tuple(sorted(_ports(parts))),
        cpus=_cpus(parts.get("/sys/devices/system/cpu/online", "")),
        memory_bytes=int(total[1]) * 1024 if total else 0,
    )


def _pci(parts: Mapping[str, str]) -> tuple[dict[str, int], int]:
    """Return how many of NVIDIA's GPUs have each PCI ID, and the number of NVSwitches."""
    gpus: Counter[str] = Counter()
    nvswitches = 0
    for path, text in parts.items():
        if not path.startswith(f"{_DEVICES}/") or not path.endswith("/class"):
            continue
        folder = path.removesuffix("class")
        kind, vendor, device = (_hex(t) for t in (text, parts.get(f"{folder}vendor", ""), parts.get(f"{folder}device", "")))
        if vendor == NVIDIA and kind >> 8 in _GPU:
            gpus[f"{vendor:04x}:{device & 0xFFFF:04x}"] += 1
        nvswitches += vendor == NVIDIA and kind >> 8 == _BRIDGE
    return dict(sorted(gpus.items())), nvswitches


def _hex(text: str) -> int:
    """Return the number of a sysfs file such as ``0x10de``, or 0 for any other text."""
    return int(text, 16) if re.fullmatch(r"0x[0-9a-f]{1,6}", text) else 0


def _ports(parts: Mapping[str, str]) -> Iterable[SeenPort]:
    for path, layer in parts.items():
        found = re.fullmatch(rf"({_PORTS}/([A-Za-z0-9_.-]{{1,32}})/ports/[0-9]{{1,3}})/link_layer", path)
        if not found:
            continue
        rate = re.match(r"([0-9]{1,5}(?:\.[0-9])?) Gb/sec", parts.get(f"{found[1]}/rate", ""))
        active = parts.get(f"{found[1]}/state", "").endswith("ACTIVE")
        yield SeenPort(found[2], layer[:_TEXT], float(rate[1]) if rate and active else 0.0)


def _cpus(text: str) -> int:
    try:
        return parse_cpu_set(text[:_CPULIST_MAX]).bit_count()
    except ValueError:
        return 0
