"""Assigning at the least cost: a transport problem, solved by successive shortest paths. It imports nothing (binding_plan.py)."""

from __future__ import annotations


class Doubt(ValueError):
    """Why no plan is made; one line."""


class Item:
    """What is dealt: a piece of a core, or a whole share. ``costs``: distance to each group of equal tasks."""

    __slots__ = ("costs", "mask")

    def __init__(self, mask: int, costs: tuple[int, ...]) -> None:
        self.mask = mask
        self.costs = costs


def transport(supply: list[int], demand: list[int], cost: list[tuple[int, ...]]) -> list[list[int]]:
    """Least-cost flow[s][d] that meets every demand (successive shortest paths; supply must suffice)."""
    flow = [[0] * len(demand) for _ in supply]
    left, open_ = list(supply), list(demand)
    far = 1 << 60
    while any(open_):
        reach = [0 if n else far for n in left]  # cheapest way to one more unit at each source, then at each sink
        sink = [far] * len(demand)
        came_to_sink = [-1] * len(demand)
        came_to_source = [-1] * len(supply)
        changed = True
        while changed:
            changed = False
            for s, at in enumerate(reach):
                if at < far:
                    for d, c in enumerate(cost[s]):
                        if at + c < sink[d]:
                            sink[d], came_to_sink[d], changed = at + c, s, True
            for d, at in enumerate(sink):
                if at < far:
                    for s in range(len(supply)):
                        if flow[s][d] and at - cost[s][d] < reach[s]:
                            reach[s], came_to_source[s], changed = at - cost[s][d], d, True
        d = min((d for d in range(len(demand)) if open_[d]), key=lambda d: (sink[d], d))
        if sink[d] >= far:
            raise Doubt("shares cannot be dealt")
        path, amount, end = [], open_[d], d
        while True:
            s = came_to_sink[d]
            path.append((s, d))
            back = came_to_source[s]
            if back < 0:
                break
            amount = min(amount, flow[s][back])
            d = back
        amount = min(amount, left[s])
        previous = -1
        for s, d in path:
            flow[s][d] += amount
            if previous >= 0:
                flow[previous][d] -= amount
            previous = s
        # The unit that a later source of the path gave back is what the earlier one now delivers.
        left[path[-1][0]] -= amount
        open_[end] -= amount
    return flow


def share_out(items: list[Item], groups: list[list[int]], wanted: list[int]) -> dict[int, int]:
    """Deal ``wanted[task]`` items to each at least cost; alike tasks share near and far ones evenly. Returns masks by task."""
    kinds: dict[tuple[int, ...], list[Item]] = {}
    for item in items:
        kinds.setdefault(item.costs, []).append(item)
    costs = sorted(kinds)
    flow = transport([len(kinds[c]) for c in costs], [sum(wanted[t] for t in g) for g in groups], costs)
    masks: dict[int, int] = {}
    taken = [0] * len(costs)
    for d, group in enumerate(groups):
        open_ = [wanted[task] for task in group]
        for s, c in enumerate(costs):
            for task, count in zip(group, parts(flow[s][d], open_), strict=True):
                for item in kinds[c][taken[s] : taken[s] + count]:
                    masks[task] = masks.get(task, 0) | item.mask
                taken[s] += count
    return masks


def parts(amount: int, open_: list[int]) -> list[int]:
    """``amount`` in proportion to what each still wants, taken off ``open_``."""
    found, upto, whole = [], 0, sum(open_)
    for i, n in enumerate(open_):
        found.append(amount * (upto + n) // whole - amount * upto // whole if whole else 0)
        upto += n
        open_[i] -= found[i]
    return found
