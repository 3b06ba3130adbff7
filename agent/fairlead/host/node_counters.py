"""Reads counters of the whole node that only grow: for how long tasks waited (PSI), network bytes, errors, retransmissions.

Sources: Documentation/accounting/psi.rst (the root of cgroup v2 has the same files as /proc/pressure), proc_net(5),
Documentation/ABI/stable/sysfs-class-infiniband. PSI needs CONFIG_PSI, which some distributions switch on only with ``psi=1``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from fairlead.host import queue_drops
from fairlead.host.root import Root
from fairlead.model.host_facts import RdmaPort

RESOURCES = ("cpu", "io", "memory")
_FOLDERS = ("/sys/fs/cgroup/{}.pressure", "/sys/fs/cgroup/unified/{}.pressure", "/proc/pressure/{}")
_SOME = re.compile(r"^some .*\btotal=([0-9]{1,18})$", re.MULTILINE)
_INTERFACE = re.compile(r"([A-Za-z0-9_.@-]{1,32})")
#: Interfaces without a cable: of containers, bridges and tunnels.
_NO_CABLE = ("lo", "veth", "docker", "br-", "virbr", "cni", "cali", "flannel", "tun", "tap", "vnet", "podman", "dummy", "ifb")
INTERFACES_MAX = 64
_WORDS = 4  # port_xmit_data and port_rcv_data count words of four bytes


class NicCounters(NamedTuple):
    """Holds the counters of an interface or an RDMA port. A counter that could not be read is None, or not in ``errors``."""

    name: str
    receive_bytes: int | None
    transmit_bytes: int | None
    errors: dict[str, int]


class NodeCounters(NamedTuple):
    """Holds the counters at one time. What could not be read is not there."""

    stalled_microseconds: dict[str, int]
    events: dict[str, int]
    nics: tuple[NicCounters, ...]


def read(root: Root, ports: Iterable[RdmaPort]) -> NodeCounters:
    """Return the counters now. ``ports``: the RDMA ports as the last thorough sweep has read them."""
    return NodeCounters(_pressure(root), _tcp(root), (*_interfaces(root), *(_port(root, port) for port in ports)))


def _pressure(root: Root) -> dict[str, int]:
    found = {}
    for name in RESOURCES:
        for folder in _FOLDERS:
            text = root.read_text(folder.format(name), 4096)
            if isinstance(text, str) and (total := _SOME.search(text)) is not None:
                found[name] = int(total[1])
                break
    return found


def _tcp(root: Root) -> dict[str, int]:
    """Return how many TCP segments were sent again."""
    text = root.read_text("/proc/net/snmp", 65536)
    lines = [line.split() for line in text.splitlines() if line.startswith("Tcp: ")] if isinstance(text, str) else []
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):
        return {}
    again = dict(zip(*lines, strict=True)).get("RetransSegs", "")
    return {"tcp_retransmits": int(again)} if again.isascii() and again.isdecimal() and len(again) <= 18 else {}


def _interfaces(root: Root) -> list[NicCounters]:
    """Return the interfaces of /proc/net/dev, with the packets that their queues dropped."""
    text = root.read_text("/proc/net/dev", 1 << 20)
    drops = queue_drops.read() if root.is_live else {}
    found: list[NicCounters] = []
    for line in text.splitlines()[2:] if isinstance(text, str) else ():
        name, _, rest = line.partition(":")
        name, cells = name.strip(), rest.split()
        if len(cells) < 12 or not _INTERFACE.fullmatch(name) or name.startswith(_NO_CABLE) or len(found) >= INTERFACES_MAX:
            continue
        if not all(cell.isascii() and cell.isdecimal() and len(cell) <= 20 for cell in cells[:12]):
            continue
        numbers = [int(cell) & ((1 << 62) - 1) for cell in cells[:12]]
        errors = {"receive_errors": numbers[2], "transmit_errors": numbers[10], "transmit_drops": numbers[11]}
        if name in drops:
            errors["queue_drops"] = drops[name]
        found.append(NicCounters(name, numbers[0], numbers[8], errors))
    return found


def _port(root: Root, port: RdmaPort) -> NicCounters:
    folder = f"/sys/class/infiniband/{port.name}/ports/{port.port}/counters"
    received, sent, waits = (root.number(f"{folder}/{name}") for name in ("port_rcv_data", "port_xmit_data", "port_xmit_wait"))
    errors = {name: value for name, value in port.counters.items() if isinstance(value, int)}
    if isinstance(waits, int):
        errors["port_xmit_wait"] = waits
    return NicCounters(f"{port.name}/{port.port}", _bytes(received), _bytes(sent), errors)


def _bytes(words: object) -> int | None:
    return words * _WORDS if isinstance(words, int) and 0 <= words < 1 << 59 else None
