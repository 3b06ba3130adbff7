"""Checks that the PCIe links of RDMA adapters have the expected width and the declared speed.

The hardware profile declares the expected width. If it does not, the check expects the highest width that both the adapter and
the port above it support (sysfs max_link_width; PCI Express Base Specification, Link Capabilities). So a x16 card in a x8 slot is
no fault. Virtual functions have no link of their own. In a virtual machine the values of a link are invented or absent (x0), so
the check judges only declared values in virtual machines. Links of adapters are read on thorough sweeps only, so the check runs
on thorough sweeps only, and each reading counts once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node, PcieLink
from fairlead.model.finding import Finding, Level, Mode
from fairlead.model.link import Judged, able, port_above


class Params(CheckParams, frozen=True, kw_only=True):
    width: Annotated[
        Annotated[int, Meta(ge=1, le=32)] | None,
        Meta(description="Number of lanes of each RDMA adapter. If unset, what adapter and slot can do."),
    ] = None
    gen: Annotated[
        Annotated[int, Meta(ge=1, le=7)] | None,
        Meta(description="PCIe generation of each RDMA adapter. If unset, it is not judged."),
    ] = None


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    if node.virtual is True and params.width is None and params.gen is None:
        return
    devices = {d.address: d for d in node.pci}
    for address in sorted({n.pci for n in node.nics if n.rdma and n.pci and not n.virtual_function}):
        device, judged = devices.get(address), Judged("adapter", address)
        link = device.link if device is not None else None
        if not isinstance(link, PcieLink) or isinstance(link.width_current, Missing):
            yield judged.finding(Level.UNKNOWN, "cannot be read")
        else:
            yield from _link(judged, link, able(link, port_above(device, devices)).width, params)


def _link(judged: Judged, link: PcieLink, possible: int | None, params: Params) -> Iterator[Finding]:
    if params.width is None and possible is None:
        yield judged.finding(Level.UNKNOWN, f"is x{link.width_current}, of how many cannot be read")
    elif isinstance(link.width_current, int):
        yield from judged.narrow(link.width_current, possible, params.width)
    if params.gen is None:
        return
    if isinstance(link.gen_current, Missing):
        yield judged.finding(Level.UNKNOWN, "has a speed that cannot be read")
    elif link.gen_current < params.gen:
        yield judged.finding(Level.DRAIN, f"is generation {link.gen_current}, {params.gen} declared")


check = Check(
    summary="PCIe links of RDMA adapters: width always, speed as declared",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=3,
    boot_grace_seconds=120,
    slow=True,
)
