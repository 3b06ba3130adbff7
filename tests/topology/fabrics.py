"""InfiniBand fabrics of our own making, and ibnetdiscover's two ways of printing them (rdma-core, ibnetdiscover.c)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

End = tuple[str, int]


@dataclass
class Made:
    """``switches`` and ``adapters``: GUID to description; ``links`` join free ports."""

    switches: dict[str, str] = field(default_factory=dict)
    adapters: dict[str, str] = field(default_factory=dict)
    links: list[tuple[End, End]] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)

    def switch(self, description: str) -> str:
        guid = f"{0x5C2500000000 + len(self.switches):016x}"
        self.switches[guid] = description
        return guid

    def adapter(self, description: str) -> str:
        guid = f"{0xB83FD2000000 + len(self.adapters):016x}"
        self.adapters[guid] = description
        return guid

    def link(self, a: str, b: str) -> None:
        self.links.append((self._port(a), self._port(b)))

    def _port(self, guid: str) -> End:
        self.used[guid] = self.used.get(guid, 0) + 1
        return guid, self.used[guid]

    def both_ways(self) -> list[tuple[End, End]]:
        return [*self.links, *((b, a) for a, b in self.links)]

    def name(self, guid: str) -> str:
        return self.switches.get(guid) or self.adapters[guid]

    def dump(self, shuffle: random.Random | None = None) -> str:
        """As without -p: blocks of switches, then of adapters; ``shuffle`` puts blocks and port lines in another order."""
        blocks = []
        for guid, description in [*self.switches.items(), *self.adapters.items()]:
            of = [(a[1], b) for a, b in self.both_ways() if a[0] == guid]
            if shuffle:
                shuffle.shuffle(of)
            blocks.append(self._block(guid, description, of))
        if shuffle:
            shuffle.shuffle(blocks)
        return "#\n# Topology file: generated on a day\n#\n# Initiated from node 0 port 0\n\n" + "\n".join(blocks)

    def _block(self, guid: str, description: str, ports: Sequence[tuple[int, End]]) -> str:
        short = f"{int(guid, 16):x}"
        lines = ["vendid=0x2c9", "devid=0xd2f2", f"sysimgguid=0x{short}"]
        if guid in self.switches:
            lines += [f"switchguid=0x{short}({short})"]
            lines += [f'Switch\t65 "S-{guid}"\t\t# "{description}" enhanced port 0 lid 9 lmc 0']
            for port, (other, far) in ports:
                if other in self.switches:
                    lines.append(f'[{port}]\t"S-{other}"[{far}]\t\t# "{self.name(other)}" lid 7 4xNDR')
                else:
                    lines.append(f'[{port}]\t"H-{other}"[{far}]({int(other, 16):x}) \t\t# "{self.name(other)}" lid 8 4xNDR')
        else:
            lines += [f"caguid=0x{short}", f'Ca\t{max(1, len(ports))} "H-{guid}"\t\t# "{description}"']
            for port, (other, far) in ports:
                kind = "S" if other in self.switches else "H"
                lines.append(f'[{port}]({short}) \t"{kind}-{other}"[{far}]\t\t# lid 8 lmc 0 "{self.name(other)}" lid 9 4xNDR')
        return "\n".join(lines) + "\n"

    def ports(self, shuffle: random.Random | None = None, unlinked: bool = False) -> str:
        """As with -p: one line a port."""
        lines = []
        for (a, port), (b, far) in self.both_ways():
            kinds = ["SW" if guid in self.switches else "CA" for guid in (a, b)]
            lines.append(
                f"{kinds[0]} {9:5d} {port:2d} 0x{a} 4x NDR - {kinds[1]} {8:5d} {far:2d} 0x{b}"
                f" ( '{self.name(a)}' - '{self.name(b)}' )"
            )
        if unlinked:
            lines += [f"SW {9:5d} 65 0x{guid} 4x ???{'':36}'{words}'" for guid, words in self.switches.items()]
        if shuffle:
            shuffle.shuffle(lines)
        return "".join(f"{line}\n" for line in lines)


def rails(units: int = 2, nodes: int = 4, each: int = 4, spines: int = 2, node: str = "n{}") -> Made:
    """A rail-optimised fabric: each unit has ``each`` leaves, a node one adapter on each of them; every leaf is joined to
    every spine, and each switch has its SHARP aggregation node. Nodes are numbered through from 1."""
    made = Made()
    tops = [made.switch(f"MF0;spine{s + 1}:MQM9700/U1") for s in range(spines)]
    leaves = []
    for unit in range(units):
        own = [made.switch(f"MF0;leaf{unit + 1}-{rail + 1}:MQM9700/U1") for rail in range(each)]
        leaves += own
        for number in range(unit * nodes + 1, unit * nodes + nodes + 1):
            for rail, leaf in enumerate(own):
                made.link(leaf, made.adapter(f"{node.format(number)} mlx5_{rail}"))
    for switch in leaves:
        for top in tops:
            made.link(switch, top)
    for switch in [*tops, *leaves]:
        made.link(switch, made.adapter("Mellanox Technologies Aggregation Node"))
    return made
