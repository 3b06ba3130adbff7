"""Checks that the MIG mode of each GPU is the declared one, now and after the next reset, and that its instances can be used.

nvmlDeviceGetMigMode gives the current and the pending mode. If the mode is changed while the GPU is in use, the new mode is
pending and takes effect at the next reset (NVIDIA Multi-Instance GPU user guide). From then on the GPU no longer has the devices
that Slurm's gres.conf describes. Neither Slurm nor CUDA can use a GPU instance without a compute instance. The site declares
which mode is right. fairlead does not learn the mode from the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import listed_gpus
from fairlead.model.facts import Gpu, Missing, Node, Why
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.unread import unlisted


class Params(CheckParams, frozen=True, kw_only=True):
    expected: Annotated[
        bool | None,
        Meta(description="MIG must be on (true) or off (false) on every GPU. If unset, only a pending change is reported."),
    ] = None


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    for gpu in listed_gpus(node):
        if not gpu.lost:  # gpu_count reports a lost GPU
            yield from _one(gpu, params.expected)
            yield from _unusable(gpu)


def _one(gpu: Gpu, expected: bool | None) -> Iterator[Finding]:
    now, then = gpu.mig_current, gpu.mig_pending
    if isinstance(now, Missing):
        if now.why is Why.UNREADABLE and expected is not None:
            yield with_action(Level.UNKNOWN, f"MIG mode of GPU {gpu.pci} cannot be read", Action.NONE, device=gpu.pci)
        elif expected:
            yield with_action(
                Level.DRAIN,
                f"GPU {gpu.pci} has no MIG, declared on",
                Action.PROVISION,
                device=gpu.pci,
                service=Service.DRAIN_AFTER_JOB,
            )
        return
    if expected is not None and now is not expected:
        due = " until the next reset" if then is expected else ""
        yield with_action(
            Level.DRAIN,
            f"MIG is {_word(now)} on GPU {gpu.pci}{due}, declared {_word(expected)}",
            Action.RESET_GPU if due else Action.PROVISION,
            device=gpu.pci,
            service=Service.DRAIN_AFTER_JOB,
        )
    elif isinstance(then, bool) and then is not now:
        words = f"MIG of GPU {gpu.pci} goes {_word(then)} at the next reset"
        yield with_action(Level.WARN, words, Action.PROVISION, device=gpu.pci)


def _unusable(gpu: Gpu) -> Iterator[Finding]:
    """Yield a finding for the GPU instances without a compute instance. Missing instances are a finding of settings.mig."""
    instances = gpu.state.mig_instances
    empty = () if isinstance(instances, Missing) else tuple(i for i in instances if not i.compute)
    if empty:
        names = ", ".join(f"{i.profile} at memory slice {i.start}" for i in empty)
        words = f"a MIG instance of GPU {gpu.pci} has no compute instance, so no job can use it"
        yield with_action(Level.WARN, words, Action.PROVISION, names, device=gpu.pci, evidence_id=names)


def _word(on: bool) -> str:
    return "on" if on else "off"


check = Check(
    summary="MIG mode of each GPU as declared, now and after the next reset, and no MIG instance without a compute instance",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=3,
)
