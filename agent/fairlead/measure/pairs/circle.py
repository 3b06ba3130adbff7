"""Pairs nodes by the circle method: one node stays, and the others move around it by one position in each round.

With n nodes (n even) no pair repeats in n - 1 rounds. With an odd number, another node has no partner in each round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from zlib import crc32

from fairlead.measure.pairs.pair_table import Leaves, Pair, pair_of

NOBODY = ""  # the partner of the node that has none


def shuffled(names: Iterable[str], seed: str) -> list[str]:
    """Return the names in an order that depends only on ``seed`` and the names. Neighbours in a rack are thus no pairs."""
    return sorted(names, key=lambda name: (crc32(f"{seed}/{name}".encode()), name))


def circle(members: Sequence[str], round_: int) -> list[Pair]:
    """Return the pairs of one round. ``round_`` counts from 0. There are no pairs in rounds after the last one of the circle."""
    ring = [*members, *([NOBODY] if len(members) % 2 else [])]
    if len(ring) < 2 or round_ >= len(ring) - 1:
        return []
    turned = [ring[0], *_turned(ring[1:], round_)]
    facing = zip(turned[: len(turned) // 2], reversed(turned), strict=False)
    return [pair_of(a, b) for a, b in facing if NOBODY not in (a, b)]


def spread_across(leaves: Leaves, nodes: Set[str], round_: int, done: Set[Pair], seed: str) -> list[Pair]:
    """Return pairs of nodes of two leaves, where the nodes of each leaf have partners on as many other leaves as possible.

    The nodes with the same number in their leaves are paired by the circle method over the leaves. A leaf's numbering moves on
    from round to round, so that also two leaves never repeat a pair.
    """
    members = _members(leaves, nodes, done, seed)
    names = sorted(members)
    longest = max((len(each) for each in members.values()), default=0)
    filled = {leaf: [*members[leaf], *[NOBODY] * (longest - len(members[leaf]))] for leaf in names}
    moved = {leaf: _turned(filled[leaf], at * round_) for at, leaf in enumerate(names)}
    rounds = max(1, len(names) - 1 + len(names) % 2)
    found = []
    for number in range(longest):
        for one, other in circle(names, (number + round_) % rounds):
            if NOBODY not in (pair := pair_of(moved[one][number], moved[other][number])):
                found.append(pair)
    return _repaired(found, leaves, nodes, done, seed)


def crowded_across(leaves: Leaves, nodes: Set[str], round_: int, done: Set[Pair], seed: str) -> list[Pair]:
    """Return pairs of nodes of two leaves, where all nodes of a leaf have partners on one other leaf, as far as the sizes of the
    leaves allow. So all traffic of a leaf takes the way to one other leaf."""
    members = _members(leaves, nodes, done, seed)
    names = sorted(members)
    ring = [*names[:1], *_turned(names[1:], round_)]
    half = len(ring) // 2
    line = [node for leaf in [*ring[:half], *reversed(ring[half:])] for node in _turned(members[leaf], round_)]
    middle = len(line) // 2
    found = [pair_of(a, b) for a, b in zip(line[:middle], line[len(line) - middle :], strict=True)]
    return _repaired(found, leaves, nodes, done, seed)


def _members(leaves: Leaves, nodes: Set[str], done: Set[Pair], seed: str) -> dict[str, list[str]]:
    """Return the nodes by leaf. Nodes that had fewer partners on other leaves come first, because a large leaf may have more
    nodes than all others together."""
    had = Counter(node for pair in done if leaves.of[pair[0]] != leaves.of[pair[1]] for node in pair)
    found: dict[str, list[str]] = {}
    for node in sorted(shuffled(nodes, seed), key=lambda name: had[name]):
        found.setdefault(leaves.of[node], []).append(node)
    return found


def _turned(names: Sequence[str], by: int) -> list[str]:
    by %= max(1, len(names))
    return [*names[by:], *names[:by]]


def _repaired(found: Sequence[Pair], leaves: Leaves, nodes: Set[str], done: Set[Pair], seed: str) -> list[Pair]:
    """Return the pairs without pairs inside a leaf and pairs that were measured before, and pair the nodes that are left."""

    def fits(a: str, b: str) -> bool:
        return leaves.of[a] != leaves.of[b] and pair_of(a, b) not in done

    kept = [pair for pair in found if fits(*pair)]
    alone = set(nodes) - {node for pair in kept for node in pair}
    groups = _members(leaves, alone, done, seed)
    waiting: list[str] = []
    while len(groups) > 1 or (waiting and groups):
        leaf = max(groups, key=lambda each: (len(groups[each]), each))
        node = groups[leaf].pop()
        others = sorted((each for each in groups if each != leaf), key=lambda each: (-len(groups[each]), each))
        partner = next((other for each in others for other in groups[each] if fits(node, other)), None)
        if partner is None:
            waiting.append(node)
        else:
            groups[leaves.of[partner]].remove(partner)
            kept.append(pair_of(node, partner))
        groups = {each: left for each, left in groups.items() if left}
    waiting += [node for left in groups.values() for node in left]
    return _exchanged(kept, waiting, fits)


def _exchanged(kept: Sequence[Pair], waiting: Sequence[str], fits: Callable[[str, str], bool]) -> list[Pair]:
    """Pair two nodes a and b that have no partner by opening one pair: of (c, d) come (a, c) and (b, d), or (a, d) and (b, c)."""
    made, left = list(kept), list(waiting)
    while len(left) > 1:
        a = left.pop()
        for b in left:
            opened = next(
                ((at, c, d) for at, pair in enumerate(made) for c, d in (pair, pair[::-1]) if fits(a, c) and fits(b, d)),
                None,
            )
            if opened is not None:
                at, c, d = opened
                made[at : at + 1] = [pair_of(a, c), pair_of(b, d)]
                left.remove(b)
                break
    return made
