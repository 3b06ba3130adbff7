"""Which interface carries what else: the default route, and the way to file servers.

Sources: /proc/net/route (proc_net(5): addresses and masks as hexadecimal in host byte order) and /proc/mounts (fstab(5)).
"""

from __future__ import annotations

from msgspec import Struct

NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "lustre", "beegfs", "ceph", "gpfs", "wekafs"})
RTF_UP = 0x1


class Route(Struct, frozen=True):
    """One IPv4 route; addresses as numbers, most significant byte first."""

    interface: str
    destination: int
    mask: int
    metric: int


def _address(word: str) -> int:
    return int.from_bytes(bytes.fromhex(word.zfill(8)), "little")


def parse_routes(text: str) -> tuple[Route, ...]:
    """The routes of /proc/net/route that are up; lines that are none are passed over."""
    found: list[Route] = []
    for line in text.splitlines()[1:]:
        f = line.split()
        try:
            if len(f) >= 8 and int(f[3], 16) & RTF_UP:
                found.append(Route(f[0], _address(f[1]), _address(f[7]), int(f[6])))
        except ValueError:
            continue
    return tuple(found)


def interface_to(address: int, routes: tuple[Route, ...]) -> str:
    """The interface of the longest matching prefix, lowest metric; "" when there is none."""
    fits = [r for r in routes if address & r.mask == r.destination]
    return max(fits, key=lambda r: (r.mask, -r.metric)).interface if fits else ""


def default_interface(routes: tuple[Route, ...]) -> str:
    """The interface of the default route with the lowest metric; "" when there is none."""
    default = [r for r in routes if r.mask == 0 and r.destination == 0]
    return min(default, key=lambda r: r.metric).interface if default else ""


def ipv4(text: str) -> int | None:
    """A dotted quad as a number; None for anything else."""
    parts = text.split(".")
    if len(parts) != 4 or not all(p.isascii() and p.isdecimal() and len(p) <= 3 and int(p) < 256 for p in parts):
        return None
    return int.from_bytes(bytes(int(p) for p in parts), "big")


def servers(mounts: str) -> tuple[int, ...]:
    """IPv4 addresses of the file servers of mounted network file systems, where /proc/mounts gives addresses."""
    found: set[int] = set()
    for line in mounts.splitlines():
        f = line.split()
        if len(f) < 4 or f[2] not in NETWORK_FILE_SYSTEMS:
            continue
        source = f[0].replace(",", ":").split(":")
        words = [w.partition("@")[0] for w in source] + [o[5:] for o in f[3].split(",") if o.startswith("addr=")]
        found.update(a for a in map(ipv4, words) if a is not None)
    return tuple(sorted(found))


def other_traffic(route_text: str, mounts_text: str) -> dict[str, str]:
    """Interface -> what it carries besides NCCL."""
    routes = parse_routes(route_text)
    carried = {interface_to(a, routes): "the route to a file server" for a in servers(mounts_text)}
    carried[default_interface(routes)] = "the default route"
    carried.pop("", None)
    return carried
