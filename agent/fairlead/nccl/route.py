"""Finds which interface carries traffic besides NCCL's: the default route, and the routes to file servers.

The sources are /proc/net/route (proc_net(5): addresses and masks as hexadecimal in host byte order), /proc/net/ipv6_route and
/proc/net/if_inet6 (Linux net/ipv6/route.c, addrconf.c), and /proc/mounts (fstab(5)).
"""

from __future__ import annotations

import ipaddress

from msgspec import Struct

from fairlead.nccl import NETWORK_FILE_SYSTEMS

RTF_UP = 0x1
RTF_GATEWAY = 0x2
RTF_REJECT = 0x200


class Route(Struct, frozen=True):
    """Holds one IPv4 route. Addresses are numbers, most significant byte first."""

    interface: str
    destination: int
    mask: int
    metric: int
    gateway: bool = False


def _address(word: str) -> int:
    return int.from_bytes(bytes.fromhex(word.zfill(8)), "little")


def parse_routes(text: str) -> tuple[Route, ...]:
    """Return the routes of /proc/net/route that are up. Lines that are not routes are skipped."""
    found: list[Route] = []
    for line in text.splitlines()[1:]:
        f = line.split()
        try:
            if len(f) >= 8 and int(f[3], 16) & RTF_UP:
                found.append(Route(f[0], _address(f[1]), _address(f[7]), int(f[6]), bool(int(f[3], 16) & RTF_GATEWAY)))
        except ValueError:
            continue
    return tuple(found)


def interface_to(address: int, routes: tuple[Route, ...]) -> str:
    """Return the interface of the longest matching prefix with the lowest metric, or "" when there is none."""
    fits = [r for r in routes if address & r.mask == r.destination]
    return max(fits, key=lambda r: (r.mask, -r.metric)).interface if fits else ""


def default_interface(routes: tuple[Route, ...]) -> str:
    """Return the interface of the default route with the lowest metric, or "" when there is none."""
    default = [r for r in routes if r.mask == 0 and r.destination == 0]
    return min(default, key=lambda r: r.metric).interface if default else ""


def connected(routes: tuple[Route, ...], net: ipaddress.IPv4Network) -> tuple[str, ...]:
    """Return the interfaces with a network of their own inside ``net``."""
    first, mask = int(net.network_address), int(net.netmask)
    own = [r for r in routes if not r.gateway and r.mask & mask == mask and r.mask and r.destination & mask == first]
    return tuple(dict.fromkeys(r.interface for r in own))


def default_interface6(text: str) -> str:
    """Return the interface of the IPv6 default route in /proc/net/ipv6_route with the lowest metric, or "" when there is none."""
    found: list[tuple[int, str]] = []
    for line in text.splitlines():
        f = line.split()
        try:
            whole = len(f) >= 10 and int(f[0], 16) == 0 and int(f[1], 16) == 0
            flags = int(f[8], 16) if whole else 0
            if whole and f[9] != "lo" and flags & RTF_UP and not flags & RTF_REJECT:
                found.append((int(f[5], 16), f[9]))
        except ValueError:
            continue
    return min(found)[1] if found else ""


def parse_addresses6(text: str) -> tuple[tuple[str, ipaddress.IPv6Address], ...]:
    """Return (interface, address) pairs of /proc/net/if_inet6, without link-local and loopback addresses."""
    found = []
    for line in text.splitlines():
        f = line.split()
        try:
            if len(f) == 6 and len(f[0]) == 32:
                address = ipaddress.IPv6Address(int(f[0], 16))
                if not address.is_link_local and not address.is_loopback:
                    found.append((f[5], address))
        except ValueError:
            continue
    return tuple(found)


def ipv4(text: str) -> int | None:
    """Return a dotted quad as a number, or None for other text."""
    parts = text.split(".")
    if len(parts) != 4 or not all(p.isascii() and p.isdecimal() and len(p) <= 3 and int(p) < 256 for p in parts):
        return None
    return int.from_bytes(bytes(int(p) for p in parts), "big")


def servers(mounts: str) -> tuple[int, ...]:
    """Return the IPv4 addresses of the servers of mounted network file systems, as far as /proc/mounts has addresses."""
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
    """Return for each interface, by its name, what it carries besides NCCL."""
    routes = parse_routes(route_text)
    carried = {interface_to(a, routes): "the route to a file server" for a in servers(mounts_text)}
    carried[default_interface(routes)] = "the default route"
    carried.pop("", None)
    return carried
