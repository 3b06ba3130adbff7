"""Reads the links between AMD GPUs from the kernel's compute driver: `properties` and `io_links/M/properties` of each node
below /sys/class/kfd/kfd/topology/nodes.

Each line of `properties` has a name and a number (drivers/gpu/drm/amd/amdkfd/kfd_topology.c). A GPU node has its PCI address
in `domain` and `location_id` (bus << 8 | device << 3 | function). A link has its `type` (11 is xGMI, kfd_crat.h), `node_from`,
`node_to` and `max_bandwidth` in MB/s. The number of a node is the name of its folder.
"""

from __future__ import annotations

from fairlead.host.root import Root
from fairlead.model.facts import GpuLink

NODES = "/sys/class/kfd/kfd/topology/nodes"
_XGMI = 11
_LINK_MB = 50_000  # one xGMI link of MI200 and MI300 has this bandwidth in each direction


def links(root: Root) -> tuple[GpuLink, ...]:
    """Return every xGMI connection between two GPUs once, sorted by PCI address, or () if the driver is not loaded."""
    numbers = [n for n in root.names(NODES) if n.isascii() and n.isdigit() and len(n) < 5]
    addresses = {n: address for n in numbers if (address := _pci_address(_properties(root, f"{NODES}/{n}/properties")))}
    found: dict[tuple[str, str], int] = {}
    for number, own in addresses.items():
        for name in root.names(f"{NODES}/{number}/io_links"):
            link = _properties(root, f"{NODES}/{number}/io_links/{name}/properties")
            other = addresses.get(str(link.get("node_to", -1)))
            if link.get("type") == _XGMI and other is not None and other != own:
                pair = (min(own, other), max(own, other))
                found[pair] = max(found.get(pair, 1), link.get("max_bandwidth", 0) // _LINK_MB)
    return tuple(GpuLink(a=a, b=b, count=count) for (a, b), count in sorted(found.items()))


def _properties(root: Root, path: str) -> dict[str, int]:
    text = root.read_text(path, 65536)
    found = {}
    for line in text.splitlines() if isinstance(text, str) else ():
        name, _, value = line.partition(" ")
        if value.isascii() and value.isdigit() and len(value) < 20:
            found[name] = int(value)
    return found


def _pci_address(properties: dict[str, int]) -> str:
    """Return the PCI address of a GPU node, or "" for the node of a CPU."""
    at = properties.get("location_id", 0)
    if not at:
        return ""
    return f"{properties.get('domain', 0):04x}:{at >> 8 & 0xFF:02x}:{at >> 3 & 0x1F:02x}.{at & 7}"
