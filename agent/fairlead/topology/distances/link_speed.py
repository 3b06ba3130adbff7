"""Computes the bandwidth of PCIe links in usable GB/s for each direction, after encoding.

The numbers are from the PCIe base specification. Generation 6 is in FLIT mode. Measured copies reach 80 to 88 % of these numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from fairlead.model.facts import Missing, Node, PciDevice, PcieLink, unreadable
from fairlead.topology.distances import pci_tree

GB_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.56}
_NOT_ASKED = unreadable("not asked")
_VENDOR = re.compile(r"vendor_id\s*:\s*(\S+)|CPU implementer\s*:\s*(\S+)|cpu\s*:\s*(POWER\S*)")
_MODEL = re.compile(r"model\s*:\s*(\d+)")


class LinkState(Struct, frozen=True, kw_only=True):
    """Describes one PCIe link: its present lanes and generation, and the lanes and generation that both ends can do. 0 means
    unknown."""

    width: int
    width_able: int
    gen: int
    gen_able: int
    device_width: int  # the width that the device alone could do
    device_gen: int

    @property
    def now(self) -> float:
        """Return the GB/s with the link's present width and the best generation that both ends can do. Idle GPUs lower the
        generation to save power."""
        return GB_PER_LANE.get(self.gen_able, 0.0) * (self.width or self.width_able)

    @property
    def able(self) -> float:
        return GB_PER_LANE.get(self.gen_able, 0.0) * self.width_able


def link_state(device: PciDevice, devices: Mapping[str, PciDevice], otherwise: PcieLink | Missing) -> LinkState | None:
    """Return the link above a device, or None if it is not known.

    ``devices``: all PCI devices by PCI address. ``otherwise``: the link as NVML reports it, which is used if sysfs has no link.
    """
    link = device.link if not isinstance(device.link, Missing) else otherwise
    if isinstance(link, Missing) or isinstance(link.width_max, Missing):
        return None
    above = devices.get(pci_tree.bridges(device)[-1]) if pci_tree.bridges(device) else None
    port = above.link if above is not None and isinstance(above.link, PcieLink) else None
    width, gen = _lanes(link.width_max), _known(link.gen_max) or _known(link.gen_current)
    widths = [w for w in (width, _lanes(port.width_max) if port else 0) if w]
    gens = [g for g in (gen, _known(port.gen_max) if port else 0) if g]
    width_now, gen_now = _lanes(link.width_current), _known(link.gen_current)
    return LinkState(
        width=width_now,
        width_able=max(min(widths, default=0), width_now),  # a link wider than its ends means that a file is wrong
        gen=gen_now,
        gen_able=max(min(gens, default=0), gen_now),
        device_width=width,
        device_gen=gen,
    )


def bandwidth_to_host(device: PciDevice, devices: Mapping[str, PciDevice], otherwise: PcieLink | Missing) -> float:
    """Return the GB/s from a device to its CPU, which is the bandwidth of the slowest link between them, or 0 if it is not
    known."""
    found = [link_state(device, devices, otherwise)]
    for address in pci_tree.bridges(device):
        port = devices.get(address)
        if port is not None and port.bridge_role == "switch_upstream":
            found.append(link_state(port, devices, _NOT_ASKED))
    return min((t.now for t in found if t is not None and t.now), default=0.0)


def bandwidth_between_sockets(node: Node) -> float:
    """Return the GB/s that NCCL assumes between CPU sockets (src/graph/topo.h, *_BW), or 0 for a processor that NCCL does not
    list."""
    text = node.text("/proc/cpuinfo")
    match = _VENDOR.search(text) if isinstance(text, str) else None
    if match is None or not isinstance(text, str):
        return 0.0
    vendor, implementer, power = match.groups()
    if power:
        return 32.0
    if implementer or vendor == "ARM":
        return 6.0
    if vendor == "AuthenticAMD":
        return 16.0
    model = _MODEL.search(text)
    number = int(model[1]) if model else 0
    # model numbers: Skylake 0x55, Sapphire Rapids 0x8f, Emerald Rapids 0xcf, later models higher
    return 40.0 if number >= 0xCF else 22.0 if number >= 0x8F else 10.0


# NCCL assumes these GB/s for each NVLink and direction (src/graph/topo.h, SM*_NVLINK_BW). The words are parts of the GPU's name.
NVLINK = (
    (("B200", "B300", "GB200", "GB300", "B100"), 40.1),
    (("H100", "H200", "H800", "H20", "GH200"), 20.6),
    (("A100", "A800", "A30", "V100"), 20.0),
    (("P100",), 18.0),
)
NVLINK_OTHERS = 12.0  # SM86: RTX 3090, A6000, A40


def nvlink_bandwidth(name: str) -> float:
    """Return the GB/s of one NVLink of a GPU with this product name."""
    for words, rate in NVLINK:
        if any(word in name for word in words):
            return rate
    return NVLINK_OTHERS


def _lanes(value: int | Missing) -> int:
    """Return the number of lanes, or 0 for a width that PCIe does not have. For a device off the bus, 63 lanes are read."""
    known = _known(value)
    return known if known in (1, 2, 4, 8, 12, 16, 32) else 0


def _known(value: int | Missing) -> int:
    return 0 if isinstance(value, Missing) else value
