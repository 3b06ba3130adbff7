"""Chooses from the node's facts which HCA ports carry NCCL's traffic.

The sources are NCCL's own selection in src/transport/net_ib (all ports that are ACTIVE with link layer InfiniBand or Ethernet)
and its user guide, environment variable NCCL_IB_HCA. fairlead adds rules of its own, which docs/explanation/nccl-conf.md lists.
NCCL pairs ranks and HCAs itself, so fairlead never ties a rank to an HCA.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from fairlead.model.facts import Missing, Nic, PciDevice

NVIDIA = 0x10DE


class HcaChoice(Struct, frozen=True, kw_only=True):
    """Holds which ports of a node are for NCCL, and why the others are not.

    compute: the names of the ports for NCCL. default: the names of the ports that NCCL itself would take if all ports were up. It
    has ports that are down too, so that a port that goes down and up does not change the file. problems: why the choice cannot be
    trusted. left_out: for each other port, by its name, why it is no compute port. ports: the compute ports themselves, in the
    order of PCI addresses, which is NCCL's order. down: the names of ports that would be compute ports if they were up.
    """

    compute: tuple[str, ...]
    default: tuple[str, ...]
    left_out: Mapping[str, str]
    problems: tuple[str, ...] = ()
    ports: tuple[Nic, ...] = ()
    down: tuple[str, ...] = ()


def matches(name: str, pattern: str) -> bool:
    """Return whether a name is equal to ``pattern``. If ``pattern`` ends in ``*``, return whether the name begins with the text
    before it. mlx5_1 does not match mlx5_10."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def gpu_paths(pci: tuple[PciDevice, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the PCI paths of the NVIDIA GPUs (3D and VGA controllers)."""
    return tuple(d.path for d in pci if d.vendor == NVIDIA and d.class_code >> 8 in (0x0300, 0x0302))


def near_gpu(path: tuple[str, ...], gpus: tuple[tuple[str, ...], ...]) -> bool:
    """Return whether a PCIe switch (not only a host bridge) is above both the device and a GPU. NCCL calls this PIX or PXB."""
    return len(path) > 2 and any(len(g) > 2 and g[:2] == path[:2] for g in gpus)


def up(nic: Nic) -> bool:
    """Return whether a port is ACTIVE and LinkUp. NCCL uses a port that is ACTIVE. LinkUp is the state of the physical link."""
    return nic.state == "ACTIVE" and (nic.physical_state == "LinkUp" or isinstance(nic.physical_state, Missing))


def port_name(nic: Nic, ports_of: Counter[str]) -> str:
    """Return the name of a port for NCCL_IB_HCA: mlx5_0, or mlx5_0:2 if the device has several ports."""
    return f"{nic.name}:{nic.port}" if ports_of[nic.name] > 1 else nic.name


def choose(
    nics: tuple[Nic, ...],
    pci: tuple[PciDevice, ...],
    *,
    expected: int | None,
    exclude: tuple[str, ...] = (),
    other_traffic: Mapping[str, str] | None = None,
) -> HcaChoice:
    """Return which ports of ``nics`` are compute ports.

    ``expected``: how many ports the profile declares, or None if it declares none. ``exclude``: the devices and interfaces that
    the site excludes, each by its name or by a prefix with ``*``. ``other_traffic``: by interface, what it carries besides NCCL
    (default route, storage). A port with such an interface is a compute port only beside a GPU, or if it is the only port.
    """
    rdma = [n for n in nics if n.rdma and n.link_layer in ("InfiniBand", "Ethernet")]
    names = _Names(rdma)
    candidates, left_out = _candidates(rdma, names, pci, exclude, other_traffic or {})
    active = [n for n in candidates if up(n)]
    down = [n for n in candidates if not up(n)]
    compute = _fastest(active)
    left_out |= {names.of(n): "another link layer or rate" for n in active if n not in compute}
    left_out |= {names.of(n): _state(n) for n in down}
    return HcaChoice(
        compute=names.in_order(compute),
        default=names.in_order(rdma),
        left_out=left_out,
        problems=_problems(names, expected, compute, active, down),
        down=names.in_order(down),
        ports=tuple(sorted(compute, key=lambda n: (n.pci, n.port))),
    )


