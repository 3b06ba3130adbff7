"""Decides which GPU instances (MIG) a GPU can hold at the same time.

A GPU has compute slices and memory slices. An instance of a profile takes some of both, and can begin only at certain memory
slices. A geometry is a list of instances. A GPU can hold a geometry if all its instances fit beside each other.

Sources: NVIDIA Multi-Instance GPU User Guide, "Supported MIG Profiles" (names and numbers of instances) and "Getting Started with
MIG" (the positions, as `nvidia-smi mig -lgipp` lists them); NVIDIA mig-parted, deployments/systemd/config-default.yaml (GH200
with 144 GB, GB200 with 189 GB, GB300); AWS SageMaker API reference, AcceleratorPartitionConfig (GB200 with 186 GB) and
hyperpod-cli pull request 403 (B300). All were read on 2026-11-23.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby

from msgspec import Struct

#: The form of a profile's name. The table below may lack a profile, because a GPU may be newer than the table.
NAME = re.compile(r"[1-7]g\.[0-9]{1,3}gb(\+[a-z.]{1,12}|-me)?")
SLICES_MAX = 7  # compute slices: no GPU has more


class MigProfile(Struct, frozen=True, kw_only=True):
    """Describes a profile of GPU instances.

    compute, memory: the numbers of slices that an instance takes. starts: the memory slices at which an instance can begin.
    most: how many instances a GPU can hold. base: True if the list of geometries is made of this profile. The other profiles
    are variants of base profiles.
    """

    name: str
    compute: int
    memory: int
    starts: tuple[int, ...]
    most: int
    base: bool = True


class MigGpu(Struct, frozen=True, kw_only=True):
    """Describes GPUs that have the same profiles. ``names``: the names of these GPUs. ``compute``: their compute slices."""

    names: str
    compute: int
    profiles: tuple[MigProfile, ...]

    def profile(self, name: str) -> MigProfile | None:
        return next((p for p in self.profiles if p.name == name), None)


def _seven(names: str, one: int, two: int, four: int, whole: int) -> MigGpu:
    """Return a GPU with seven compute and eight memory slices. The numbers are the GB in the names of its profiles."""

    def profile(name: str, memory: int, starts: Sequence[int], most: int, *, base: bool = True) -> MigProfile:
        return MigProfile(name=name, compute=int(name[0]), memory=memory, starts=tuple(starts), most=most, base=base)

    return MigGpu(names=names, compute=7, profiles=(
        profile(f"7g.{whole}gb", 8, (0,), 1),
        profile(f"4g.{four}gb", 4, (0,), 1),
        profile(f"3g.{four}gb", 4, (0, 4), 2),
        profile(f"2g.{two}gb", 2, (0, 2, 4), 3),
        profile(f"1g.{one}gb", 1, range(7), 7),
        profile(f"1g.{two}gb", 2, (0, 2, 4, 6), 4, base=False),
        profile(f"1g.{one}gb+me", 1, range(7), 1, base=False),
    ))  # fmt: skip


def _four(names: str, gigabytes: tuple[int, int, int], variants: Iterable[tuple[str, int]]) -> MigGpu:
    """Return a GPU with four compute and four memory slices. ``gigabytes``: the GB in the names of its profiles with one, two and
    four slices. ``variants``: the name of each variant, such as 1g.24gb-me, and how many instances of it a GPU can hold."""
    bases = [
        MigProfile(name=f"{n}g.{gb}gb", compute=n, memory=n, starts=tuple(range(0, 4, n)), most=4 // n)
        for n, gb in zip((4, 2, 1), reversed(gigabytes), strict=True)
    ]
    made = [*bases]
    for name, most in variants:
        base = next(b for b in bases if name.startswith(b.name))
        made.append(MigProfile(name=name, compute=base.compute, memory=base.memory, starts=base.starts, most=most, base=False))
    return MigGpu(names=names, compute=4, profiles=tuple(made))


A100_40, A100_80, H100_80 = "A100 40GB", "A100 80GB", "H100 80GB"
GPUS: tuple[MigGpu, ...] = (
    _seven(A100_40, 5, 10, 20, 40),
    _seven(f"{A100_80}, {H100_80}", 10, 20, 40, 80),
    _seven("H100 94GB", 12, 24, 47, 94),
    _seven("H100 96GB, H20, GH200 96GB", 12, 24, 48, 96),
    _seven("H200", 18, 35, 71, 141),
    _seven("GH200 144GB", 18, 36, 72, 144),
    _seven("B200", 23, 45, 90, 180),
    _seven("GB200 186GB", 23, 47, 93, 186),
    _seven("GB200 189GB", 24, 47, 95, 189),
    _seven("B300", 34, 67, 135, 269),
    _seven("GB300", 35, 70, 139, 278),
    _four("A30", (6, 12, 24), (("1g.6gb+me", 1), ("2g.12gb+me", 1))),
    _four(
        "RTX PRO 6000 Blackwell", (24, 48, 96),
        (("1g.24gb+me", 1), ("1g.24gb+gfx", 4), ("1g.24gb+me.all", 1), ("1g.24gb-me", 4), ("2g.48gb+gfx", 2),
         ("2g.48gb+me.all", 1), ("2g.48gb-me", 2), ("4g.96gb+gfx", 1)),
    ),
)  # fmt: skip


def fits(gpu: MigGpu, geometry: Iterable[str]) -> bool:
    """Return whether the GPU can hold all these instances at the same time."""
    wanted = [gpu.profile(name) for name in geometry]
    found = [p for p in wanted if p is not None]
    if len(found) < len(wanted) or sum(p.compute for p in found) > gpu.compute:
        return False
    if any(n > profile.most for profile, n in Counter(found).items()):
        return False
    return _room(sorted(found, key=lambda p: (-p.memory, len(p.starts), p.name)), 0)


def _room(wanted: Sequence[MigProfile], taken: int) -> bool:
    """Return whether the instances fit beside the memory slices that are already taken. ``taken``: one bit for each slice."""
    if not wanted:
        return True
    first, *rest = wanted
    masks = (((1 << first.memory) - 1) << start for start in first.starts)
    return any(not taken & mask and _room(rest, taken | mask) for mask in masks)


@cache
def geometries(gpu: MigGpu) -> tuple[tuple[str, ...], ...]:
    """Return the geometries of the GPU's base profiles to which no instance can be added, large instances first."""
    bases = [p.name for p in gpu.profiles if p.base]

    def grown(geometry: tuple[str, ...], at: int) -> Iterator[tuple[str, ...]]:
        if not any(fits(gpu, (*geometry, name)) for name in bases):
            yield geometry
        for i in range(at, len(bases)):
            if fits(gpu, (*geometry, bases[i])):
                yield from grown((*geometry, bases[i]), i)

    return tuple(grown((), 0))


