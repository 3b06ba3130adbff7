"""The PCI tree, read from the devices' paths: common bridges, the switch above a device, ports on a way."""

from __future__ import annotations

from fairlead.model.facts import Node, PciDevice


def by_address(node: Node) -> dict[str, PciDevice]:
    return {d.address: d for d in node.pci}


def bridges(device: PciDevice) -> tuple[str, ...]:
    """The ports above a device, from the one on the host bridge down; its host bridge is ``device.path[0]``."""
    return device.path[1:-1]


def host_bridge(device: PciDevice) -> str:
    """``pci0000:15``, or "" when the path was not read."""
    return device.path[0] if len(device.path) > 1 else ""


def common_ports(a: PciDevice, b: PciDevice) -> int:
    """How many ports both have above them, counted from the host bridge; -1 for different host bridges."""
    if not host_bridge(a) or host_bridge(a) != host_bridge(b):
        return -1
    count = 0
    for x, y in zip(bridges(a), bridges(b), strict=False):
        if x != y:
            break
        count += 1
    return count


def ports_between(a: PciDevice, b: PciDevice) -> tuple[str, ...]:
    """The ports that a peer-to-peer access passes below their common port; () when it would pass a host bridge.

    Those are the ports whose ACS redirect bits send it up to the root instead (PCIe base specification, 6.12).
    """
    shared = common_ports(a, b)
    if shared < 1:
        return ()
    return (*reversed(bridges(a)[shared:]), *bridges(b)[shared:])


def nccl_chain(device: PciDevice) -> tuple[str, ...]:
    """The PCI nodes of NCCL's graph from a device up to its CPU node (src/graph/xml.cc, ncclTopoGetXmlFromSys):
    the port right above is skipped, the one above that becomes the parent, until a component is no PCI address."""
    chain = [device.address]
    at = len(device.path) - 1 - 2
    while at >= 1:
        chain.append(device.path[at])
        at -= 2
    return tuple(chain)
