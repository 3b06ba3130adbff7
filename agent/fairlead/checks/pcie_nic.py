"""PCIe links of RDMA adapters: always as wide as they should be, and as fast as declared.

Expected is what the hardware profile declares, else the smaller of what the adapter and the port above it can do (sysfs
max_link_width; PCI Express Base Specification, Link Capabilities): a x16 card in a x8 slot is a note about the slot, not a
fault. Virtual functions have no link of their own, and what a virtual machine says of a link is made up or nothing (x0): there
it is judged by what is declared alone. Links of adapters are read on thorough looks, so it is judged on these
alone: one reading counts once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node, PcieLink
from fairlead.model.finding import Action, Finding, Level, Mode, Service


class Params(CheckParams, frozen=True, kw_only=True):
    width: Annotated[
        Annotated[int, Meta(ge=1, le=32)] | None,
        Meta(description="Lanes of each RDMA adapter; unset: what adapter and slot can do."),
    ] = None
    gen: Annotated[
        Annotated[int, Meta(ge=1, le=7)] | None, Meta(description="PCIe generation of each RDMA adapter; unset: not judged.")
    ] = None


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    if node.virtual is True and params.width is None and params.gen is None:
        return
    devices = {d.address: d for d in node.pci}
    for address in sorted({n.pci for n in node.nics if n.rdma and n.pci and not n.virtual_function}):
        device = devices.get(address)
        above = devices.get(device.path[-2]) if device is not None and len(device.path) > 1 else None
        link = device.link if device is not None else None
        yield from _link(address, link, above.link if above is not None else None, params)


def _link(address: str, link: PcieLink | Missing | None, upper: PcieLink | Missing | None, params: Params) -> Iterator[Finding]:
    if not isinstance(link, PcieLink) or isinstance(link.width_current, Missing):
        yield _finding(address, Level.UNKNOWN, "cannot be read")
        return
    width, most = link.width_current, (link, upper)
    able = min((w for end in most if isinstance(end, PcieLink) and isinstance(w := end.width_max, int) and w > 0), default=None)
    want = params.width if params.width is not None else able
    if want is None:
        yield _finding(address, Level.UNKNOWN, f"is x{width}, of how many cannot be read")
    elif width < want:
        declared = "declared" if params.width is not None else "possible"
        yield _finding(address, Level.DRAIN, f"is x{width}, x{want} {declared}", f"device and slot can do x{able}")
    if params.gen is None:
        return
    if isinstance(link.gen_current, Missing):
        yield _finding(address, Level.UNKNOWN, "has a speed that cannot be read")
    elif link.gen_current < params.gen:
        yield _finding(address, Level.DRAIN, f"is generation {link.gen_current}, {params.gen} declared")


def _finding(address: str, level: Level, summary: str, *evidence: str) -> Finding:
    drain = level is Level.DRAIN
    return Finding(
        check="pcie_nic",
        level=level,
        device=address,
        summary=f"PCIe link of adapter {address} {summary}" + (f": {Action.CHECK_HARDWARE.value}" if drain else ""),
        evidence=evidence,
        action=Action.CHECK_HARDWARE if drain else Action.NONE,
        service=Service.DRAIN_AFTER_JOB if drain else Service.KEEP,
    )


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
