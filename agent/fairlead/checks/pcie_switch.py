"""PCIe switches above GPUs and RDMA adapters: the link towards the processor, its width always, its speed under load.

All below a switch share that link: it narrows every transfer between them and memory, while each GPU's own link looks well. It
is judged against what it and the port above it can do (sysfs max_link_width, max_link_speed; PCI Express Base Specification,
Link Capabilities). An idle link may be slow (ASPM), so its speed is judged while a GPU below it is busy. Links of bridges are
read on thorough looks, so it is judged on these alone: a link read at idle says nothing of a GPU that is busy now. A virtual
machine's switches are made up, and not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated

from msgspec import Meta

from fairlead.model.check import Check, CheckParams, Past
from fairlead.model.device import unlisted
from fairlead.model.facts import Missing, Node, PcieLink
from fairlead.model.finding import Action, Finding, Level, Mode, Service
from fairlead.model.load_window import is_busy


class Params(CheckParams, frozen=True, kw_only=True):
    load_percent: Annotated[int, Meta(ge=1, le=100, description="GPU utilisation from which speed is judged.")] = 20


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    if node.virtual is True:
        return
    yield from unlisted("pcie_switch", node)  # who is busy, and which of the switches are above a GPU, is not known
    devices = {d.address: d for d in node.pci}
    gpus = () if isinstance(node.gpus, Missing) else node.gpus
    adapters = {n.pci for n in node.nics if n.rdma and n.pci and not n.virtual_function}
    below = [d for a in (*(g.pci for g in gpus), *adapters) if (d := devices.get(a)) is not None]
    busy = {place for g in gpus if is_busy(g, params.load_percent) and g.pci in devices for place in devices[g.pci].path}
    above = {place: port for d in below for port, place in pairwise(d.path[:-1])}
    for address, port in sorted(above.items()):
        switch, upper = devices.get(address), devices.get(port)
        if switch is not None and switch.bridge_role == "switch_upstream":
            yield from _link(address, switch.link, upper.link if upper is not None else None, address in busy)


def _link(address: str, link: PcieLink | Missing, upper: PcieLink | Missing | None, busy: bool) -> Iterator[Finding]:
    if isinstance(link, Missing) or isinstance(link.width_current, Missing) or not link.width_current:
        yield Finding(
            check="pcie_switch",
            level=Level.UNKNOWN,
            device=address,
            summary=f"PCIe link of switch {address} cannot be read",
            service=Service.KEEP,
        )
        return
    most = [end for end in (link, upper) if isinstance(end, PcieLink)]
    width = min((w for end in most if isinstance(w := end.width_max, int) and w > 0), default=None)
    gen = min((g for end in most if isinstance(g := end.gen_max, int) and g > 0), default=None)
    if width is not None and link.width_current < width:
        yield _finding(address, f"is x{link.width_current}, x{width} possible")
    if busy and gen is not None and isinstance(link.gen_current, int) and 0 < link.gen_current < gen:
        yield _finding(address, f"is generation {link.gen_current} under load, {gen} possible")


def _finding(address: str, summary: str) -> Finding:
    return Finding(
        check="pcie_switch",
        level=Level.DRAIN,
        device=address,
        summary=f"PCIe link of switch {address} {summary}: {Action.CHECK_HARDWARE.value}",
        evidence=("the link to the processor",),
        action=Action.CHECK_HARDWARE,
        service=Service.DRAIN_AFTER_JOB,
    )


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
