"""Finds bridges and ports in the PCI tree, from the devices' paths in sysfs."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.model.facts import Node, PciDevice


def by_address(node: Node) -> dict[str, PciDevice]:
    return {d.address: d for d in node.pci}


def bridges(device: PciDevice) -> tuple[str, ...]:
    """Return the ports above a device, from the port on the host bridge down. The host bridge itself is ``device.path[0]``."""
    return device.path[1:-1]


def host_bridge(device: PciDevice) -> str:
    """Return the host bridge of a device, such as ``pci0000:15``, or "" if its path was not read."""
    return device.path[0] if len(device.path) > 1 else ""


def common_ports(a: PciDevice, b: PciDevice) -> int:
    """Return how many ports two devices have in common, counted from the host bridge, or -1 if they have different host
    bridges."""
    if not host_bridge(a) or host_bridge(a) != host_bridge(b):
        return -1
    count = 0
    for x, y in zip(bridges(a), bridges(b), strict=False):
        if x != y:
            break
        count += 1
    return count


def ports_between(a: PciDevice, b: PciDevice) -> tuple[str, ...]:
    """Return the ports that a peer-to-peer access passes below the devices' common port, or () if it would pass a host bridge.

    If ACS redirect bits of these ports are set, the access goes up to the root instead (PCIe base specification, 6.12).
    """
    shared = common_ports(a, b)
    if shared < 1:
        return ()
    return (*reversed(bridges(a)[shared:]), *bridges(b)[shared:])


def nccl_chain(device: PciDevice, devices: Mapping[str, PciDevice]) -> tuple[str, ...]:
    """Return the PCI nodes of NCCL's graph from a device up to its CPU node (src/graph/xml.cc, ncclTopoGetXmlFromSys).

    NCCL skips the port directly above a device and takes the next port as its parent, until a component is not a PCI address.
    Broadcom's Gen4 and Gen5 switches in base mode appear as two levels. The lower level is left out (src/graph/topo.cc,
    ncclTopoFlattenBcmSwitches).
    """
    chain = [device.address]
    at = len(device.path) - 1 - 2
    while at >= 1:
        chain.append(device.path[at])
        at -= 2
    for i in range(len(chain) - 2, 0, -1):
        upper, lower = devices.get(chain[i + 1]), devices.get(chain[i])
        if upper is not None and lower is not None and _base_mode(upper, 0) and _base_mode(upper, 0) == _base_mode(lower, 1):
            del chain[i]
            break  # NCCL removes only one level of a switch
    return tuple(chain)


def _base_mode(port: PciDevice, level: int) -> int:
    """Return the generation of a Broadcom PEX switch in base mode if the port is at ``level`` of its two levels, else 0
    (getBcmGen)."""
    if port.vendor == 0x1000 and port.device == 0xC010 and port.subsystem >> 12 == 0x1000A:
        return 4
    if port.vendor == 0x1000 and port.device == 0xC030 and port.subsystem >> 12 == 0x10000 | level:
        return 5
    return 0
