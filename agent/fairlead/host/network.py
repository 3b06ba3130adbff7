"""Reads network devices: RDMA ports from /sys/class/infiniband, interfaces from /sys/class/net.

Attributes: Documentation/ABI/stable/sysfs-class-infiniband, Documentation/ABI/testing/sysfs-class-net.
"""

from __future__ import annotations

from fairlead.host.pci import ADDRESS
from fairlead.host.root import Root
from fairlead.model.facts import Gid, Missing, Nic, PciDevice, unreadable

_RDMA = "/sys/class/infiniband"
_NET = "/sys/class/net"
_GIDS_MAX = 64  # a table may have 256 entries, and the lowest free entry is used first
_GIDS_EMPTY = 8  # the search ends after this many free entries in a row
_TYPES = {"1": "Ethernet", "32": "InfiniBand"}  # include/uapi/linux/if_arp.h ARPHRD_*


def nics(root: Root, pci: tuple[PciDevice, ...]) -> tuple[Nic, ...]:
    """Return the RDMA ports, then the interfaces that have a device, and the bonds. Bridges, tunnels and the like are left
    out."""
    by_address = {d.address: d for d in pci}
    found = [nic for name in root.names(_RDMA) for nic in _rdma(root, name, by_address)]
    found += [nic for name in root.names(_NET) if (nic := _interface(root, name, by_address)) is not None]
    return tuple(found)


def _rdma(root: Root, name: str, pci: dict[str, PciDevice]) -> list[Nic]:
    folder = f"{_RDMA}/{name}"
    address = _address(root, folder)
    interfaces = root.names(f"{folder}/device/net") if address else ()
    ports = [p for p in root.names(f"{folder}/ports") if p.isascii() and p.isdigit() and len(p) < 4]
    return [_port(root, name, int(port), address, interfaces, pci) for port in sorted(ports, key=int)]


def _port(root: Root, name: str, port: int, address: str, interfaces: tuple[str, ...], pci: dict[str, PciDevice]) -> Nic:  # noqa: PLR0917
    folder = f"{_RDMA}/{name}/ports/{port}"
    layer = _text(root.value(f"{folder}/link_layer"))
    own = _own(root, interfaces, port)
    return Nic(
        name=name,
        pci=address,
        rdma=True,
        port=port,
        link_layer=layer,
        state=_word(root.value(f"{folder}/state")),
        physical_state=_word(root.value(f"{folder}/phys_state")),
        rate_gbps=_rate(root.value(f"{folder}/rate")),
        interfaces=interfaces,
        virtual_function=address in pci and pci[address].virtual_function,
        numa=_numa(address, pci),
        mtu_bytes=root.number(f"{_NET}/{own}/mtu") if own else unreadable("no interface"),
        master=_master(root, own),
        gids=_gids(root, folder) if layer == "Ethernet" else (),
    )


def _own(root: Root, interfaces: tuple[str, ...], port: int) -> str:
    """Return the interface of an RDMA port, or "" if there is none. If the PCI function has several interfaces, their dev_port
    shows which one belongs to the port."""
    if len(interfaces) < 2:
        return "".join(interfaces)
    return next((i for i in interfaces if root.read_line(f"{_NET}/{i}/dev_port") == str(port - 1)), interfaces[0])


def _master(root: Root, interface: str) -> str:
    link = root.readlink(f"{_NET}/{interface}/master") if interface else None
    return link.rpartition("/")[2] if isinstance(link, str) else ""


def _gids(root: Root, folder: str) -> tuple[Gid, ...] | Missing:
    """Return the GIDs in use. The kernel returns EINVAL for the type of a free entry. EACCES (in containers) gives Missing."""
    found: list[Gid] = []
    empty = 0
    for index in range(_GIDS_MAX):
        kind = root.read_line(f"{folder}/gid_attrs/types/{index}")
        if isinstance(kind, Missing) and "Invalid argument" not in kind.detail:
            return kind
        if not isinstance(kind, str) or not kind:
            empty += 1
            if empty == _GIDS_EMPTY:
                break
            continue
        empty = 0
        text = root.value(f"{folder}/gids/{index}")
        if isinstance(text, Missing):
            return text
        found.append(Gid(index, text, 2 if kind == "RoCE v2" else 1))
    return tuple(found)


def _interface(root: Root, name: str, pci: dict[str, PciDevice]) -> Nic | None:
    folder = f"{_NET}/{name}"
    address = _address(root, folder)
    if not address and not root.exists(f"{folder}/device") and not root.exists(f"{folder}/bonding"):
        return None
    state = root.value(f"{folder}/operstate")
    return Nic(
        name=name,
        pci=address,
        rdma=False,
        port=1,
        link_layer=_TYPES.get(_text(root.value(f"{folder}/type")), ""),
        state=state if isinstance(state, Missing) else state.upper(),
        physical_state=unreadable("not read of an interface"),
        rate_gbps=_megabits(root.value(f"{folder}/speed")),
        virtual_function=address in pci and pci[address].virtual_function,
        numa=_numa(address, pci),
        mtu_bytes=root.number(f"{folder}/mtu"),
        master=_master(root, name),
    )


def _address(root: Root, folder: str) -> str:
    """Return the address of the PCI function that a class device belongs to: the last PCI address on the device's path. (A
    virtio device is one level below its PCI function.)"""
    target = root.readlink(folder)  # the link of a PCI device has the address: "../../devices/pci0000:15/..."
    if isinstance(target, str) and "/devices/pci" in target:
        return next((c for c in reversed(target.split("/")) if ADDRESS.fullmatch(c)), "")
    if not root.exists(f"{folder}/device"):
        path = root.real(folder)
        if "/devices/pci" not in path:
            return ""
    else:
        path = root.real(f"{folder}/device")
    return next((c for c in reversed(path.split("/")) if ADDRESS.fullmatch(c)), "")


def _numa(address: str, pci: dict[str, PciDevice]) -> int | Missing:
    device = pci.get(address)
    return unreadable("not a PCI device") if device is None else device.numa


def _text(value: str | Missing) -> str:
    return "" if isinstance(value, Missing) else value


def _word(value: str | Missing) -> str | Missing:
    """Return "ACTIVE" for "4: ACTIVE"."""
    return value if isinstance(value, Missing) else value.partition(":")[2].strip() or value


def _rate(value: str | Missing) -> float | Missing:
    """Return 400.0 for "400 Gb/sec (4X NDR)"."""
    if isinstance(value, Missing):
        return value
    number, _, unit = value.partition(" ")
    try:
        return float(number) if unit.startswith("Gb/sec") else unreadable(f"rate {value[:40]!r}")
    except ValueError:
        return unreadable(f"rate {value[:40]!r}")


def _megabits(value: str | Missing) -> float | Missing:
    """Return the Gb/s of an interface's ``speed``, which is in Mb/s. -1 means unknown. If the link is down, the read
    fails with EINVAL."""
    if isinstance(value, Missing):
        return value
    if value.isascii() and value.isdigit() and len(value) < 10:
        return int(value) / 1000
    return unreadable(f"speed {value[:40]!r}")
