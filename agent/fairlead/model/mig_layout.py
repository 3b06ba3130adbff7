"""Finds a layout for the declared GPU instances (MIG) of one GPU that keeps as many of the present instances as possible.

A layout says at which memory slice each instance begins. An instance that stays keeps its UUID, and a job on it is not disturbed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations

from msgspec import Struct

from fairlead.model.gpu_state import MigInstance
from fairlead.model.mig_geometry import GPUS, MigGpu

ANYWHERE = -1


class MigPosition(Struct, frozen=True, order=True):
    """Describes one instance of a layout: its first memory slice, or ANYWHERE if the driver chooses it, and its profile."""

    start: int
    profile: str

    def __str__(self) -> str:
        return self.profile if self.start == ANYWHERE else f"{self.profile}@{self.start}"


class MigLayout(Struct, frozen=True):
    """Describes a change of one GPU's instances: those that stay, those that go, and those that are made."""

    stay: tuple[MigInstance, ...]
    go: tuple[MigInstance, ...]
    make: tuple[MigPosition, ...]

    @property
    def value(self) -> str:
        """Return all instances of the layout in the form of ``Nvml.value``."""
        return ",".join(map(str, sorted([*(MigPosition(i.start, i.profile) for i in self.stay), *self.make])))


def gpu_of(profiles: Iterable[str]) -> MigGpu | None:
    """Return the GPU in the table that offers these profiles, or None if the table has no such GPU."""
    wanted = set(profiles)
    return next((gpu for gpu in GPUS if wanted and wanted <= {p.name for p in gpu.profiles}), None)


def layout(
    gpu: MigGpu | None, wanted: Sequence[str], have: Sequence[MigInstance], used: Collection[int] = ()
) -> MigLayout | None:
    """Return a layout with the ``wanted`` profiles in which most present instances stay. Return None if there is none.

    ``gpu``: the GPU in the table, or None if the table lacks the GPU. Then the driver chooses the position of new instances.
    ``used``: NVML's ids of the instances that must stay. An instance with several compute instances, or none, cannot stay.
    """
    whole = [i for i in have if i.compute == 1]
    free = [i for i in whole if i.gi not in used]
    fixed = [i for i in whole if i.gi in used]
    if {i.gi for i in fixed} != set(used) & {i.gi for i in have}:
        return None
    for count in range(len(free), -1, -1):
        for chosen in combinations(free, count):
            stay = (*fixed, *chosen)
            rest = Counter(wanted)
            rest.subtract(i.profile for i in stay)
            if min(rest.values(), default=0) < 0:
                continue
            made = _positions(gpu, sorted(rest.elements()), stay)
            if made is not None:
                return MigLayout(stay, tuple(i for i in have if i not in stay), made)
    return None


def _positions(gpu: MigGpu | None, names: Sequence[str], stay: Sequence[MigInstance]) -> tuple[MigPosition, ...] | None:
    """Return positions for new instances beside those that stay, or None if there is no room."""
    profiles = [gpu.profile(name) for name in names] if gpu else []
    known = [p for p in profiles if p is not None]
    if gpu is None or len(known) < len(names) or any(i.size < 1 for i in stay):
        return tuple(MigPosition(ANYWHERE, name) for name in names)
    taken = sum(((1 << i.size) - 1) << i.start for i in stay)
    known.sort(key=lambda p: (-p.memory, len(p.starts), p.name))
    found: list[MigPosition] = []

    def put(at: int, taken: int) -> bool:
        if at == len(known):
            return True
        for start in known[at].starts:
            mask = ((1 << known[at].memory) - 1) << start
            if not taken & mask:
                found.append(MigPosition(start, known[at].name))
                if put(at + 1, taken | mask):
                    return True
                found.pop()
        return False

    return tuple(sorted(found)) if put(0, taken) else None


def gpu_instance_id(gpu: MigGpu, start: int, size: int) -> int:
    """Return NVML's id of the GPU instance at this position: 0 is the whole GPU, 1 and 2 are its halves, 3 to 6 its quarters, and
    so on.

    Source: `nvidia-smi` of an H200 with 3g, 2g and two 1g lists the ids 2, 3, 9 and 10. ``settings.mig`` compares the ids of
    the present instances with this rule before they use it.
    """
    slices = max(p.memory for p in gpu.profiles)
    return slices // size - 1 + start // size
