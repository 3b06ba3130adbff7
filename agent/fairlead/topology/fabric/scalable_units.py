"""Describes a fabric as Slurm's topology plug-ins need it: a tree of switches with every node on one leaf, or blocks of nodes.

On a rail-optimised fabric each NIC of a node is connected to another leaf switch, so the fabric is not a tree. The nodes that
are connected to the same leaf switches are one scalable unit (NVIDIA's DGX SuperPOD reference architecture). A unit becomes one
"switch" for Slurm. Above the units, the tree has one level for each level of switches that connects more units, normally one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from fairlead.model.nodelist import in_order, natural
from fairlead.topology.fabric.switch_fabric import Attached, SwitchFabric, by_name, switch_names

TOP = "fabric"


class Switch(Struct, frozen=True, kw_only=True):
    """Describes one switch of Slurm's tree: a leaf with ``nodes``, or a switch above ``switches``. real: the names of the real
    switches that it represents."""

    name: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    real: tuple[str, ...] = ()


class SwitchTree(Struct, frozen=True, kw_only=True):
    """Holds a topology for topology/tree. switches: the leaves first, each level in the order of names. notes: texts about what
    is not certain."""

    switches: tuple[Switch, ...]
    notes: tuple[str, ...] = ()

    def nodes(self) -> frozenset[str]:
        return frozenset(node for switch in self.switches for node in switch.nodes)


class Block(Struct, frozen=True, kw_only=True):
    name: str
    nodes: tuple[str, ...]


class Blocks(Struct, frozen=True, kw_only=True):
    """Holds a topology for topology/block. sizes: BlockSizes, of which the first is the planning base block size."""

    blocks: tuple[Block, ...]
    sizes: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def nodes(self) -> frozenset[str]:
        return frozenset(node for block in self.blocks for node in block.nodes)


class ScalableUnit(Struct, frozen=True, kw_only=True):
    """Holds the nodes of one unit. leaves: the leaf switches to which most of these nodes are connected."""

    nodes: tuple[str, ...]
    leaves: frozenset[str]


def scalable_units(attached: Attached) -> tuple[tuple[ScalableUnit, ...], tuple[str, ...]]:
    """Return the scalable units, and notes about nodes that lack a leaf of their unit or are connected to other leaves.

    A set of leaves that many nodes share makes a unit. A node with a missing leaf (a NIC is down) or a wrong leaf (cabled to
    another unit) belongs to the unit with which it shares most leaves. These must be more than half of its own leaves, or of the
    unit's leaves. Nodes that share the same number of leaves with two units are a unit of their own.
    """
    groups: dict[frozenset[str], list[str]] = {}
    for node, leaves in attached.nodes.items():
        groups.setdefault(leaves, []).append(node)
    ranked = sorted(groups, key=lambda leaves: (-len(groups[leaves]), -len(leaves), sorted(leaves)))
    found: dict[frozenset[str], list[str]] = {}
    notes = []
    for leaves in ranked:
        overlaps = sorted(((len(leaves & core), core) for core in found), key=lambda overlap: (-overlap[0], sorted(overlap[1])))
        fitting = [core for count, core in overlaps if count == overlaps[0][0] and 2 * count > min(len(leaves), len(core))]
        if len(fitting) != 1:
            found[leaves] = list(groups[leaves])
            continue
        core = fitting[0]
        found[core] += groups[leaves]
        for node in groups[leaves]:
            lacks, more = len(core - leaves), len(leaves - core)
            said = [f"lacks {lacks} of the {len(core)} leaves"] if lacks else []
            said += [f"is connected to {more} other{'s' if more > 1 else ''}"] if more else []
            notes.append(f"{node} {' and '.join(said)} of its unit")
    return tuple(ScalableUnit(nodes=tuple(in_order(found[core])), leaves=core) for core in found), tuple(notes)


def switch_tree(fabric: SwitchFabric, attached: Attached) -> SwitchTree:
    """Return the leaves (units) and the switches above them. Names come from the switches, so equal fabrics give equal trees.

    If the input has no link between switches (LLDP of nodes only), all leaves are put below one top switch, and a note says so.
    If the input has links between switches, parts of the fabric without a link stay apart, because no job can span them.
    """
    names = switch_names(fabric)
    found, notes = scalable_units(attached)
    said = list(notes)
    leaves = _named(found, names)
    level = {switch.name: set(unit.leaves) for switch, unit in leaves}
    switches = [switch for switch, _ in leaves]
    pairs = fabric.between_switches()
    if not pairs and len(level) > 1:
        said.append("the input has no link between switches: all leaves are put below one top switch")
        switches.append(Switch(name=_free(TOP, set(level)), switches=tuple(in_order(level))))
        return SwitchTree(switches=tuple(switches), notes=tuple(said))
    ranks = _ranks(pairs, {leaf for unit in found for leaf in unit.leaves})
    every = set(level)
    for rank in range(1, max([1, *ranks.values()]) + 1):  # at least once, because units can share a leaf
        level, made = _level(
            pairs, level, ranks={i: r for i, r in ranks.items() if r <= rank}, rank=rank, every=every, names=names
        )
        switches += made
    if len(level) > 1:  # last, connect units by single nodes that have a leaf of another unit
        homes = {switch.name: {leaf for node in switch.nodes for leaf in attached.nodes[node]} for switch in switches}
        for switch in switches:
            homes[switch.name] |= {leaf for child in switch.switches for leaf in homes[child]}
        wider = {name: hosts | homes[name] for name, hosts in level.items()}
        level, made = _level(pairs, wider, ranks=ranks, rank=0, every=every, names=names)
        switches += made
    if len(level) > 1:
        said.append(f"{len(level)} parts of the fabric are not joined: no job can span them ({', '.join(in_order(level))})")
    return SwitchTree(switches=tuple(switches), notes=tuple(said))


def _level(
    pairs: tuple[tuple[str, str], ...],
    level: Mapping[str, set[str]],
    *,
    ranks: Mapping[str, int],
    rank: int,
    every: set[str],
    names: Mapping[str, str],
) -> tuple[dict[str, set[str]], list[Switch]]:
    """Connect the switches of one level of the tree by links between real switches.

    Return the new level (each switch with the real switches in it), and the tree's new switches. ``ranks``: how many links each
    real switch is from the nearest leaf. ``every``: the names in use, to which the new names are added.
    """
    joined = _components(pairs, set(ranks), level.values())
    above: dict[str, set[str]] = {}
    made = []
    for component in joined:
        below = in_order(name for name, hosts in level.items() if hosts & component)
        if len(below) < 2:
            above.update((name, level[name] | component) for name in below)
            continue
        spines = tuple(names[i] for i in by_name({i for i in component if ranks.get(i) == rank > 0}, names))
        name = _free(spines[0] if len(spines) == 1 else TOP if len(joined) == 1 else f"pod-{below[0]}", every)
        every.add(name)
        above[name] = component
        made.append(Switch(name=name, switches=tuple(below), real=spines))
    return above, made


def blocks(groups: Mapping[str, Iterable[str]], sizes: tuple[int, ...] = (), notes: tuple[str, ...] = ()) -> Blocks:
    """Return the blocks of named groups of nodes. If ``sizes`` are given, they are checked against Slurm's rules.

    Without ``sizes``, the base size is the size of the smallest block, because no block may have fewer nodes. The further sizes
    are doublings of it, up to all blocks. Raise ValueError for sizes that slurmctld would refuse (topology.conf(5), BlockSizes).
    """
    made = tuple(Block(name=name, nodes=tuple(in_order(groups[name]))) for name in in_order(groups))
    smallest = min((len(block.nodes) for block in made), default=0)
    if sizes:
        base = sizes[0]
        if base < 1 or any(s % base or (s // base) & (s // base - 1) for s in sizes) or list(sizes) != sorted(set(sizes)):
            raise ValueError(f"block sizes {','.join(map(str, sizes))}: each must be a power of two times the first")
        small = [f"{block.name} ({len(block.nodes)})" for block in made if len(block.nodes) < base]
        if small:
            raise ValueError(f"block size {base}: fewer nodes are in {', '.join(small)}")
    else:
        sizes = tuple(smallest << step for step in range(16) if 1 << step <= len(made))
    return Blocks(blocks=made, sizes=sizes, notes=notes)


def unit_blocks(fabric: SwitchFabric, attached: Attached, sizes: tuple[int, ...] = ()) -> Blocks:
    """Return each scalable unit as a block. Raise ValueError as `blocks` does."""
    found, notes = scalable_units(attached)
    return blocks({switch.name: switch.nodes for switch, _ in _named(found, switch_names(fabric))}, sizes, notes)


def _named(found: tuple[ScalableUnit, ...], names: Mapping[str, str]) -> list[tuple[Switch, ScalableUnit]]:
    """Name the units. A unit of one leaf has the leaf's name. The name of any other unit is ``su-`` and the name of its first
    leaf."""
    made = []
    taken: set[str] = set()
    first = [(by_name(unit.leaves, names), unit) for unit in found]
    for leaves, unit in sorted(first, key=lambda each: (natural(names[each[0][0]]), len(each[0]), natural(each[1].nodes[0]))):
        real = tuple(names[leaf] for leaf in leaves)
        name = _free(real[0] if len(real) == 1 else f"su-{real[0]}", taken)
        taken.add(name)
        made.append((Switch(name=name, nodes=unit.nodes, real=real), unit))
    return made


def _free(name: str, taken: set[str]) -> str:
    """Return the name, with a number added if the name is in use. It has at most 64 characters (topology.conf(5))."""
    tried = name[:64]
    for number in range(2, len(taken) + 3):
        if tried not in taken:
            break
        tried = f"{name[:58]}-{number}"
    return tried


def _ranks(pairs: tuple[tuple[str, str], ...], leaves: set[str]) -> dict[str, int]:
    """Return for each switch the number of links to the nearest leaf."""
    near: dict[str, set[str]] = {}
    for a, b in pairs:
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    ranks = dict.fromkeys(leaves, 0)
    edge = leaves
    while edge:
        edge = {n for at in edge for n in near.get(at, ()) if n not in ranks}
        ranks.update(dict.fromkeys(edge, max(ranks.values()) + 1))
    return ranks


def _components(pairs: tuple[tuple[str, str], ...], within: set[str], hosts: Iterable[set[str]]) -> list[set[str]]:
    """Return the parts that are connected by links ``within`` these switches. Each set in ``hosts`` counts as connected."""
    root: dict[str, str] = {}

    def find(at: str) -> str:
        while root.setdefault(at, at) != at:
            root[at] = root[root[at]]
            at = root[at]
        return at

    for group in hosts:
        ordered = sorted(group)
        for other in ordered:
            root[find(other)] = find(ordered[0])
    for a, b in pairs:
        if a in within and b in within:
            root[find(a)] = find(b)
    parts: dict[str, set[str]] = {}
    for at in root:
        parts.setdefault(find(at), set()).add(at)
    return sorted(parts.values(), key=sorted)
