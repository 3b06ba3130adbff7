"""Describes a node as the audit and the picture need it: GPUs, NICs and PCI devices by address, computed once."""

from __future__ import annotations

from fairlead.model.facts import Node, PciDevice, unreadable
from fairlead.model.finding import Action, Finding, Level, Service
from fairlead.topology.distances import link_speed, locality, nearest_nics, pci_tree
from fairlead.topology.distances.accelerators import accelerators
from fairlead.topology.distances.path_classes import PathClasses

_NOT_ASKED = unreadable("not asked")


class MachineView:
    """Holds the GPUs, NICs and PCI devices of one node. ``ends``: the name of each GPU and NIC in messages, by PCI address, GPUs
    first."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.devices = pci_tree.by_address(node)
        self.gpus = accelerators(node)
        self.nics = nearest_nics.functions(node)
        self.classes = PathClasses(node, [nic.pci for nic in self.nics])
        self.ends = {gpu.pci: f"GPU {gpu.pci}" for gpu in self.gpus}
        for nic in self.nics:
            self.ends.setdefault(nic.pci, f"NIC {nic.name} {nic.pci}")
        self.ports_below: dict[str, int] = {}  # for each bridge, the number of bridges directly below it
        for device in node.pci:
            if device.class_code >> 8 == 0x0604 and len(device.path) > 2:
                self.ports_below[device.path[-2]] = self.ports_below.get(device.path[-2], 0) + 1
        self._links = {gpu.pci: gpu.pcie for gpu in self.gpus}
        self._packages: dict[int, set[int]] = {}
        for cpu in node.cpus:
            if cpu.online:
                self._packages.setdefault(cpu.numa, set()).add(cpu.package)
        self.sockets = link_speed.bandwidth_between_sockets(node)

    def link(self, address: str) -> link_speed.LinkState | None:
        """Return the link directly above a device, or None if it is not known."""
        device = self.devices.get(address)
        return link_speed.link_state(device, self.devices, self._links.get(address, _NOT_ASKED)) if device is not None else None

    def to_host(self, address: str) -> float:
        """Return the bandwidth from a device to its CPU in GB/s, or 0 if it is not known."""
        device = self.devices.get(address)
        return (
            link_speed.bandwidth_to_host(device, self.devices, self._links.get(address, _NOT_ASKED))
            if device is not None
            else 0.0
        )

    def uplinks(self, address: str) -> tuple[PciDevice, ...]:
        """Return the upstream ports of the switches above a device, outermost first."""
        device = self.devices.get(address)
        found = (self.devices.get(port) for port in (pci_tree.bridges(device) if device is not None else ()))
        return tuple(port for port in found if port is not None and port.bridge_role == "switch_upstream")

    def numa(self, address: str) -> int:
        return locality.of_pci(self.node, address).numa

    def package(self, address: str) -> int:
        """Return the socket of a device, or -1 if its NUMA node is unknown or spans several sockets."""
        found = self._packages.get(self.numa(address), set())
        return next(iter(found)) if len(found) == 1 else -1


def finding(
    check: str,
    device: str,
    summary: str,
    *evidence: str,
    action: Action = Action.CHECK_HARDWARE,
    level: Level = Level.WARN,
) -> Finding:
    """Return a finding of the audit. ``check``: the name of the check without the prefix "topology."."""
    return Finding(
        check=f"topology.{check}",
        level=level,
        device=device,
        summary=summary,
        evidence=evidence,
        action=action,
        service=Service.KEEP,
    )


def lost(now: float, able: float) -> str:
    """Return a text such as ``31.5 of 63.0 GB/s lost``. ``now``: the present GB/s. ``able``: the possible GB/s."""
    return f"{able - now:.1f} of {able:.1f} GB/s lost" if able else "lost GB/s not known"
