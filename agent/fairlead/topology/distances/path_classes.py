"""Says how far two devices are apart, in the words of NCCL and of `nvidia-smi topo -m`.

NCCL's rules are from src/graph/{xml,topo,paths}.cc at commit 5067397. NCCL has no class for host bridges, so its PHB is both PHB
and NODE of nvidia-smi. The classes of this module describe the wires. A communicator may replace the path from a GPU to a far NIC
by PXN, which goes over NVLink and a GPU near that NIC. This depends on the communicator's ranks and on NCCL_PXN_DISABLE.

nvidia-smi's rule in this module reproduces published matrices. Between host bridges of one NUMA node, nvidia-smi was seen to
print NODE in one report and SYS in another (nccl#1264, nccl#1453). For binding, NODE and SYS count as one class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.model.facts import Missing, Node, PciDevice
from fairlead.topology.distances import pci_tree
from fairlead.topology.distances.accelerators import Accelerator, Linked, accelerators

# The order of NCCL's PATH_* (src/include/graph.h). The names are used, because the numbers changed when P2C was added.
NCCL_ORDER = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "DIS")


def links_between(a: Linked, b: Linked) -> int:
    """Return the number of active NVLinks between two GPUs. These are the direct links, or with NVSwitch the number of links to
    switches that both GPUs have."""
    if isinstance(a.nvlinks, Missing) or isinstance(b.nvlinks, Missing):
        return 0
    direct = sum(1 for link in a.nvlinks if link.active is True and link.remote == b.pci)
    if direct:
        return direct
    return min(sum(1 for link in g if link.active is True and link.remote == "switch") for g in (a.nvlinks, b.nvlinks))


def _numa(node: Node, address: str, otherwise: PciDevice) -> int:
    device = pci_tree.by_address(node).get(address, otherwise)
    return -1 if isinstance(device.numa, Missing) else device.numa


def nccl_pci(node: Node, a: PciDevice, b: PciDevice) -> str:
    """Return NCCL's class by the PCI tree, without NVLink: LOC, PIX, PXB, PHB or SYS."""
    if a.address == b.address:
        return "LOC"
    devices = pci_tree.by_address(node)
    chain_a, chain_b = pci_tree.nccl_chain(a, devices), pci_tree.nccl_chain(b, devices)
    for up_a, port in enumerate(chain_a):
        if port in chain_b:
            # The class is PIX if both devices are one step from the common switch. With more steps it is PXB.
            return "PIX" if max(up_a, chain_b.index(port)) <= 1 else "PXB"
    # NCCL takes the NUMA node of the last PCI node above the device, and not of the device itself.
    return "PHB" if _numa(node, chain_a[-1], a) == _numa(node, chain_b[-1], b) else "SYS"


def nccl_gpus(node: Node, a: Linked, b: Linked, peers: Sequence[Linked]) -> str:
    """Return NCCL's class between two GPUs: by NVLink, else over one GPU between them (NVB), else by PCI. It is DIS if
    unknown."""
    if a.pci == b.pci:
        return "LOC"
    if links_between(a, b):
        return "NVL"
    if any(p.pci not in (a.pci, b.pci) and links_between(a, p) and links_between(p, b) for p in peers):
        return "NVB"
    wires = nccl(node, a.pci, b.pci)
    # Both GPUs reach the same CPU over C2C.
    return "C2C" if wires == "PHB" and all(isinstance(g, Accelerator) and g.c2c for g in (a, b)) else wires


def nccl(node: Node, a: str, b: str) -> str:
    """Return NCCL's class between two PCI addresses, without NVLink. It is DIS for a device that the machine tree does not
    describe."""
    devices = pci_tree.by_address(node)
    if a not in devices or b not in devices:
        return "LOC" if a == b else "DIS"
    return nccl_pci(node, devices[a], devices[b])


def smi(node: Node, a: str, b: str) -> str:
    """Return nvidia-smi's class between two PCI addresses, without NVLink. It is SYS for a device that the node does not have."""
    if a == b:
        return "X"
    devices = pci_tree.by_address(node)
    if a not in devices or b not in devices:
        return "SYS"
    one, two = devices[a], devices[b]
    shared = pci_tree.common_ports(one, two)
    if shared > 0:
        below = max(len(pci_tree.bridges(one)), len(pci_tree.bridges(two))) - shared
        return "PIX" if below <= 1 else "PXB"
    if shared == 0:
        return "PHB"
    numa = -1 if isinstance(one.numa, Missing) else one.numa
    return "NODE" if numa >= 0 and numa == two.numa else "SYS"


def smi_gpus(node: Node, a: Linked, b: Linked) -> str:
    """Return the class as nvidia-smi's matrix shows it: NV18 for 18 NVLinks, XGMI2 for two XGMI links of AMD, else the class by
    PCI."""
    count = links_between(a, b) if a.pci != b.pci else 0
    word = "XGMI" if isinstance(a, Accelerator) and a.vendor == "AMD" else "NV"
    return f"{word}{count}" if count else smi(node, a.pci, b.pci)


class PathClasses:
    """Computes the path classes between the GPUs and NICs of one node, with NVLink and C2C."""

    def __init__(self, node: Node, nics: Iterable[str] = ()) -> None:
        """Prepare the classes. ``nics``: PCI addresses of the RDMA devices. Only the nearest of them can have the class P2C."""
        self._node = node
        self._gpus = accelerators(node)
        self._by_pci = {g.pci: g for g in self._gpus}
        self._nics = tuple(nics)

    def nccl(self, a: str, b: str) -> str:
        one, two = self._by_pci.get(a), self._by_pci.get(b)
        if one is not None and two is not None:
            return nccl_gpus(self._node, one, two, self._gpus)
        wires = nccl(self._node, a, b)
        gpu, other = (one, b) if one is not None else (two, a)
        if wires == "PHB" and gpu is not None and gpu.c2c and other in self._nics:
            # P2C is C2C to the CPU and PCI to the NIC, if that NIC is among the GPU's nearest NICs (ncclTopoComputePaths).
            nearest = min(NCCL_ORDER.index(nccl(self._node, gpu.pci, nic)) for nic in self._nics)
            return "P2C" if NCCL_ORDER[nearest] == "PHB" else wires
        return wires

    def smi(self, a: str, b: str) -> str:
        one, two = self._by_pci.get(a), self._by_pci.get(b)
        return smi_gpus(self._node, one, two) if one is not None and two is not None else smi(self._node, a, b)
