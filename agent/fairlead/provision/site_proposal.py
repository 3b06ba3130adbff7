"""Groups nodes with equal hardware and proposes a class, a hardware profile and a fabric for each group.

This module only proposes. A value that the profile does not declare is written as a comment, because a person has to confirm it:
a node that lacks a part today must not make the missing part the expectation of its class.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from fairlead.model.nodelist import in_order
from fairlead.model.profile_files import Profile
from fairlead.provision.node_hardware import NodeHardware

INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"
#: A cloud by the DMI text that its machines have (systemd, src/basic/virt.c and its tests; OCI: the instance metadata guide).
_CLOUDS = (("vendor", "Amazon EC2", "aws"), ("vendor", "Google", "gcp"), ("vendor", "Microsoft Corporation", "azure"),
           ("asset_tag", "OracleCloud.com", "oci"))  # fmt: skip
_ROCE_GBPS = 100.0  # a slower Ethernet port with RDMA is the node's management or storage network
_MEMORY_STEP = 1 << 34  # nodes with equal DIMMs differ by what firmware and kernel keep, far less than 16 GiB


class ProposedClass(Struct, frozen=True, kw_only=True):
    """Describes a class to propose. profile: None if no profile matches its GPUs. like: the hardware that most of its nodes have.
    unlike: in one line for each difference, which nodes differ from ``like``."""

    name: str
    nodes: tuple[str, ...]
    profile: Profile | None
    fabric: str
    like: NodeHardware
    unlike: tuple[str, ...] = ()


class Proposal(Struct, frozen=True, kw_only=True):
    """Holds what to propose. without: nodes that get no class, by the reason."""

    classes: tuple[ProposedClass, ...]
    without: Mapping[str, tuple[str, ...]]


def propose(machines: Mapping[str, NodeHardware], profiles: Sequence[Profile]) -> Proposal:
    """Return the classes for these nodes. Equal nodes get the same class, in the order of their names."""
    without: dict[str, list[str]] = {}
    groups: dict[tuple[Any, ...], list[str]] = {}
    for node in in_order(machines):
        machine = machines[node]
        if not machine.gpus:
            without.setdefault("it has no NVIDIA GPU that the kernel sees", []).append(node)
            continue
        profile = profile_of(machine, profiles)
        count = 0 if profile and profile.match and profile.match.gpu_count else sum(machine.gpus.values())
        kind = (profile.name if profile else "", tuple(machine.gpus), machine.vendor, machine.product, machine.cpus)
        groups.setdefault((*kind, count), []).append(node)
    for key in _fewer_gpus(groups):
        more = max(other[-1] for other in groups if other[:-1] == key[:-1])
        words = f"it has {key[-1]} GPUs and most nodes of its kind have {more}: repair it, or give it a class of its own"
        without.setdefault(words, []).extend(groups.pop(key))
    names: set[str] = set()
    classes = [_class(nodes, {n: machines[n] for n in nodes}, profiles, len(machines), names) for nodes in groups.values()]
    return Proposal(classes=tuple(classes), without={why: tuple(in_order(nodes)) for why, nodes in without.items()})


def _fewer_gpus(groups: Mapping[tuple[Any, ...], list[str]]) -> list[tuple[Any, ...]]:
    """Return the groups that have fewer nodes, and fewer GPUs in each node, than a group that is otherwise equal."""
    return [
        key
        for key, nodes in groups.items()
        if any(o[:-1] == key[:-1] and o[-1] > key[-1] and len(groups[o]) > len(nodes) for o in groups)
    ]


def profile_of(machine: NodeHardware, profiles: Iterable[Profile]) -> Profile | None:
    """Return the profile for this hardware, or None if none matches. Of several boards with the same GPU, the board with as many
    NVSwitches comes first, then the smallest board that has room for all GPUs of the node."""
    count = sum(machine.gpus.values())
    found = [
        (match.nvswitches != machine.nvswitches, match.gpu_count or count, profile.name, profile)
        for profile in profiles
        if (match := profile.match) and set(machine.gpus) <= set(match.gpus) and (match.gpu_count or count) >= count
    ]
    return min(found, key=lambda row: row[:3])[3] if found else None


def _class(
    nodes: Sequence[str], machines: Mapping[str, NodeHardware], profiles: Sequence[Profile], total: int, names: set[str]
) -> ProposedClass:
    like = machines[_usual(nodes, lambda node: _figures(machines[node]))]
    profile = profile_of(machines[nodes[0]], profiles)
    return ProposedClass(
        name=_name(profile.name if profile else _gpu_name(like), like, names),
        nodes=tuple(nodes),
        profile=profile,
        fabric=fabric_of(like, profile, alone=total == 1),
        like=like,
        unlike=tuple(_differences(machines, like)),
    )


def _usual(nodes: Sequence[str], figure: Callable[[str], Any]) -> str:
    """Return the first node with the most frequent figure."""
    most, _ = Counter(figure(node) for node in nodes).most_common(1)[0]
    return next(node for node in nodes if figure(node) == most)


def _figures(machine: NodeHardware) -> tuple[tuple[str, int], ...]:
    return (
        ("GPUs", sum(machine.gpus.values())),
        ("NVSwitches", machine.nvswitches),
        ("active InfiniBand ports", sum(p.gbps > 0 for p in machine.ports_of(INFINIBAND))),
        ("active RDMA ports on Ethernet", sum(p.gbps > 0 for p in machine.ports_of(ETHERNET))),
        ("GiB of memory", round(machine.memory_bytes / _MEMORY_STEP) * 16),
    )


def _differences(machines: Mapping[str, NodeHardware], like: NodeHardware) -> Iterable[str]:
    """Yield one line for each figure and value in which nodes differ from the usual node of their class."""
    usual = dict(_figures(like))
    for name, value in usual.items():
        others: dict[int, list[str]] = {}
        for node, machine in machines.items():
            found = dict(_figures(machine))[name]
            if found != value:
                others.setdefault(found, []).append(node)
        for found, nodes in sorted(others.items()):
            yield f"{', '.join(nodes[:8])}{' and others' if len(nodes) > 8 else ''}: {found} {name}, most nodes have {value}"


def _gpu_name(machine: NodeHardware) -> str:
    return "gpu-" + "-".join(word.partition(":")[2] for word in machine.gpus)


def _name(base: str, machine: NodeHardware, names: set[str]) -> str:
    """Return a name that no other class has: the base, the base with the product, or the base with a number."""
    product = re.sub(r"[^a-z0-9]+", "-", machine.product.lower()).strip("-")[:32]
    words = [base, *([f"{base}-{product}"] if product else []), *(f"{base}-{number}" for number in range(2, len(names) + 3))]
    name = next(word for word in words if word not in names)
    names.add(name)
    return name


def fabric_of(machine: NodeHardware, profile: Profile | None, *, alone: bool) -> str:
    """Return the fabric profile for this hardware. ``alone``: the site has only this node."""
    cloud = next((name for field, text, name in _CLOUDS if getattr(machine, field) == text), "")
    family = profile.name.removeprefix("hgx-") if profile is not None and profile.name.startswith("hgx-") else ""
    board = next((word for word in ("a100", "h100", "h200", "b200") if word == family), "")
    layers = {port.layer for port in machine.ports}
    fast_ethernet = any(port.gbps >= _ROCE_GBPS for port in machine.ports_of(ETHERNET))
    of_cloud = {
        "aws": "aws-efa" if layers - {INFINIBAND, ETHERNET} else "",
        "azure": {"a100": "azure-nd-a100"}.get(board, "azure-nd-h100") if INFINIBAND in layers else "",
        "oci": f"oci-bm-{'h200' if board == 'b200' else board}" if fast_ethernet and board else "",
        "gcp": "gcp",
    }.get(cloud, "")
    links = next((v.value for v in profile.values if v.key == "checks.nvlink.links"), 0) if profile else 0
    alone_or_tcp = ("nvlink" if links else "pcie") if alone else "tcp"
    return of_cloud or ("infiniband" if INFINIBAND in layers else "roce" if fast_ethernet else alone_or_tcp)
