"""Reads the counters of the nodes' ports before and after a run, and which HCAs are nearest to each GPU.

Counters are evidence beside a figure, and decide nothing. fairlead never clears them. ``SCRIPT`` runs on every node and prints
one line for each value. The nearest HCAs are those that the node's agent has published in /run/fairlead/topology.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from fairlead.measure.pairs.pair_table import median
from fairlead.measure.pairs.rail_ends import NodeRails
from fairlead.model.nodelist import is_name
from fairlead.model.plain_text import one_line

LINES_MAX = 200_000
TEXT_MAX = 80
COUNTERS_SHOWN = 4
GPUS_MAX = 64
#: Counters that grow with the traffic. Their differences say nothing about a fault.
TRAFFIC = re.compile(r"(?:port_)?(?:unicast_|multicast_)?(?:xmit|rcv|rx|tx|unicast|multicast).*(?:data|packets|bytes)$|lifespan$")
_DEVICE = re.compile(r"[A-Za-z0-9_]{1,32}/[0-9]{1,3}")
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
_INTERFACE = re.compile(r"[A-Za-z0-9_.@:-]{1,15}")
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HCAS = re.compile(r"-|[A-Za-z0-9_]{1,32}(?:,[A-Za-z0-9_]{1,32}){0,7}")

# $sys: where sysfs is. A cable's serial number needs root or a capability with ethtool and mlxlink. It is left out otherwise.
SCRIPT = r"""
sys=${FAIRLEAD_SYS:-/sys} published=${FAIRLEAD_RUN:-/run/fairlead}/topology
say() { printf '%s %s\n' "$mark" "$*"; }
say node "$SLURMD_NODENAME"
for port in "$sys"/class/infiniband/*/ports/*; do
	[ -e "$port/state" ] || continue
	device=${port#"$sys"/class/infiniband/} device=${device%%/*}
	name=$device/${port##*/}
	read -r state <"$port/state"
	say port "$name" "$state"
	for counter in "$port"/counters/* "$port"/hw_counters/*; do
		read -r value 2>/dev/null <"$counter" && say count "$name" "${counter##*/}" "$value"
	done
	for interface in "$sys"/class/infiniband/"$device"/device/net/*; do
		[ -e "$interface" ] || continue
		say interface "$name" "${interface##*/}"
		serial=$(timeout 5 ethtool -m "${interface##*/}" 2>/dev/null | sed -n 's/^[[:space:]]*Vendor SN[[:space:]]*: *//p')
		[ -z "$serial" ] || say cable "$name" "$serial"
	done
done
[ ! -r "$published" ] || while read -r kind gres minor uuid pci numa cores nics more; do
	[ "$kind" != gpu ] || say gpu "$pci" "$nics"
done <"$published"
say done
"""


class NodePorts(Struct, frozen=True, kw_only=True):
    """Holds the ports of one node, by device and port such as ``mlx5_0/1``. cables: the serial number of a port's cable. hcas and
    interfaces: as in NodeRails."""

    counters: Mapping[str, Mapping[str, int]]
    cables: Mapping[str, str] = {}
    hcas: tuple[str, ...] = ()
    interfaces: Mapping[str, str] = {}

    @property
    def rails(self) -> NodeRails:
        return NodeRails(hcas=self.hcas, interfaces=self.interfaces, cables=self.cables)


def script(mark: str) -> str:
    """Return the script for one node. ``mark``: begins its lines."""
    return f"mark='{mark}'{SCRIPT}"


def parse(mark: str, text: str) -> dict[str, NodePorts]:
    """Return the ports by node, from the output of srun --label. A node that names itself twice, or whose report has no end, is
    left out. So no node can report for another one."""
    counters: dict[str, dict[str, dict[str, int]]] = {}
    cables: dict[str, dict[str, str]] = {}
    interfaces: dict[str, dict[str, str]] = {}
    hcas: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    done: set[str] = set()
    line = re.compile(rf"\s*([0-9]{{1,6}}): {re.escape(mark)} ([a-z]+) ?(.*)")
    for raw in text.splitlines()[:LINES_MAX]:
        match = line.fullmatch(raw[:500])
        if match is None:
            continue
        task, kind, words = match[1], match[2], match[3].split(" ", 2)
        if kind == "node" and is_name(words[0]):
            names[task] = words[0] if task not in names else ""
        elif kind == "count" and len(words) == 3 and _DEVICE.fullmatch(words[0]) and _NAME.fullmatch(words[1]):
            if re.fullmatch(r"[0-9]{1,20}", words[2]):
                counters.setdefault(task, {}).setdefault(words[0], {})[words[1]] = int(words[2])
        elif kind == "cable" and len(words) > 1 and _DEVICE.fullmatch(words[0]):
            cables.setdefault(task, {})[words[0]] = one_line(" ".join(words[1:]), TEXT_MAX)
        elif kind == "interface" and len(words) == 2 and _DEVICE.fullmatch(words[0]) and _INTERFACE.fullmatch(words[1]):
            interfaces.setdefault(task, {})[words[0].partition("/")[0]] = words[1]
        elif kind == "gpu" and len(words) == 2 and _PCI.fullmatch(words[0]) and _HCAS.fullmatch(words[1]):
            hcas.setdefault(task, []).append("" if words[1] == "-" else words[1])
        elif kind == "done":
            done.add(task)
    claimed = [name for name in names.values() if name]
    return {
        name: NodePorts(
            counters=counters.get(task, {}),
            cables=cables.get(task, {}),
            hcas=tuple(hcas.get(task, [])[:GPUS_MAX]),
            interfaces=interfaces.get(task, {}),
        )
        for task, name in names.items()
        if name and claimed.count(name) == 1 and task in done
    }


def rises(before: NodePorts, after: NodePorts) -> dict[str, dict[str, int]]:
    """Return by port how much each counter rose, without the counters of traffic. A counter that fell was cleared in the run, and
    is left out."""
    found: dict[str, dict[str, int]] = {}
    for port, counters in after.counters.items():
        for name, value in counters.items():
            rise = value - before.counters.get(port, {}).get(name, value)
            if rise > 0 and not TRAFFIC.search(name):
                found.setdefault(port, {})[name] = rise
    return found


def evidence(
    node: str,
    all_rises: Mapping[str, Mapping[str, Mapping[str, int]]],
    cables: Mapping[str, str],
    switch_ports: Mapping[str, str],
) -> str:
    """Return in words which counters of a node rose more than those of the other ports in the run, or "". cables: the serial
    numbers by port. switch_ports: the switch and its port by device."""
    by_counter: dict[str, list[int]] = {}
    for ports in all_rises.values():
        for counters in ports.values():
            for name, rise in counters.items():
                by_counter.setdefault(name, []).append(rise)
    total = sum(max(1, len(ports)) for ports in all_rises.values())
    words = []
    for port, counters in sorted(all_rises.get(node, {}).items()):
        ends = [f"at {switch_ports[device]}"] if (device := port.partition("/")[0]) in switch_ports else []
        ends += [f"cable {cables[port]}"] if port in cables else []
        where = f"{port} ({', '.join(ends)})" if ends else port
        for name, rise in sorted(counters.items(), key=lambda item: -item[1]):
            others = [*by_counter[name], *[0] * (total - len(by_counter[name]))]
            others.remove(rise)
            usual = median([float(other) for other in others])
            if rise > 2 * usual:
                words.append(f"{where} {name} +{rise} in the run, median of the other ports +{usual:g}")
    return "; ".join(words[:COUNTERS_SHOWN])
