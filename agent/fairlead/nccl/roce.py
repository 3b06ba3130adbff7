"""Decides which RoCE address NCCL should use, and when /etc/nccl.conf has to name it.

The sources are NCCL 2.30.7 src/transport/net_ib and its user guide. Since 2.21, ncclIbGetGidIndex searches a port's GID table for
a RoCE v2 address of the family in NCCL_IB_ADDR_FAMILY. If NCCL_IB_ADDR_RANGE is set, the address must be in that subnet. From
2.21 on NCCL_IB_GID_INDEX "should not be set" (user guide). An index may differ between ports, nodes and boots, but an address
range is the same everywhere.
"""

from __future__ import annotations

import ipaddress

from fairlead.model.facts import Gid, Missing, Nic
from fairlead.nccl.nccl_conf import ConfLine, Draft, Problem

DYNAMIC_SINCE = (2, 21)
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def address(gid: Gid) -> Address | None:
    """Return the IP address of a GID, or None if the GID is zero, link-local or unreadable."""
    try:
        whole = ipaddress.IPv6Address(gid.text)
    except ValueError:
        return None
    if whole.ipv4_mapped is not None:
        return whole.ipv4_mapped
    return None if whole.is_link_local or int(whole) == 0 else whole


def addresses(nic: Nic) -> tuple[Address, ...]:
    """Return the port's RoCE v2 addresses, in the order of its GID table."""
    gids = () if isinstance(nic.gids, Missing) else nic.gids
    return tuple(dict.fromkeys(a for g in gids if g.version == 2 and (a := address(g)) is not None))


def draft(ports: tuple[Nic, ...], *, version: tuple[int, ...], subnet: str = "", gid_index: int | None = None) -> Draft:
    """Return what the file has to set for the compute ``ports``, all on Ethernet.

    ``subnet``, ``gid_index``: settings.nccl.roce_subnet and settings.nccl.gid_index of the site.
    """
    unread = [n for n in ports if isinstance(n.gids, Missing)]
    if unread:
        return Draft(notes=(f"{unread[0].name}: its addresses cannot be read, so the file sets none",))
    if version < DYNAMIC_SINCE:
        return _by_index(ports, gid_index)
    if gid_index is not None:
        hint = "take settings.nccl.gid_index out"
        return Draft(problems=(Problem("NCCL_IB_GID_INDEX", "NCCL 2.21 and later finds the address itself", hint),))
    return _by_address(ports, subnet)


def _by_address(ports: tuple[Nic, ...], subnet: str) -> Draft:
    found = {n.name: addresses(n) for n in ports}
    family: dict[str, list[Address]] = {name: [a for a in some if a.version == 4] for name, some in found.items()}
    lines: list[ConfLine] = []
    if not any(family.values()) and all(found.values()) and found:
        lines.append(
            ConfLine("NCCL_IB_ADDR_FAMILY", "AF_INET6", "The compute ports have IPv6 addresses only; NCCL looks for IPv4.")
        )
        family = {name: list(some) for name, some in found.items()}
    without = [name for name, some in family.items() if not some]
    if without and len(without) < len(family):
        reason = f"{', '.join(without)} without a RoCE v2 address of the kind that {len(family) - len(without)} others have"
        return Draft(problems=(Problem("NCCL_IB_ADDR_FAMILY", reason, "give the interface its address"),))
    several = [name for name, some in family.items() if len(some) > 1]
    if not subnet:
        notes: tuple[str, ...] = ()
        if several:
            said = ", ".join(map(str, family[several[0]]))
            notes = (f"{several[0]} has several RoCE v2 addresses ({said}): declare settings.nccl.roce_subnet",)
        return Draft(lines=tuple(lines), notes=notes)
    net = ipaddress.ip_network(subnet, strict=False)
    outside = [name for name, some in family.items() if not any(a in net for a in some)]
    if outside:
        return Draft(
            problems=(
                Problem(
                    "NCCL_IB_ADDR_RANGE", f"{', '.join(outside)} without an address in {net}", "see settings.nccl.roce_subnet"
                ),
            )
        )
    if several:
        why = f"{', '.join(several)}: several RoCE v2 addresses. NCCL has to use those of the compute network."
        lines.append(ConfLine("NCCL_IB_ADDR_RANGE", str(net), why))
    return Draft(lines=tuple(lines))


def _by_index(ports: tuple[Nic, ...], gid_index: int | None) -> Draft:
    """Return what the file sets for an NCCL before 2.21: one GID index for all ports. Only the site can choose the index, because
    it must be the same on all nodes. The node only checks it."""
    fits = [{g.index for g in _gids(n) if g.version == 2 and getattr(address(g), "version", 0) == 4} for n in ports]
    common = sorted(set.intersection(*fits)) if fits else []
    if gid_index is None:
        notes: tuple[str, ...] = ()
        if common:
            notes = (
                f"index {common[0]} is RoCE v2 on all ports here: if it is so on all nodes, declare settings.nccl.gid_index",
            )
        return Draft(notes=notes)
    if gid_index not in common:
        wrong = ", ".join(n.name for n, some in zip(ports, fits, strict=True) if gid_index not in some)
        reason = f"index {gid_index} is not a RoCE v2 address of IPv4 on {wrong}"
        return Draft(problems=(Problem("NCCL_IB_GID_INDEX", reason, "see show_gids on the node, and settings.nccl.gid_index"),))
    why = f"RoCE v2 and IPv4 on all {len(ports)} compute ports; NCCL before 2.21 does not look for it."
    return Draft(lines=(ConfLine("NCCL_IB_GID_INDEX", str(gid_index), why),))


def _gids(nic: Nic) -> tuple[Gid, ...]:
    return () if isinstance(nic.gids, Missing) else nic.gids
