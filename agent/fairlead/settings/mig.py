"""Divides each GPU into the declared GPU instances (MIG), or switches MIG off.

The site declares the geometry by profile names, as `nvidia-smi mig -lgip` lists them. In each GPU instance, fairlead creates one
compute instance of the same size, and CUDA and Slurm use this compute instance. A change of the geometry keeps the instances that
the new geometry has too, where they are. Destroying instances takes GPUs from jobs, so fairlead does this only on a drained node.
With `fairlead apply --draining` jobs may still run there, and the instances that they use stay. fairlead refuses this if such an
instance must go, or if Slurm would count the instances of a running job differently after the change. If the driver cannot switch
the mode at once, the new mode is pending until the GPU is reset or the node reboots. Instances are always lost at a reboot. On
Hopper and later the mode is also lost. fairlead's boot unit sets the mode and the instances again before slurmd starts.

Slurm must have the same instances in its configuration. With ``AutoDetect=nvml`` in gres.conf slurmd finds them when it starts,
so restart slurmd after a change. The node's ``Gres=`` in slurm.conf must count them by type, such as
``Gres=gpu:3g.40gb:8,gpu:1g.10gb:8``. slurmctld sets a node to "invalid" if its Gres= still has eight whole GPUs. Sources: NVML
API reference, "Multi Instance GPU Management"; NVIDIA Multi-Instance GPU user guide; Slurm gres.conf(5), "MultipleFiles" and
AutoDetect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from fairlead.errors import ConfigError
from fairlead.model import mig_geometry, mig_layout
from fairlead.model.change import AnyChange, Disruption, Layer, Nvml, Reboot
from fairlead.model.device import readable_gpus
from fairlead.model.facts import Missing, Node, Why, unreadable
from fairlead.model.gpu_state import MigDevice, MigInstance
from fairlead.model.node_jobs import NodeJobs
from fairlead.model.setting import Setting, Want
from fairlead.slurm_config.gres_order import WHOLE, WITHOUT_LINKS, Device, GresGpu, indices

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
    () while MIG is off. ``profiles`` has the profiles that the GPU offers, or () if it lists none. ``devices`` has what Slurm and
    CUDA see of the instances, in NVML's order. ``minor`` is the number of the device file, or -1 if it is not known."""

    on: bool
    pending: bool
    instances: tuple[MigInstance, ...]
    profiles: tuple[str, ...]
    devices: tuple[MigDevice, ...] | Missing = ()
    minor: int = -1
    uuid: str = ""

    @property
    def value(self) -> str:
        """Return the geometry in the form of ``Nvml.value``. An undo of a change sets this value again."""
        return (
            ",".join(str(mig_layout.MigPosition(i.start, i.profile)) for i in sorted(self.instances, key=lambda i: i.start))
            or OFF
        )


class Observed(Struct, frozen=True):
    """Holds the state of each GPU by PCI address in NVML's order, or None for a GPU without MIG. ``node`` is the node's name."""

    gpus: dict[str, MigState | None]
    node: str = "this node"


def observe(node: Node) -> Observed | Missing:
    if isinstance(node.gpus, Missing):
        return node.gpus
    found: dict[str, MigState | None] = {}
    for gpu in readable_gpus(node):
        on, pending, instances, profiles = gpu.mig_current, gpu.mig_pending, gpu.state.mig_instances, gpu.state.mig_profiles
        if isinstance(on, Missing) and on.why is Why.UNSUPPORTED:
            found[gpu.pci] = None
            continue
        for value in (on, pending, instances, profiles):
            if isinstance(value, Missing):
                return unreadable(f"MIG of GPU {gpu.pci}: {value.detail}")
        minor = -1 if isinstance(gpu.minor, Missing) else gpu.minor
        uuid = "" if isinstance(gpu.uuid, Missing) else gpu.uuid
        known = (tuple(instances), tuple(profiles), gpu.mig_devices)  # type: ignore[arg-type]
        found[gpu.pci] = MigState(on is True, pending is True, *known, minor, uuid)
    return Observed(found, node.name)


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
    new = _layout(state, geometry)
    value = new.value if new else ",".join(sorted(geometry)) or OFF
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
    stay = f" ({len(new.stay)} of them stay)" if new and new.stay else ""
    why = f"MIG of GPU {pci} is {now}, wanted {value}{stay}; Gres= of this node in slurm.conf must say the same"
    return [Nvml(setting="mig", why=why, disruption=Disruption.DRAIN, pci=pci, what="mig", value=value, before=state.value)]


