"""Locks the clocks of the GPUs to a range, or sets their application clocks.

Locked clocks make runs repeatable and limit the power. In return, the GPU can no longer boost above the range. Application clocks
are the older way to set clocks. Newer GPUs and drivers no longer have them (deprecated in CUDA 13). fairlead does not change a
clock that is not declared.

NVML has no call that reads a lock back. fairlead therefore records the locks that it has set in the file ``NOTE``. This file is
in /run, so a reboot removes the file together with the locks. If the clock is above the range, somebody has removed the lock. A
reset of the GPU also removes the lock, and fairlead may not notice this. If the range ends far below the highest clock, declare
``checks.gpu_clocks.full_hertz`` accordingly. Sources: NVML API reference, nvmlDeviceSetGpuLockedClocks,
nvmlDeviceSetMemoryLockedClocks, nvmlDeviceSetApplicationsClocks (root; lost at reboot). fairlead's boot unit applies the setting
again.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, Disruption, File, Layer, Nvml
from fairlead.model.facts import Missing, Node
from fairlead.model.gpu_values import of_gpus
from fairlead.model.setting import Setting, Want

NOTE = "/run/fairlead/locked-clocks"
_MEGA = 1_000_000
_TOLERANCE_MEGAHERTZ = 30  # two steps of the clock
Megahertz = Annotated[int, Meta(ge=1, le=20_000)]
Range = tuple[Megahertz, Megahertz]


class ClocksWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    sm_megahertz: Annotated[Range | None, Meta(description="Lowest and highest SM clock that GPUs are locked to.")] = None
    memory_megahertz: Annotated[Range | None, Meta(description="Lowest and highest memory clock that GPUs are locked to.")] = None
    application_megahertz: Annotated[
        Range | None,
        Meta(description="Application clocks, first memory, then SM: a pair that `nvidia-smi -q -d SUPPORTED_CLOCKS` lists."),
    ] = None


class Clocks(Struct, frozen=True):
    """Holds the clocks of one GPU, in MHz: the SM clock now, and the highest SM and memory clocks."""

    sm: int
    sm_most: int
    memory_most: int


class Observed(Struct, frozen=True):
    """Holds what was read. ``gpus`` has the clocks by PCI address. ``applications`` has the application clocks (memory, SM) by
    PCI address, or is Missing with the reason. ``note`` is the text of the file ``NOTE``."""

    gpus: dict[str, Clocks]
    applications: dict[str, tuple[int, int]] | Missing
    note: str | None


def observe(node: Node) -> Observed | Missing:
    note = node.text(NOTE)
    if isinstance(note, Missing):
        return note
    found = of_gpus(node, "clocks", "clock_sm_hertz", "load.clock_sm_max_hertz", "state.clock_memory_max_hertz")
    if isinstance(found, Missing):
        return found
    pairs = of_gpus(node, "application clocks", "state.application_memory_hertz", "state.application_sm_hertz")
    return Observed(
        {pci: Clocks(*(v // _MEGA for v in values)) for pci, values in found.items()},
        pairs if isinstance(pairs, Missing) else {pci: (m // _MEGA, s // _MEGA) for pci, (m, s) in pairs.items()},
        note,
    )


def _refuse(key: str, words: str, hint: str) -> ConfigError:
    return ConfigError("node.json", f"settings.clocks.{key}", words, hint=hint)


def _check(key: str, wanted: Range, pci: str, most: int) -> None:
    if wanted[0] > wanted[1]:
        raise _refuse(key, f"{wanted[0]} is above {wanted[1]}", "the lowest clock comes first")
    if wanted[1] > most:
        raise _refuse(key, f"GPU {pci} goes up to {most} MHz, wanted {wanted[1]}", "declare a range that ends there or below")


def _words(observed: Observed, what: str, wanted: Range | None) -> dict[str, str]:
    return {f"{pci} {what}": f"{wanted[0]}-{wanted[1]}" for pci in observed.gpus} if wanted else {}


def _recorded_locks(note: str | None) -> dict[str, str]:
    lines = [line.split() for line in (note or "").splitlines()]
    return {f"{words[0]} {words[1]}": words[2] for words in lines if len(words) == 3}


def plan(want: ClocksWant, observed: Observed) -> tuple[AnyChange, ...]:
    locks = {
        **_words(observed, "locked_clocks", want.sm_megahertz),
        **_words(observed, "locked_memory_clocks", want.memory_megahertz),
    }
    for pci, clocks in observed.gpus.items():
        if want.sm_megahertz:
            _check("sm_megahertz", want.sm_megahertz, pci, clocks.sm_most)
        if want.memory_megahertz:
            _check("memory_megahertz", want.memory_megahertz, pci, clocks.memory_most)
    recorded = _recorded_locks(observed.note)
    changes: list[AnyChange] = []
    for target in sorted({*locks, *recorded}):
        pci, what = target.split()
        now, value = recorded.get(target, "off"), locks.get(target, "off")
        seen = observed.gpus.get(pci)
        above = what == "locked_clocks" and seen and want.sm_megahertz and seen.sm > want.sm_megahertz[1] + _TOLERANCE_MEGAHERTZ
        if now == value and not above:
            continue
        kind = "SM" if what == "locked_clocks" else "memory"
        why = f"{kind} clock of GPU {pci} is not known to be locked, wanted {value} MHz"
        if above and now == value:
            why = f"SM clock of GPU {pci} is {seen.sm if seen else 0} MHz: the lock to {value} MHz was lifted"
        elif value == "off":
            why = f"{kind} clock of GPU {pci} is locked to {now} MHz, and nothing is declared any more"
        changes.append(_nvml(pci, what, why, value, now))
    if recorded != locks:
        text = "".join(f"{target} {value}\n" for target, value in sorted(locks.items())) or None
        why = f"{NOTE} does not say what is locked"
        changes.append(
            File(setting="clocks", why=why, layer=Layer.PERSISTED, disruption=Disruption.IDLE, path=NOTE, content=text,
                 before=observed.note)
        )  # fmt: skip
    return (*changes, *_applications(want, observed))


def _applications(want: ClocksWant, observed: Observed) -> list[Nvml]:
    if not want.application_megahertz:
        return []
    if isinstance(observed.applications, Missing) or not observed.applications:
        seen = observed.applications.detail if isinstance(observed.applications, Missing) else "no GPU has any"
        words = f"these GPUs and this driver have no application clocks ({seen})"
        raise _refuse("application_megahertz", words, "declare settings.clocks.sm_megahertz instead")
    memory, sm = want.application_megahertz
    changes = []
    for pci, (memory_now, sm_now) in observed.applications.items():
        clocks = observed.gpus.get(pci)
        if clocks and (memory > clocks.memory_most or sm > clocks.sm_most):
            words = f"GPU {pci} goes up to {clocks.memory_most} MHz memory and {clocks.sm_most} MHz SM, wanted {memory} and {sm}"
            raise _refuse("application_megahertz", words, "the memory clock comes first")
        if (memory_now, sm_now) != (memory, sm):
            why = f"application clocks of GPU {pci} are {memory_now},{sm_now} MHz, wanted {memory},{sm}"
            changes.append(_nvml(pci, "application_clocks", why, f"{memory},{sm}", f"{memory_now},{sm_now}"))
    return changes


def _nvml(pci: str, what: str, why: str, value: str, before: str) -> Nvml:
    return Nvml(setting="clocks", why=why, disruption=Disruption.IDLE, pci=pci, what=what, value=value, before=before)


setting = Setting(
    summary="Clocks of the GPUs: locked to a range, or application clocks",
    group="gpu",
    want=ClocksWant,
    observe=observe,
    plan=plan,
    reads=(NOTE,),
    disruption=Disruption.IDLE,
    volatile=True,
    nvml=True,
    instead_of={"gpu_clocks": {"judge_application": False}},
)
