"""Which HCA ports carry NCCL's traffic, from the node's facts.

Sources: NCCL's own selection in src/transport/net_ib (all ports that are ACTIVE with link layer InfiniBand or Ethernet)
and its user guide, environment variable NCCL_IB_HCA; the rules on top are fairlead's and numbered as in
docs/explanation. NCCL does the pairing of ranks and HCAs itself, so no rank is ever pinned here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from fairlead.model.facts import Missing, Nic, PciDevice

NVIDIA = 0x10DE


class Choice(Struct, frozen=True, kw_only=True):
    """``compute``: ports for NCCL. ``default``: the ports NCCL would take itself once all are up, so that a port that comes and
    goes changes no file. ``problems``: why the set cannot be trusted. ``left_out``: for each port that is not compute why.
    ``ports``: the compute ports themselves, by PCI address, which is NCCL's order. ``down``: ports that would be compute if up.
    """

    compute: tuple[str, ...]
    default: tuple[str, ...]
    left_out: Mapping[str, str]
    problems: tuple[str, ...] = ()
    ports: tuple[Nic, ...] = ()
    down: tuple[str, ...] = ()


def matches(name: str, pattern: str) -> bool:
    """An exact name, or a prefix with ``*`` at its end. No prefix without a star: mlx5_1 is not mlx5_10."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def gpu_paths(pci: tuple[PciDevice, ...]) -> tuple[tuple[str, ...], ...]:
    """PCI paths of the NVIDIA GPUs (3D and VGA controllers)."""
    return tuple(d.path for d in pci if d.vendor == NVIDIA and d.class_code >> 8 in (0x0300, 0x0302))


def near_gpu(path: tuple[str, ...], gpus: tuple[tuple[str, ...], ...]) -> bool:
    """Whether a PCIe switch (not only a host bridge) is above both: NCCL's classes PIX and PXB."""
    return len(path) > 2 and any(len(g) > 2 and g[:2] == path[:2] for g in gpus)


def up(nic: Nic) -> bool:
    """ACTIVE and LinkUp (the first lets NCCL use a port, the second is the link itself)."""
    return nic.state == "ACTIVE" and (nic.physical_state == "LinkUp" or isinstance(nic.physical_state, Missing))


def port_name(nic: Nic, ports_of: Counter[str]) -> str:
    return f"{nic.name}:{nic.port}" if ports_of[nic.name] > 1 else nic.name


def choose(
    nics: tuple[Nic, ...],
    pci: tuple[PciDevice, ...],
    *,
    expected: int | None,
    exclude: tuple[str, ...] = (),
    other_traffic: Mapping[str, str] | None = None,
) -> Choice:
    """The compute ports among ``nics``.

    expected: ports that the profile declares, None when it says nothing. exclude: the site's names or prefixes with ``*``.
    other_traffic: network interface -> what it carries (default route, storage); such a port is compute only beside a GPU.
    """
    rdma = [n for n in nics if n.rdma and n.link_layer in ("InfiniBand", "Ethernet")]
    ports_of = Counter(n.name for n in rdma)
    names = {id(n): port_name(n, ports_of) for n in rdma}
    paths = {d.address: d.path for d in pci}
    gpus = gpu_paths(pci)
    all_virtual = all(n.virtual_function for n in rdma)
    only_bond = all("bond" in n.name or n.master for n in rdma)
    left_out: dict[str, str] = {}
    candidates: list[tuple[Nic, bool]] = []
    for nic in rdma:
        near = near_gpu(paths.get(nic.pci, ()), gpus)
        carries = [what for i, what in (other_traffic or {}).items() if i in nic.interfaces]
        if any(matches(nic.name, p) or any(matches(i, p) for i in nic.interfaces) for p in exclude):
            left_out[names[id(nic)]] = "excluded by the site"
        elif nic.virtual_function and not all_virtual:
            left_out[names[id(nic)]] = "a virtual function"
        elif "bond" in nic.name and not only_bond:
            left_out[names[id(nic)]] = "a bond"
        elif nic.master and not only_bond:
            left_out[names[id(nic)]] = f"part of {nic.master}"
        elif carries and not near and len(rdma) > 1:
            left_out[names[id(nic)]] = f"carries {carries[0]}"
        else:
            candidates.append((nic, near))
    if any(near for _, near in candidates):
        left_out.update({names[id(n)]: "not beside a GPU" for n, near in candidates if not near})
        candidates = [(n, near) for n, near in candidates if near]
    active = [n for n, _ in candidates if up(n)]
    groups = Counter((n.link_layer, 0.0 if isinstance(n.rate_gbps, Missing) else n.rate_gbps) for n in active)
    best = max(groups, key=lambda g: (g[1], groups[g]), default=None)
    compute = [n for n in active if (n.link_layer, 0.0 if isinstance(n.rate_gbps, Missing) else n.rate_gbps) == best]
    for nic in active:
        if nic not in compute:
            left_out[names[id(nic)]] = "another link layer or rate"
    down = [n for n, _ in candidates if not up(n)]
    left_out.update({names[id(n)]: _state(n) for n in down})
    problems: tuple[str, ...] = ()
    if expected is not None and len(compute) != expected:
        said = "".join(f"; {names[id(n)]} is {_state(n)}" for n in down)
        odd = [n for n in active if n not in compute]
        said += "".join(
            f"; {names[id(n)]} is {n.link_layer} at {n.rate_gbps} Gb/s" for n in odd if not isinstance(n.rate_gbps, Missing)
        )
        problems = (f"{expected} compute ports expected, {len(compute)} usable{said}",)
    return Choice(
        compute=tuple(sorted((names[id(n)] for n in compute), key=_natural)),
        default=tuple(sorted((names[id(n)] for n in rdma), key=_natural)),
        left_out=left_out,
        problems=problems,
        down=tuple(sorted((names[id(n)] for n in down), key=_natural)),
        ports=tuple(sorted(compute, key=lambda n: (n.pci, n.port))),
    )


def _state(nic: Nic) -> str:
    state = "unreadable" if isinstance(nic.state, Missing) else nic.state
    return state if isinstance(nic.physical_state, Missing) else f"{state}/{nic.physical_state}"


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """mlx5_2 before mlx5_10."""
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