def _layout(state: MigState, geometry: tuple[str, ...], used: frozenset[int] = frozenset()) -> mig_layout.MigLayout | None:
    """Return the layout that changes as few instances as possible, or None if the mode changes or there is no such layout."""
    if not (state.on and state.pending and geometry):
        return None
    return mig_layout.layout(mig_layout.gpu_of({*state.profiles, *geometry}), geometry, state.instances, used)


def _word(on: bool) -> str:
    return "on" if on else "off"


# -- beside running jobs


class _Refused(Exception):
    """Says in one line why a GPU cannot be changed while these jobs run."""


def plan_among_jobs(want: MigWant, observed: Observed, jobs: NodeJobs) -> tuple[AnyChange, ...]:
    """Return the changes as ``plan`` does. A change that leaves alone the instances of all these jobs has the disruption
    DRAINING. Other changes wait for the end of the jobs (DRAIN), and say for which instance and job."""
    changes = plan(want, observed)
    after: dict[str, mig_layout.MigLayout] = {}
    refused: dict[str, str] = {}
    for change in changes:
        if not isinstance(change, Nvml):
            continue
        try:
            used = _used(observed, jobs)
            after[change.pci] = _beside(change.pci, observed, want.by_gpu.get(change.pci, want.geometry), used)
        except _Refused as e:
            refused[change.pci] = str(e)
    try:
        _keep_indices(observed, jobs, after)
    except _Refused as e:
        refused |= dict.fromkeys(after, str(e))
    made: list[AnyChange] = []
    for change in changes:
        if not isinstance(change, Nvml):
            made.append(change)
        elif change.pci in refused:
            why = f"{observed.node}: GPU {change.pci} stays as it is: {refused[change.pci]} ({change.why})"
            made.append(replace(change, why=why))
        else:
            made.append(replace(change, value=after[change.pci].value, disruption=Disruption.DRAINING))
    return tuple(made)


def _used(observed: Observed, jobs: NodeJobs) -> dict[Device, int]:
    """Return which job uses each MIG device and each whole GPU. Raise _Refused if a job has a GPU that is not known."""
    named = _devices_by_uuid(observed)
    found: dict[Device, int] = {}
    for job in jobs.jobs:
        if len(job.names) != len(job.indices):
            raise _Refused(f"job {job.id} runs, and its record does not say which GPUs or MIG instances it has")
        for name in job.names:
            if name not in named:
                raise _Refused(f"job {job.id} runs on {name}, which is no UUID of a GPU or MIG instance of this node")
            found[named[name]] = job.id
    return found


def _devices_by_uuid(observed: Observed) -> dict[str, Device]:
    states = [state for state in observed.gpus.values() if state is not None]
    whole: dict[str, Device] = {state.uuid: (state.minor, WHOLE) for state in states if not state.on}
    return whole | {device.uuid: (state.minor, (device.gi, device.ci)) for state in states for device in _devices(state)}


def _devices(state: MigState) -> tuple[MigDevice, ...]:
    return () if isinstance(state.devices, Missing) else state.devices


def _beside(pci: str, observed: Observed, geometry: tuple[str, ...], used: Mapping[Device, int]) -> mig_layout.MigLayout:
    """Return the layout of one GPU that keeps the instances in use. Raise _Refused if there is none."""
    state = observed.gpus[pci]
    assert state is not None  # noqa: S101  (plan changes no GPU without MIG)
    here = {ids[0]: job for (minor, ids), job in used.items() if minor == state.minor and ids != WHOLE}
    if not (state.on and state.pending and geometry):
        raise _Refused("a change of the MIG mode waits for the end of all jobs")
    if isinstance(state.devices, Missing) or state.minor < 0:
        raise _Refused("its MIG instances or its device file cannot be read")
    found = _layout(state, geometry, frozenset(here))
    if found is not None:
        return found
    room = Counter(geometry)
    for instance in state.instances:
        room[instance.profile] -= instance.gi in here
    goes = next((i for i in state.instances if i.gi in here and (room[i.profile] < 0 or i.compute != 1)), None)
    if goes is None:
        names = ", ".join(f"instance {i.gi} ({i.profile}, job {here[i.gi]})" for i in state.instances if i.gi in here)
        raise _Refused(f"{mig_geometry.in_words(sorted(geometry))} does not fit beside {names}")
    where = f"MIG instance {goes.gi} ({goes.profile} at memory slice {goes.start})"
    raise _Refused(f"{where} would have to go, and job {here[goes.gi]} uses it")


