"""Finds links that run below what both ends can do, devices behind the chipset, and uplinks that several GPUs share."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.model.facts import Missing, PciDevice
from fairlead.model.finding import Action, Finding, Level
from fairlead.topology.audit.machine_view import MachineView, finding, lost
from fairlead.topology.distances import pci_tree

INTEL, AMD = 0x8086, 0x1022
PCH_SLOTS = range(0x1A, 0x1E)  # root ports of Intel's chipsets are 00:1a.x to 00:1d.x
# These are the device ids of the upstream ports of AMD's chipset switches (https://pci-ids.ucw.cz, X370 to 600 series). Some GPUs
# have switches with the same vendor id (1470 Vega, 1500 MI300), so the vendor id alone does not identify a chipset.
AMD_CHIPSETS = frozenset({0x43B0, 0x43B1, 0x43B4, 0x43C6, 0x43C7, 0x43E9, 0x43F4, 0x43F5, 0x57AD})
BUSY_PERCENT = 10


def narrow(view: MachineView) -> Iterable[Finding]:
    """Find links of GPUs, NICs and the switches above them that have fewer lanes than both their ends can do."""
    for address, what in _with_switches(view).items():
        link = view.link(address)
        if link is None or not 0 < link.width < link.width_able:
            continue
        able = link.able
        yield finding(
            "link_width",
            address,
            f"{what}: PCIe link is x{link.width} instead of x{link.width_able}, {lost(link.now, able)}; reseat the card or its "
            "riser, then swap slots to see which of the two is at fault",
            f"current_link_width {link.width}, max_link_width {link.width_able}",
        )
    for address, what in view.ends.items():
        link = view.link(address)
        if link is None or not 0 < link.width_able < link.device_width or _behind_chipset(view, address):
            continue
        full = link.able * link.device_width / link.width_able
        yield finding(
            "slot",
            address,
            f"{what}: its slot has x{link.width_able}, the card could use x{link.device_width}, {lost(link.able, full)}; move it "
            "to a wider slot",
            level=Level.OK,
        )


def slow(view: MachineView) -> Iterable[Finding]:
    """Find links below the generation that both ends can do. An idle GPU lowers its link on purpose, so only a busy GPU is
    judged."""
    busy = set()
    gpus = () if isinstance(view.node.gpus, Missing) else view.node.gpus
    for gpu in gpus:
        if not isinstance(gpu.utilization_percent, Missing) and gpu.utilization_percent >= BUSY_PERCENT:
            busy.add(gpu.pci)
    cards = {gpu.pci for gpu in view.gpus}
    for address, what in _with_switches(view).items():
        link = view.link(address)
        if address in cards and address not in busy:
            continue
        if link is None or not 0 < link.gen < link.gen_able:
            continue
        now = link.able * _ratio(link.gen, link.gen_able)
        load = " under load" if address in cards else ""
        yield finding(
            "link_speed",
            address,
            f"{what}: PCIe link runs at generation {link.gen} instead of {link.gen_able}{load}, {lost(now, link.able)}; "
            "reseat it, look for AER errors, and set the slot's speed in the firmware to automatic",
            f"generation {link.gen}, both ends can do {link.gen_able}",
        )


def chipset(view: MachineView) -> Iterable[Finding]:
    """Find GPUs and NICs behind the chipset, whose few lanes they share with disks and USB."""
    for address, what in view.ends.items():
        port = _behind_chipset(view, address)
        if not port:
            continue
        link = view.link(address)
        full = 0.0 if link is None else _full(link.device_gen, link.device_width)
        yield finding(
            "chipset",
            address,
            f"{what} is behind the chipset (port {port}), not on the CPU: {lost(view.to_host(address), full)}; move it to a "
            "slot that is wired to the CPU",
            f"path {' '.join(view.devices[address].path)}",
        )


def shared_uplinks(view: MachineView) -> Iterable[Finding]:
    """Find switches with several GPUs, if the switch's link to the CPU is slower than the links of these GPUs together.

    If all GPUs of the node share their uplinks equally, the machine is built like that. The finding is then OK. If NVLink also
    connects these GPUs, there is no finding, because they send little over the uplink. If some GPUs have less bandwidth than
    others, a card is in the wrong slot.
    """
    groups: dict[str, list[str]] = {}
    for gpu in view.gpus:
        for port in view.uplinks(gpu.pci):
            groups.setdefault(port.address, []).append(gpu.pci)
    tight: dict[str, tuple[float, float, list[str]]] = {}
    for address, cards in groups.items():
        link = view.link(address)
        wanted = sum(own.able for card in cards if (own := view.link(card)) is not None)
        if link is None or len(cards) < 2 or not link.now or wanted <= link.now * 1.01:
            continue
        tight[address] = (link.now, wanted, cards)
    for address in [a for a in tight if any(o != a and _worse(tight[o], tight[a]) for o in tight)]:
        del tight[address]
    bandwidth = {card: up / len(cards) for up, _, cards in tight.values() for card in cards}
    even = len(bandwidth) == len(view.gpus) and max(bandwidth.values(), default=0) <= 1.01 * min(bandwidth.values(), default=0)
    joined = all(
        view.classes.smi(a.pci, b.pci).startswith(("NV", "XGMI")) for a in view.gpus for b in view.gpus if a.pci != b.pci
    )
    if even and joined:
        return
    for address, (up, wanted, cards) in sorted(tight.items()):
        worst = up / len(cards) <= 1.01 * min(bandwidth.values())
        yield finding(
            "uplink",
            address,
            f"{len(cards)} GPUs behind switch {address} share {up:.1f} GB/s to the CPU: {wanted - up:.1f} of {wanted:.1f} GB/s "
            f"lost, {up / len(cards):.1f} each when all copy; "
            + ("all GPUs of this board do" if even else "move some to a switch or root port with fewer GPUs"),
            f"GPUs {', '.join(cards)}",
            action=Action.NONE if even else Action.CHECK_HARDWARE,
            level=Level.OK if even or not worst else Level.WARN,
        )


def _worse(other: tuple[float, float, list[str]], one: tuple[float, float, list[str]]) -> bool:
    """Return whether the ``other`` bottleneck has at least the same GPUs as this one, and no more bandwidth for each GPU."""
    if set(one[2]) == set(other[2]):
        return other[0] < one[0]
    return set(one[2]) < set(other[2]) and other[0] / len(other[2]) <= one[0] / len(one[2])


def _with_switches(view: MachineView) -> dict[str, str]:
    named = dict(view.ends)
    for address in view.ends:
        for port in view.uplinks(address):
            named.setdefault(port.address, f"uplink of switch {port.address}")
    return named


def _behind_chipset(view: MachineView, address: str) -> str:
    """Return the chipset's port above a device, or "" if there is none. The ports of Intel's chipsets are the root ports 00:1a to
    00:1d."""
    device = view.devices.get(address)
    for port in (view.devices.get(a) for a in (pci_tree.bridges(device) if device is not None else ())):
        if port is not None and of_chipset(port):
            return port.address
    return ""


def of_chipset(port: PciDevice) -> bool:
    """Return whether this port belongs to the chipset."""
    if port.class_code >> 8 != 0x0604:
        return False
    bus, _, slot = port.address.partition(":")[2].partition(":")
    if port.vendor == INTEL and bus == "00":
        return int(slot.partition(".")[0], 16) in PCH_SLOTS and port.bridge_role in ("", "root_port")
    return port.vendor == AMD and port.device in AMD_CHIPSETS


def _full(gen: int, width: int) -> float:
    from fairlead.topology.distances.link_speed import GB_PER_LANE

    return GB_PER_LANE.get(gen, 0.0) * width


def _ratio(gen: int, able: int) -> float:
    full = _full(able, 1)
    return _full(gen, 1) / full if full else 0.0
