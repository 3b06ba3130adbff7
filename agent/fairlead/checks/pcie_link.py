"""PCIe links of GPUs: always as wide as they should be, and as fast as they should be under load.

An idle GPU lowers its link to generation 1 (ASPM, performance state 8), so speed is judged only when the GPU is busy (in MIG
mode, where NVML gives no utilisation: while its clocks are not idle); width never changes at idle. Expected is what the
hardware profile declares, else the smaller of what the device and the port above it can do (sysfs max_link_width,
max_link_speed; PCI Express Base Specification, Link Capabilities): a x16 card in a x8 slot is a note about the slot, not a
fault. The links of adapters and switches: checks pcie_nic and pcie_switch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, NamedTuple

from msgspec import Meta

from fairlead.model.check import Check, CheckParams, Past
from fairlead.model.device import unlisted, was_readable
from fairlead.model.facts import CLASS_UNREADABLE, Gpu, Missing, Node, PciDevice, PcieLink, Why
from fairlead.model.finding import Action, Finding, Level, Mode, Service
from fairlead.model.load_window import is_busy

Width = Annotated[int, Meta(ge=1, le=32)]
Gen = Annotated[int, Meta(ge=1, le=7)]


class Params(CheckParams, frozen=True, kw_only=True):
    gpu_width: Annotated[Width | None, Meta(description="Lanes of each GPU; unset: what GPU and slot can do.")] = None
    gpu_gen: Annotated[
        Gen | None, Meta(description="PCIe generation of each GPU under load; unset: what GPU and slot can do.")
    ] = None
    load_percent: Annotated[int, Meta(ge=1, le=100, description="GPU utilisation from which speed is judged.")] = 20


def _least(*values: int | Missing | None) -> int | None:
    """The smallest of the values that are there."""
    known = [v for v in values if isinstance(v, int) and v > 0]
    return min(known) if known else None


class Least(NamedTuple):
    """What the readings of one link say, and the most that both of its ends can do; None where none says it."""

    width: int | None
    width_able: int | None
    gen: int | None
    gen_able: int | None


@lru_cache(maxsize=64)  # the same of each GPU, look after look
def _readings(links: tuple[PcieLink, ...], parent: PcieLink | None) -> Least:
    return Least(
        width=_least(*(link.width_current for link in links)),
        width_able=_least(*(link.width_max for link in links), parent.width_max if parent else None),
        gen=_least(*(link.gen_current for link in links)),
        gen_able=_least(*(link.gen_max for link in links), parent.gen_max if parent else None),
    )


def _finding(device: str, level: Level, summary: str, evidence: str = "", *, kind: str = "GPU") -> Finding:
    drain = level is Level.DRAIN
    return Finding(
        check="pcie_link",
        level=level,
        device=device,
        summary=f"PCIe link of {kind} {device} {summary}" + (": check_hardware" if drain else ""),
        evidence=(evidence,) if evidence else (),
        action=Action.CHECK_HARDWARE if drain else Action.NONE,
        service=Service.DRAIN_AFTER_JOB if drain else Service.KEEP,
    )


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted("pcie_link", node)
    devices = {d.address: d for d in node.pci}
    for gpu in () if isinstance(node.gpus, Missing) else node.gpus:
        if not gpu.lost:  # gpu_count says so
            yield from _gpu(gpu, devices, past, params)
    for device in node.pci:
        if not device.vendor or device.class_code == CLASS_UNREADABLE:  # it might be any of these, or a bridge above one
            words = "cannot be judged: its vendor or class cannot be read"
            yield _finding(device.address, Level.UNKNOWN, words, kind="device")


def _parent(device: PciDevice | None, devices: Mapping[str, PciDevice]) -> PcieLink | None:
    """The link of the port above a device: the nearest bridge on its path."""
    if device is None or len(device.path) < 2:
        return None
    above = devices.get(device.path[-2])
    return above.link if above is not None and isinstance(above.link, PcieLink) else None


def _gpu(gpu: Gpu, devices: Mapping[str, PciDevice], past: Past, params: Params) -> Iterator[Finding]:
    device = devices.get(gpu.pci)
    parent = _parent(device, devices)
    by_sysfs = device.link if device is not None and isinstance(device.link, PcieLink) else None
    by_nvml = gpu.pcie if isinstance(gpu.pcie, PcieLink) else None
    said = _readings(tuple(link for link in (by_nvml, by_sysfs) if link is not None), parent)
    width, able = said.width, said.width_able
    if width is None:
        unsupported = isinstance(gpu.pcie, Missing) and gpu.pcie.why is Why.UNSUPPORTED
        if not unsupported:
            gone = was_readable(gpu, "pcie.width_current", past)
            words = "cannot be read any more" if gone else "cannot be read"
            yield _finding(gpu.pci, Level.DRAIN if gone else Level.UNKNOWN, words)
        return
    want = params.gpu_width if params.gpu_width is not None else able
    if want is not None and width < want:
        declared = "declared" if params.gpu_width is not None else "possible"
        yield _finding(gpu.pci, Level.DRAIN, f"is x{width}, x{want} {declared}", f"device and slot can do x{able}")
    if not is_busy(gpu, params.load_percent):
        return
    busy = f"utilisation {gpu.utilization_percent} %" if isinstance(gpu.utilization_percent, int) else "MIG, not idle"
    gen = said.gen
    want = params.gpu_gen if params.gpu_gen is not None else said.gen_able
    if gen is None or want is None:
        yield _finding(gpu.pci, Level.UNKNOWN, "has a speed that cannot be read")
    elif gen < want:
        yield _finding(gpu.pci, Level.DRAIN, f"is generation {gen} under load, {want} expected", busy)


check = Check(
    summary="PCIe links of GPUs: width always, speed under load",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=3,
    boot_grace_seconds=120,
    slow=True,
)
