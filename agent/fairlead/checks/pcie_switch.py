"""Checks the link of each PCIe switch towards the processor: its width always, its speed under load.

Only switches above GPUs and RDMA adapters are judged. All devices below a switch use this link. If it is slow, every transfer
between these devices and memory is slow, while each GPU's own link looks healthy. The check expects the highest width and speed
that both the switch and the port above it support (sysfs max_link_width, max_link_speed; PCI Express Base Specification, Link
Capabilities). An idle link may be slow (ASPM), so its speed is judged only while a GPU below it is busy. Links of bridges are
read on thorough sweeps only, so the check runs on thorough sweeps only. A speed that was read while the GPUs were idle is not
judged later, when a GPU is busy. In a virtual machine the switches are invented, so they are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import listed_gpus
from fairlead.model.facts import Missing, Node, PciDevice
from fairlead.model.finding import Finding, Level, Mode
from fairlead.model.link import Able, Judged, able, port_above
from fairlead.model.load_window import is_busy
from fairlead.model.unread import unlisted


class Params(CheckParams, frozen=True, kw_only=True):
    load_percent: Annotated[int, Meta(ge=1, le=100, description="Speed is judged at this GPU utilisation or above.")] = 20


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    if node.virtual is True:
        return
    yield from unlisted(node)  # without the list, the busy GPUs and the switches above GPUs are unknown
    devices = {d.address: d for d in node.pci}
    gpus = listed_gpus(node)
    adapters = {n.pci for n in node.nics if n.rdma and n.pci and not n.virtual_function}
    below = [d for a in (*(g.pci for g in gpus), *adapters) if (d := devices.get(a)) is not None]
    busy = {bridge for g in gpus if is_busy(g, params.load_percent) and g.pci in devices for bridge in devices[g.pci].path}
    for address in sorted({bridge for d in below for bridge in d.path[1:-1]}):
        switch = devices.get(address)
        if switch is not None and switch.bridge_role == "switch_upstream":
            yield from _link(switch, able(switch.link, port_above(switch, devices)), busy=address in busy)


def _link(switch: PciDevice, possible: Able, *, busy: bool) -> Iterator[Finding]:
    link, judged, where = switch.link, Judged("switch", switch.address), "the link to the processor"
    if isinstance(link, Missing) or isinstance(link.width_current, Missing) or not link.width_current:
        yield judged.finding(Level.UNKNOWN, "cannot be read")
        return
    yield from judged.narrow(link.width_current, possible.width, evidence=where)
    if busy and possible.gen is not None and isinstance(link.gen_current, int) and 0 < link.gen_current < possible.gen:
        yield judged.finding(Level.DRAIN, f"is generation {link.gen_current} under load, {possible.gen} possible", where)


check = Check(
    summary="Links of the PCIe switches above GPUs and RDMA adapters: width always, speed under load",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=3,
    boot_grace_seconds=120,
    slow=True,
)