class _Names:
    """Holds the names of a node's RDMA ports (see port_name)."""

    def __init__(self, rdma: list[Nic]) -> None:
        self._ports_of = Counter(n.name for n in rdma)

    def of(self, nic: Nic) -> str:
        return port_name(nic, self._ports_of)

    def in_order(self, nics: list[Nic]) -> tuple[str, ...]:
        """Return the names of these ports, mlx5_2 before mlx5_10."""
        return tuple(sorted((self.of(n) for n in nics), key=_natural))


def _candidates(
    rdma: list[Nic], names: _Names, pci: tuple[PciDevice, ...], exclude: tuple[str, ...], other_traffic: Mapping[str, str]
) -> tuple[list[Nic], dict[str, str]]:
    """Return the ports that may be compute ports when they are up. For each other port, by its name, return why it may not.

    If one of the ports is beside a GPU, the ports that are not beside a GPU are left out.
    """
    all_virtual = all(n.virtual_function for n in rdma)
    only_bond = all("bond" in n.name or n.master for n in rdma)
    paths = {d.address: d.path for d in pci}
    gpus = gpu_paths(pci)
    left_out: dict[str, str] = {}
    candidates: list[tuple[Nic, bool]] = []
    for nic in rdma:
        near = near_gpu(paths.get(nic.pci, ()), gpus)
        carries = [what for i, what in other_traffic.items() if i in nic.interfaces]
        if any(matches(nic.name, p) or any(matches(i, p) for i in nic.interfaces) for p in exclude):
            left_out[names.of(nic)] = "excluded by the site"
        elif nic.virtual_function and not all_virtual:
            left_out[names.of(nic)] = "a virtual function"
        elif "bond" in nic.name and not only_bond:
            left_out[names.of(nic)] = "a bond"
        elif nic.master and not only_bond:
            left_out[names.of(nic)] = f"part of {nic.master}"
        elif carries and not near and len(rdma) > 1:
            left_out[names.of(nic)] = f"carries {carries[0]}"
        else:
            candidates.append((nic, near))
    if any(near for _, near in candidates):
        left_out |= {names.of(n): "not beside a GPU" for n, near in candidates if not near}
        candidates = [(n, near) for n, near in candidates if near]
    return [n for n, _ in candidates], left_out


def _fastest(active: list[Nic]) -> list[Nic]:
    """Return the ports of the link layer and rate that is the fastest. If two link layers have equal rates, return the ports of
    the link layer with more ports."""
    groups = Counter(map(_link, active))
    best = max(groups, key=lambda g: (g[1], groups[g]), default=None)
    return [n for n in active if _link(n) == best]


def _link(nic: Nic) -> tuple[str, float]:
    """Return the link layer, and the rate in Gb/s (0 if it cannot be read)."""
    return nic.link_layer, 0.0 if isinstance(nic.rate_gbps, Missing) else nic.rate_gbps


def _problems(names: _Names, expected: int | None, compute: list[Nic], active: list[Nic], down: list[Nic]) -> tuple[str, ...]:
    """Return () if as many ports are usable as expected. Otherwise return one line with the state of the unusable ports."""
    if expected is None or len(compute) == expected:
        return ()
    said = "".join(f"; {names.of(n)} is {_state(n)}" for n in down)
    odd = [n for n in active if n not in compute]
    said += "".join(
        f"; {names.of(n)} is {n.link_layer} at {n.rate_gbps} Gb/s" for n in odd if not isinstance(n.rate_gbps, Missing)
    )
    return (f"{expected} compute ports expected, {len(compute)} usable{said}",)


def _state(nic: Nic) -> str:
    state = "unreadable" if isinstance(nic.state, Missing) else nic.state
    return state if isinstance(nic.physical_state, Missing) else f"{state}/{nic.physical_state}"


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts mlx5_2 before mlx5_10."""
    parts: list[tuple[int, int, str]] = []
    word = ""
    digits = ""
    for c in name + "\0":
        if c.isascii() and c.isdigit():
            digits += c
            continue
        if digits:
            parts += [(0, 0, word), (1, int(digits), "")]
            word = digits = ""
        word += c
    return (*parts, (0, 0, word))
