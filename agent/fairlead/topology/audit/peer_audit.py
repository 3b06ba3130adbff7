"""Finds ACS bits that send peer-to-peer traffic up to the root, and NVLinks that are missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fairlead.model.facts import Missing
from fairlead.model.finding import Action, Finding
from fairlead.topology.audit.machine_view import MachineView, finding
from fairlead.topology.distances import link_speed, pci_tree
from fairlead.topology.distances.accelerators import Accelerator, pci_key

REDIRECT = {0x04: "ReqRedir", 0x08: "CmpltRedir", 0x20: "EgressCtrl"}  # PCIe base specification, ACS control register
CLEARED = "`fairlead apply` clears it (bare metal only)"
SXM = ("SXM", "HBM3", "GH200", "GB200", "GB300", "HGX")  # words in the names of GPUs that always have NVLink


class RedirectingPort(NamedTuple):
    """Describes a port with ACS bits that send peer-to-peer traffic up to the root.

    touched: the devices whose peer-to-peer paths go through the port. direct: the GB/s of one device below the port without these
    bits. shared: the GB/s of one device with these bits when all devices send at once. direct and shared are 0 if they are not
    known.
    """

    address: str
    control: int
    touched: tuple[str, ...]
    direct: float
    shared: float

    @property
    def evidence(self) -> str:
        """Return a text with the bits of the port, and with the devices whose peer-to-peer paths go through the port."""
        return f"{self.address} ACSCtl 0x{self.control:04x}, between {', '.join(self.touched)}"

    @property
    def cost(self) -> str:
        """Return a text with the bandwidth that the bits cost."""
        return f"{self.direct - self.shared:.1f} of {self.direct:.1f} GB/s lost"


def redirecting_ports(view: MachineView) -> list[RedirectingPort]:
    """Return the ports between two endpoints of one switch whose ACS bits send peer-to-peer traffic up to the root."""
    ends = [view.devices[a] for a in view.ends if a in view.devices]
    on_path: dict[str, set[str]] = {}
    for i, a in enumerate(ends):
        for b in ends[i + 1 :]:
            for port in pci_tree.ports_between(a, b):
                on_path.setdefault(port, set()).update((a.address, b.address))
    ports = []
    for address in sorted(on_path, key=pci_key):
        bridge = view.devices.get(address)
        if bridge is None or not isinstance(bridge.acs_control, int) or not bridge.acs_control & sum(REDIRECT):
            continue
        touched = tuple(sorted(on_path[address], key=pci_key))
        below = [a for a in touched if address in pci_tree.bridges(view.devices[a])]
        direct = max((link.now for a in below if (link := view.link(a)) is not None), default=0.0)
        shared = min((view.to_host(a) for a in below), default=0.0) / len(touched)
        ports.append(RedirectingPort(address, bridge.acs_control, touched, direct, shared))
    return ports


def redirects(view: MachineView) -> Iterable[Finding]:
    """Report the ports of ``redirecting_ports`` in one finding. For several ports the finding has no device, because their bits
    are cleared together."""
    ports = redirecting_ports(view)
    if not ports:
        return
    control = 0
    for port in ports:
        control |= port.control
    names = "+".join(name for bit, name in REDIRECT.items() if control & bit)
    if len(ports) == 1:
        port = ports[0]
        cost = f", {port.cost} when its {len(port.touched)} devices do so at once" if port.direct else ""
        words = f"port {port.address}: ACS {names} sends peer-to-peer traffic through the root complex{cost}; {CLEARED}"
    else:
        worst = max(ports, key=lambda port: port.direct - port.shared)
        cost = f", up to {worst.cost} when their devices do so at once" if worst.direct else ""
        addresses = " ".join(port.address for port in ports)
        words = (
            f"{len(ports)} bridges have ACS redirect ({names}), which sends peer-to-peer traffic through the root complex{cost}; "
            f"{CLEARED}; by hand: for b in {addresses}; do setpci -s $b ECAP_ACS+6.w=0:{sum(REDIRECT):x}; done"
        )
    device = ports[0].address if len(ports) == 1 else ""
    yield finding("acs_redirect", device, words, *(port.evidence for port in ports), action=Action.PROVISION)


def nvlinks(view: MachineView) -> Iterable[Finding]:
    """Find GPUs with fewer active NVLinks than other GPUs of the same model in the node. If none is active on a model that always
    has NVLink, report all these GPUs."""
    counts: dict[str, dict[str, tuple[int, int]]] = {}
    for gpu in view.gpus:
        if not isinstance(gpu.nvlinks, Missing):
            counts.setdefault(gpu.name, {})[gpu.pci] = (_active(gpu), len(gpu.nvlinks))
    for name, cards in counts.items():
        rate = link_speed.nvlink_bandwidth(name)
        most = max(active for active, _ in cards.values())
        if not most and len(cards) > 1 and any(word in name for word in SXM):
            most = max(every for _, every in cards.values())
        for pci, (active, _) in cards.items():
            if active >= most:
                continue
            yield finding(
                "nvlink",
                pci,
                f"GPU {pci}: {active} of {most} NVLinks are active, {(most - active) * rate:.1f} of {most * rate:.1f} GB/s lost; "
                "look at the fabric manager and at the links' error counters, then reseat the GPU or its bridge",
                f"{name}: {rate:g} GB/s a link (NCCL's figure)",
                action=Action.CHECK_FABRIC,
            )


def _active(gpu: Accelerator) -> int:
    return 0 if isinstance(gpu.nvlinks, Missing) else sum(1 for link in gpu.nvlinks if link.active is True)