def legal(gpu: MigGpu) -> str:
    """Return the geometries that the GPU can hold, as one line of text."""
    lines = " | ".join(in_words(g) for g in geometries(gpu))
    variants = ", ".join(f"{p.name} (at most {p.most})" for p in gpu.profiles if not p.base)
    return f"{gpu.names} can hold {lines}, or a part of one of these; instead of an instance of the same size also {variants}"


def in_words(geometry: Iterable[str]) -> str:
    """Return a geometry as text: ``3g.40gb + 4 x 1g.10gb``."""
    runs = [(name, len(list(same))) for name, same in groupby(geometry)]
    return " + ".join(name if n == 1 else f"{n} x {name}" for name, n in runs)


def refusal(geometry: Sequence[str], among: Collection[MigGpu] = GPUS, *, sure: bool = False) -> tuple[str, str] | None:
    """Return why none of these GPUs can hold the geometry, and what they can hold. Return None if a GPU may be able to hold it.

    ``sure``: True if the node's GPU is one of these. Otherwise the GPU may be newer than the table. A geometry with a profile
    that is not in the table is then refused in two cases: the profile's name has a wrong form, or the geometry has more than
    ``SLICES_MAX`` compute slices.
    """
    if not geometry or any(fits(gpu, geometry) for gpu in among):
        return None
    known = [gpu for gpu in among if any(gpu.profile(name) for name in geometry)]
    strange = [name for name in geometry if not any(gpu.profile(name) for gpu in among)]
    if not strange and not any(all(gpu.profile(name) for name in geometry) for gpu in known):
        return f"no GPU has all of the profiles {', '.join(dict.fromkeys(geometry))}", _choice(known)
    if strange:
        if not sure and all(NAME.fullmatch(name) for name in strange):
            total = sum(int(name[0]) for name in geometry if NAME.fullmatch(name))
            words = f"{in_words(geometry)} has {total} compute slices, and no GPU has more than {SLICES_MAX}"
            return (words, _choice(known or among)) if total > SLICES_MAX else None
        whose = f" of {', '.join(g.names for g in among)}" if sure else ""
        return f"there is no profile {strange[0]!r}{whose}", _choice(known or among)
    return f"no GPU can hold {in_words(geometry)} at the same time", _choice(known or among)


def _choice(among: Iterable[MigGpu]) -> str:
    gpus = tuple(among)
    if len(gpus) <= 2:
        return "; ".join(legal(gpu) for gpu in gpus)
    listed = "; ".join(f"{gpu.names}: {', '.join(p.name for p in gpu.profiles)}" for gpu in gpus)
    return f"the profiles are {listed}"
