"""Assigns pieces to tasks at the least cost. This is a transport problem, solved by successive shortest paths. The module imports
nothing, for the reason in binding_plan.py."""

from __future__ import annotations


class Doubt(ValueError):
    """Is raised if no plan can be made. Its text gives the reason in one line."""


class CpuPiece:
    """Holds the CPUs that are assigned together: CPUs of one core, or the whole CPU set of a task. ``costs``: their distance to
    the GPUs of each group of tasks."""

    __slots__ = ("costs", "cpu_set")

    def __init__(self, cpu_set: int, costs: tuple[int, ...]) -> None:
        self.cpu_set = cpu_set
        self.costs = costs


def least_cost_flow(supply: list[int], demand: list[int], cost: list[tuple[int, ...]]) -> list[list[int]]:
    """Return the flow with the least total cost, by successive shortest paths: flow[s][d] units from source s to sink d.

    ``supply``: the units of each source. ``demand``: the units that each sink needs. ``cost[s][d]``: the cost of one unit from s
    to d. Raise Doubt if the supply is less than the demand.
    """
    flow = [[0] * len(demand) for _ in supply]
    unused, unmet = list(supply), list(demand)
    far = 1 << 60
    while any(unmet):
        # the cost of the cheapest path by which each source (``reach``) and each sink (``sink``) can get one more unit
        reach = [0 if n else far for n in unused]
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
        d = min((d for d in range(len(demand)) if unmet[d]), key=lambda d: (sink[d], d))
        if sink[d] >= far:
            raise Doubt("there are not enough CPUs for all tasks")
        path, amount, end = [], unmet[d], d
        while True:
            s = came_to_sink[d]
            path.append((s, d))
            back = came_to_source[s]
            if back < 0:
                break
            amount = min(amount, flow[s][back])
            d = back
        amount = min(amount, unused[s])
        previous = -1
        for s, d in path:
            flow[s][d] += amount
            if previous >= 0:
                flow[previous][d] -= amount
            previous = s
        # For each (s, d) of ``path``, s now delivers ``amount`` more units to d, and the source before s in ``path`` delivers
        # ``amount`` fewer units to d. The last source takes these units from its unused supply.
        unused[path[-1][0]] -= amount
        unmet[end] -= amount
    return flow


def assign_pieces(pieces: list[CpuPiece], groups: list[list[int]], wanted: list[int]) -> dict[int, int]:
    """Assign ``wanted[task]`` pieces to each task at the least cost, and return the CPU sets by task.

    The tasks of a group get near and far pieces in the same proportion. Raise Doubt if there are not enough pieces.
    """
    by_costs: dict[tuple[int, ...], list[CpuPiece]] = {}
    for piece in pieces:
        by_costs.setdefault(piece.costs, []).append(piece)
    costs = sorted(by_costs)
    flow = least_cost_flow([len(by_costs[c]) for c in costs], [sum(wanted[t] for t in g) for g in groups], costs)
    cpu_sets: dict[int, int] = {}
    used = [0] * len(costs)
    for d, group in enumerate(groups):
        unmet = [wanted[task] for task in group]
        for s, c in enumerate(costs):
            for task, count in zip(group, proportional_parts(flow[s][d], unmet), strict=True):
                for piece in by_costs[c][used[s] : used[s] + count]:
                    cpu_sets[task] = cpu_sets.get(task, 0) | piece.cpu_set
                used[s] += count
    return cpu_sets


def proportional_parts(amount: int, unmet: list[int]) -> list[int]:
    """Divide ``amount`` in proportion to the pieces that each task still needs (``unmet``). Return the parts, and subtract them
    from ``unmet``."""
    found, upto, whole = [], 0, sum(unmet)
    for i, n in enumerate(unmet):
        found.append(amount * (upto + n) // whole - amount * upto // whole if whole else 0)
        upto += n
        unmet[i] -= found[i]
    return found
