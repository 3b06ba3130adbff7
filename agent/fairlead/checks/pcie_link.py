"""Checks that the PCIe links of GPUs have the expected width and, under load, the expected speed.

An idle GPU lowers its link to generation 1 (ASPM, performance state 8), so speed is judged only while the GPU is busy. In MIG
mode NVML gives no utilisation. Speed is then judged while the GPU's clocks are not idle. The width does not change at idle. The
hardware profile declares the expected values. If it does not, the check expects the highest width and speed that both the device
and the port above it support (sysfs max_link_width, max_link_speed; PCI Express Base Specification, Link Capabilities). So a x16
card in a x8 slot is no fault. `pcie_nic` and `pcie_switch` judge the links of adapters and switches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import readable_gpus, was_readable
from fairlead.model.facts import CLASS_UNREADABLE, Gpu, Missing, Node, PciDevice, PcieLink, Why
from fairlead.model.finding import Finding, Level, Mode
from fairlead.model.link import Judged, able, least, port_above
from fairlead.model.load_window import is_busy
from fairlead.model.unread import unlisted

Width = Annotated[int, Meta(ge=1, le=32)]
Gen = Annotated[int, Meta(ge=1, le=7)]


class Params(CheckParams, frozen=True, kw_only=True):
    gpu_width: Annotated[Width | None, Meta(description="Number of lanes of each GPU. If unset, what GPU and slot can do.")] = (
        None
    )
    gpu_gen: Annotated[
        Gen | None, Meta(description="PCIe generation of each GPU under load. If unset, what GPU and slot can do.")
    ] = None
    load_percent: Annotated[int, Meta(ge=1, le=100, description="Speed is judged at this GPU utilisation or above.")] = 20


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    devices = {d.address: d for d in node.pci}
    for gpu in readable_gpus(node):
        yield from _gpu(gpu, devices, past, params)
    for device in node.pci:
        if not device.vendor or device.class_code == CLASS_UNREADABLE:  # it may be a GPU, or a bridge above a GPU
            words = "cannot be judged: its vendor or class cannot be read"
            yield Judged("device", device.address).finding(Level.UNKNOWN, words)


def _gpu(gpu: Gpu, devices: Mapping[str, PciDevice], past: Past, params: Params) -> Iterator[Finding]:
    device, judged = devices.get(gpu.pci), Judged("GPU", gpu.pci)
    readings = [link for link in (gpu.pcie, device.link if device else None) if isinstance(link, PcieLink)]
    possible = able(*readings, port_above(device, devices))
    width = least(*(link.width_current for link in readings))
    if width is None:
        if not (isinstance(gpu.pcie, Missing) and gpu.pcie.why is Why.UNSUPPORTED):
            lost = was_readable(gpu, "pcie.width_current", past)
            words = "cannot be read any more" if lost else "cannot be read"
            yield judged.finding(Level.DRAIN if lost else Level.UNKNOWN, words)
        return
    yield from judged.narrow(width, possible.width, params.gpu_width)
    if not is_busy(gpu, params.load_percent):
        return
    busy = f"utilisation {gpu.utilization_percent} %" if isinstance(gpu.utilization_percent, int) else "MIG, not idle"
    gen = least(*(link.gen_current for link in readings))
    want = params.gpu_gen if params.gpu_gen is not None else possible.gen
    if gen is None or want is None:
        yield judged.finding(Level.UNKNOWN, "has a speed that cannot be read")
    elif gen < want:
        yield judged.finding(Level.DRAIN, f"is generation {gen} under load, {want} expected", busy)


check = Check(
    summary="PCIe links of GPUs: width always, speed under load",
    params=Params,
    another_gpu={"gpu_width": None, "gpu_gen": None},
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=3,
    boot_grace_seconds=120,
    slow=True,
)