def _keep_indices(observed: Observed, jobs: NodeJobs, after: Mapping[str, mig_layout.MigLayout]) -> None:
    """Raise _Refused if slurmd would give an instance or GPU of a running job another GRES index after these changes.

    slurmctld knows the devices of a job by their indices. If another device had the index, Slurm would give it to a second job.
    """
    if not after or not jobs.jobs:
        return
    if not jobs.release:
        raise _Refused("the release of Slurm is not known, and the order in which it counts instances depends on it")
    used = _used(observed, jobs)
    named = _devices_by_uuid(observed)
    before = tuple(_gres(observed, {}))
    then = tuple(_gres(observed, after))
    minors = {state.minor: pci for pci, state in observed.gpus.items() if state is not None}
    told = {named[name]: index for job in jobs.jobs for name, index in zip(job.names, job.indices, strict=True)}
    orders = [(indices(before, jobs.release, links=links), indices(then, jobs.release, links=links)) for links in (True, False)]
    orders = [(now, new) for now, new in orders if all(now.get(device) == index for device, index in told.items())]
    if not orders:
        words = "Slurm counts the instances of the running jobs in another order than expected"
        raise _Refused(f"{words}; slurmd may have started before their layout was made")
    for device, job in used.items():
        pci = minors[device[0]]
        ids = f"instance {device[1][0]} of GPU {pci}" if device[1] != WHOLE else f"GPU {pci}"
        if pci in after and jobs.release < WITHOUT_LINKS:
            slurm = ".".join(f"{part:02d}" for part in jobs.release[:2])
            words = f"Slurm {slurm} counts the instances of a GPU in an order that the change can alter"
            raise _Refused(f"{words}, and job {job} uses {ids}")
        if any(now.get(device) != new.get(device) for now, new in orders):
            raise _Refused(f"Slurm would count {ids}, which job {job} uses, as another GRES index")


def _gres(observed: Observed, after: Mapping[str, mig_layout.MigLayout]) -> Iterator[GresGpu]:
    """Yield the GPUs as Slurm counts them, with the layouts ``after`` instead of the present ones."""
    for pci, state in observed.gpus.items():
        if state is None:
            continue
        if not state.on:
            yield GresGpu(state.minor, None)
        elif pci not in after:
            yield GresGpu(state.minor, tuple((device.gi, device.ci) for device in _devices(state)))
        else:
            yield GresGpu(state.minor, tuple((gi, 0) for gi in _ids(pci, state, after[pci])))


def _ids(pci: str, state: MigState, new: mig_layout.MigLayout) -> tuple[int, ...]:
    """Return NVML's ids of the instances of a layout. Raise _Refused if the ids of new instances cannot be told."""
    gpu = mig_layout.gpu_of({*state.profiles, *(p.profile for p in new.make)})
    known = gpu is not None and all(
        i.size > 0 and mig_layout.gpu_instance_id(gpu, i.start, i.size) == i.gi for i in state.instances
    )
    if gpu is None or not known or any(position.start == mig_layout.ANYWHERE for position in new.make):
        raise _Refused(f"the ids of new instances of GPU {pci} cannot be told, and Slurm counts instances by their ids")
    made = [(position.start, profile.memory) for position in new.make if (profile := gpu.profile(position.profile))]
    return (*(i.gi for i in new.stay), *(mig_layout.gpu_instance_id(gpu, *position) for position in made))


setting = Setting(
    summary="MIG: the GPU instances of each GPU, or none",
    group="gpu",
    want=MigWant,
    observe=observe,
    plan=plan,
    plan_among_jobs=plan_among_jobs,
    disruption=Disruption.DRAIN,
    volatile=True,
    nvml=True,
    instead_of={"mig_mode": {"enabled": False}},
)
