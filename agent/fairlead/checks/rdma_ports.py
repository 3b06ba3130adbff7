"""Checks that as many InfiniBand and RoCE ports as declared are active, at their rate and width.

State, physical state and rate are in /sys/class/infiniband/*/ports (Documentation/ABI/stable/sysfs-class-infiniband: state "4:
ACTIVE", phys_state "5: LinkUp"). The hardware profile declares how many ports carry traffic. If that many ports are good, the
other ports are not judged (such as an adapter without a cable). The check also reports that fewer ports exist than declared. When
a subnet manager restarts, ports are in INIT or ARMED for some seconds. The check counts only after several bad sweeps, so such a
restart does not drain. A link that trained to fewer lanes ("1X") has a lower rate, and the finding names its width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Missing, Nic, Node, unreadable
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.host_facts import Host
from fairlead.model.unread import host_of, unread

Count = Annotated[int, Meta(ge=0, le=64)]
_NO_LAYER = unreadable("no link_layer")
Rate = Annotated[float, Meta(gt=0)]


class Params(CheckParams, frozen=True, kw_only=True):
    infiniband_ports: Annotated[
        Count | None, Meta(description="This many InfiniBand ports have to be active. If unset, their number is not judged.")
    ] = None
    infiniband_rate_gbps: Annotated[
        Rate | None, Meta(description="Least rate of each InfiniBand port. If unset, not judged.")
    ] = None
    infiniband_width_lanes: Annotated[
        Count | None, Meta(description="Least width of each InfiniBand port. If unset, not judged.")
    ] = None
    ethernet_ports: Annotated[
        Count | None, Meta(description="This many RoCE ports have to be active. If unset, their number is not judged.")
    ] = None
    ethernet_rate_gbps: Annotated[Rate | None, Meta(description="Least rate of each RoCE port. If unset, not judged.")] = None
    ignore: Annotated[tuple[str, ...], Meta(description="RDMA devices that are not judged, such as mlx5_9.")] = ()


def _finding(summary: str, action: Action, device: str = "", *evidence: str) -> Finding:
    return with_action(Level.DRAIN, summary, action, *evidence, device=device, service=Service.DRAIN_AFTER_JOB)


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    for host in host_of(node):
        if isinstance(host, Finding):
            yield host
            return
        used = [n for n in node.nics if n.rdma and not n.virtual_function and n.name not in params.ignore]
        for nic in used:
            if not nic.link_layer:
                yield unread(f"the kind of port {_name(nic)}", _NO_LAYER, _name(nic))
        infiniband = (params.infiniband_ports, params.infiniband_rate_gbps, params.infiniband_width_lanes)
        yield from _layer(host, [n for n in used if n.link_layer == "InfiniBand"], "InfiniBand", infiniband)
        ethernet = (params.ethernet_ports, params.ethernet_rate_gbps, None)
        yield from _layer(host, [n for n in used if n.link_layer == "Ethernet"], "RoCE", ethernet)


def _name(nic: Nic) -> str:
    return f"{nic.name}/{nic.port}"


def _layer(host: Host, ports: list[Nic], kind: str, want: tuple[int | None, float | None, int | None]) -> Iterator[Finding]:
    """Yield findings for the ports of one kind. ``want`` is the declared number, rate and width of these ports.

    If enough ports are good, the others are not in use and yield no findings. A value that cannot be read is always reported.
    """
    expected, rate, width = want
    widths = {f"{p.name}/{p.port}": p.width_lanes for p in host.ports} if not isinstance(host.ports, Missing) else {}
    good = 0
    bad: list[Finding] = []
    for nic in ports:
        name = _name(nic)
        blind = _blind(nic, widths.get(name, unreadable("no such port")), rate, width)
        if blind is not None:
            yield blind
            continue
        lanes = widths.get(name)
        if nic.state != "ACTIVE" or nic.physical_state != "LinkUp":
            bad.append(_finding(f"{kind} port {name} is {nic.state} ({nic.physical_state})", Action.CHECK_FABRIC, name))
        elif rate is not None and isinstance(nic.rate_gbps, float) and nic.rate_gbps < rate:
            said = f"{kind} port {name} runs at {nic.rate_gbps:g} Gb/s, {rate:g} declared"
            bad.append(_finding(said, Action.CHECK_FABRIC, name, f"width {lanes}X" if isinstance(lanes, int) else ""))
        elif width is not None and isinstance(lanes, int) and lanes < width:
            bad.append(_finding(f"{kind} port {name} is {lanes}X, {width}X declared", Action.CHECK_FABRIC, name))
        else:
            good += 1
    if expected is None:
        yield from (f for f in bad if " declared" in f.summary)
    elif good < expected:
        yield from bad
        if len(ports) < expected:
            here = ", ".join(_name(n) for n in ports) or "none"
            yield _finding(f"{len(ports)} of {expected} {kind} ports are there", Action.CHECK_HARDWARE, "", f"there: {here}")


def _blind(nic: Nic, lanes: int | Missing, rate: float | None, width: int | None) -> Finding | None:
    name = _name(nic)
    for what, value, needed in (
        ("the state", nic.state, True),
        ("the physical state", nic.physical_state, True),
        ("the rate", nic.rate_gbps, rate is not None),
        ("the width", lanes, width is not None),
    ):
        if needed and isinstance(value, Missing):
            return unread(f"{what} of port {name}", value, name)
    return None


check = Check(
    summary="InfiniBand and RoCE ports: as many as declared are active, at their rate and width",
    params=Params,
    another_gpu={
        "infiniband_ports": None,
        "infiniband_rate_gbps": None,
        "infiniband_width_lanes": None,
        "ethernet_ports": None,
        "ethernet_rate_gbps": None,
    },
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=3,
    confirm_of=4,
    boot_grace_seconds=300,
    slow=True,
)
