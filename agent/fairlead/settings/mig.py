"""Divides each GPU into the declared GPU instances (MIG), or switches MIG off.

The site declares the geometry by profile names, as `nvidia-smi mig -lgip` lists them. In each GPU instance, fairlead creates one
compute instance of the same size, and CUDA and Slurm use this compute instance. Destroying instances takes GPUs from jobs, so
fairlead does this only on a drained node. If the driver cannot switch the mode at once, the new mode is pending until the GPU is
reset or the node reboots. Instances are always lost at a reboot. On Hopper and later the mode is also lost. fairlead's boot unit
sets the mode and the instances again before slurmd starts.

Slurm must have the same instances in its configuration. With ``AutoDetect=nvml`` in gres.conf slurmd finds them when it starts,
so restart slurmd after a change. The node's ``Gres=`` in slurm.conf must count them by type, such as
``Gres=gpu:3g.40gb:8,gpu:1g.10gb:8``. slurmctld sets a node to "invalid" if its Gres= still has eight whole GPUs. Sources: NVML
API reference, "Multi Instance GPU Management"; NVIDIA Multi-Instance GPU user guide; Slurm gres.conf(5), "MultipleFiles" and
AutoDetect.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model import mig_geometry
from fairlead.model.change import AnyChange, Disruption, Layer, Nvml, Reboot
from fairlead.model.facts import Missing, Node, Why, unreadable
from fairlead.model.gpu_state import MigInstance
from fairlead.model.setting import Setting, Want

SLICES = 7  # compute slices of every GPU that has MIG (MIG user guide, "Partitioning")
OFF = "off"

Profile = Annotated[str, Meta(pattern=r"^[1-7]g\.[0-9]{1,3}gb(\+[a-z.]{1,12}|-me)?(?!\n)$")]
Geometry = Annotated[tuple[Profile, ...], Meta(max_length=SLICES)]
Address = Annotated[str, Meta(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?!\n)$")]


class MigWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    geometry: Annotated[
        Geometry, Meta(description='GPU instances of every GPU, such as ["3g.40gb", "2g.20gb", "1g.10gb"]. Empty: MIG off.')
    ] = ()
    by_gpu: Annotated[
        dict[Address, Geometry], Meta(description="Geometry of single GPUs, by PCI address. Empty list: MIG off.")
    ] = {}


class MigState(Struct, frozen=True):
    """Holds the MIG state of one GPU. ``on`` is the current mode, and ``pending`` the mode after the next reset. ``instances`` is
    () while MIG is off. ``profiles`` has the profiles that the GPU offers, or () if it lists none."""

    on: bool
    pending: bool
    instances: tuple[MigInstance, ...]
    profiles: tuple[str, ...]

    @property
    def value(self) -> str:
        """Return the geometry in the form of ``Nvml.value``. An undo of a change sets this value again."""
        return ",".join(sorted(i.profile for i in self.instances)) or OFF


class Observed(Struct, frozen=True):
    """Holds the state of each GPU by PCI address, or None for a GPU without MIG."""

    gpus: dict[str, MigState | None]


def observe(node: Node) -> Observed | Missing:
    if isinstance(node.gpus, Missing):
        return node.gpus
    found: dict[str, MigState | None] = {}
    for gpu in node.gpus:
        if gpu.lost:
            continue
        on, pending, instances, profiles = gpu.mig_current, gpu.mig_pending, gpu.state.mig_instances, gpu.state.mig_profiles
        if isinstance(on, Missing) and on.why is Why.UNSUPPORTED:
            found[gpu.pci] = None
            continue
        for value in (on, pending, instances, profiles):
            if isinstance(value, Missing):
                return unreadable(f"MIG of GPU {gpu.pci}: {value.detail}")
        found[gpu.pci] = MigState(on is True, pending is True, tuple(instances), tuple(profiles))  # type: ignore[arg-type]
    return Observed(found)


def _check(key: str, geometry: tuple[str, ...], pci: str, state: MigState | None) -> None:
    hint = "`nvidia-smi mig -lgip` lists the profiles of a GPU with MIG on"
    if state is None:
        raise ConfigError("node.json", key, f"GPU {pci} has no MIG", hint="leave it out, or declare an empty list for it")
    slices = sum(int(name[0]) for name in geometry)
    if slices > SLICES:
        found = mig_geometry.refusal(geometry)
        hint = found[1] if found else hint
        raise ConfigError("node.json", key, f"{slices} slices are wanted of GPU {pci}, which has {SLICES}", hint=hint)
    unknown = sorted(set(geometry) - set(state.profiles)) if state.profiles else []
    if unknown:
        words = f"GPU {pci} has no profile {unknown[0]}; it offers {', '.join(state.profiles)}"
        raise ConfigError("node.json", key, words, hint=hint)
    found = mig_geometry.refusal(geometry)
    if found:
        raise ConfigError("node.json", key, f"GPU {pci}: {found[0]}", hint=found[1])


def plan(want: MigWant, observed: Observed) -> tuple[AnyChange, ...]:
    absent = sorted(set(want.by_gpu) - set(observed.gpus))
    if absent:
        raise ConfigError(
            "node.json", f"settings.mig.by_gpu.{absent[0]}", "no GPU at this address",
            hint=f"this node has {', '.join(observed.gpus) or 'none'}",
        )  # fmt: skip
    changes: list[AnyChange] = []
    for pci, state in observed.gpus.items():
        geometry = want.by_gpu.get(pci, want.geometry)
        if geometry:
            _check(f"settings.mig.by_gpu.{pci}" if pci in want.by_gpu else "settings.mig.geometry", geometry, pci, state)
        if state is not None:
            changes += _one(pci, state, geometry)
    return tuple(changes)


def _one(pci: str, state: MigState, geometry: tuple[str, ...]) -> list[AnyChange]:
    wanted = bool(geometry)
    value = ",".join(sorted(geometry)) or OFF
    if state.on != wanted and state.pending == wanted:
        why = f"MIG of GPU {pci} is {_word(state.on)}, wanted {_word(wanted)}: waits for a reset of the GPU or a reboot"
        return [
            Reboot(setting="mig", why=why, layer=Layer.PENDING_REBOOT, disruption=Disruption.REBOOT,
                   what=f"MIG {_word(wanted)} on {pci}")
        ]  # fmt: skip
    whole = all(i.compute == 1 for i in state.instances)
    if state.on == state.pending == wanted and whole and Counter(i.profile for i in state.instances) == Counter(geometry):
        return []
    now = f"{_word(state.on)}" + (f" with {state.value}" if state.instances else "")
    why = f"MIG of GPU {pci} is {now}, wanted {value}; Gres= of this node in slurm.conf must say the same"
    return [Nvml(setting="mig", why=why, disruption=Disruption.DRAIN, pci=pci, what="mig", value=value, before=state.value)]


def _word(on: bool) -> str:
    return "on" if on else "off"


setting = Setting(
    summary="MIG: the GPU instances of each GPU, or none",
    group="gpu",
    want=MigWant,
    observe=observe,
    plan=plan,
    disruption=Disruption.DRAIN,
    volatile=True,
    nvml=True,
    instead_of={"mig_mode": {"enabled": False}},
)
