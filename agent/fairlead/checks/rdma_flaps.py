"""Reports RDMA ports whose link comes and goes.

Every loss of link stops a collective, although nearly every sweep finds the port active. The check counts losses in three ways
and uses the largest number. It counts by the port's link_downed (/sys/class/infiniband; an 8 bit counter that stops at 255,
drivers/infiniband/core/sysfs.c), by carrier_down_count of its interfaces (Documentation/ABI/testing/sysfs-class-net), and by
kernel records ("mlx5_core 0000:ab:00.0 ibp171s0: Link down", "... mlx5_5: Port: 1 Link DOWN"). Losses count only within the
window and after the boot grace. So link training at boot and old losses do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past, Sample
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.host_facts import PORT_COUNTER_BITS, RdmaPort
from fairlead.model.trend import growth, series, settled_seconds
from fairlead.model.unread import age_seconds, rdma_ports, unread, unread_log

_RECORD = re.compile(r"mlx5_core ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]):? (\S+): (?:Link down|Port: \d+ Link DOWN)")
_FULL = (1 << PORT_COUNTER_BITS["link_downed"]) - 1

BOOT_GRACE_SECONDS = 300

Known = Mapping[tuple[str, str], Sequence[Sample]]


class Params(CheckParams, frozen=True, kw_only=True):
    flaps_max: Annotated[
        int, Meta(ge=1, description="The check drains at this many or more losses of link within the window.")
    ] = 3
    window_seconds: Annotated[int, Meta(ge=60, le=7200, description="Length of the window.")] = 3600
    ignore: Annotated[tuple[str, ...], Meta(description="RDMA devices that are not judged.")] = ()


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unread_log(past)
    known = series(past)
    for port in rdma_ports(node, params.ignore):
        if isinstance(port, Finding):
            yield port
        else:
            yield from _port(port, node, past, known, params)


def _port(port: RdmaPort, node: Node, past: Past, known: Known, params: Params) -> Iterator[Finding]:
    name = f"{port.name}/{port.port}"
    counts: list[tuple[str, str, int]] = []
    for device, counter, value in _counters(port):
        if isinstance(value, Missing):
            yield unread(f"{counter} of {device}", value, name)
        else:
            counts.append((device, counter, value))
    now = node.uptime_seconds
    window: float = params.window_seconds
    if not isinstance(now, Missing):
        window = settled_seconds(now, window, params.boot_grace_seconds, BOOT_GRACE_SECONDS)
    by_log = len({r.sequence for r in past.records if _is_of(r.text, port) and age_seconds(r, node) <= window})
    grown = {f"kernel log of {port.pci}": by_log} if by_log else {}
    for device, counter, value in counts:
        if isinstance(now, Missing):
            break
        before = known.get((device, counter), ())
        if found := growth(before, value, now, window_seconds=window, least_seconds=1.0):
            grown[f"{counter} of {device}"] = int(found.amount)
    flaps = max(grown.values(), default=0)
    if flaps >= params.flaps_max:
        yield with_action(
            Level.DRAIN,
            f"port {name} lost its link {flaps} times in {params.window_seconds // 60} min",
            Action.CHECK_FABRIC,
            *(f"{what}: +{count}" for what, count in grown.items() if count),
            device=name,
            service=Service.DRAIN_AFTER_JOB,
            evidence_id=f"flaps={sum(value for _, _, value in counts)}",
        )
    elif full := [what for what, counter, value in counts if counter == "link_downed" and value >= _FULL]:
        yield _note(name, f"link_downed of {full[0]} stays at {_FULL}: clear it, or only interfaces and the log show flaps")
    elif not past.available and any(value for _, _, value in counts):
        yield _note(name, f"port {name} has lost its link before: how often now needs history", history=True)


def _note(device: str, summary: str, *, history: bool = False) -> Finding:
    return Finding(level=Level.OK, device=device, summary=summary, needs_history=history)


def _counters(port: RdmaPort) -> Iterator[tuple[str, str, int | Missing]]:
    if "link_downed" in port.counters:
        yield f"{port.name}/{port.port}", "link_downed", port.counters["link_downed"]
    for interface, downs in port.carrier_downs.items():
        yield interface, "carrier_down_count", downs


def _is_of(text: str, port: RdmaPort) -> bool:
    match = _RECORD.match(text)
    return match is not None and match[1] == port.pci


def samples(node: Node) -> Iterator[tuple[str, str, float]]:
    """Yield the count of link losses of each port and of each of its interfaces."""
    if isinstance(node.host, Missing) or isinstance(node.host.ports, Missing):
        return
    for port in node.host.ports:
        for device, counter, value in _counters(port):
            if not isinstance(value, Missing):
                yield device, counter, float(value)


def kind(text: str) -> str:
    """Return the adapter that a record of a lost link names. Return "" for any other record."""
    match = _RECORD.match(text)
    return "" if match is None else f"down {match[1]}"


check = Check(
    summary="Ports whose link comes and goes",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    boot_grace_seconds=BOOT_GRACE_SECONDS,
    kind=kind,
    wakes_on=("mlx5_core ",),
    samples=samples,
    slow=True,
)
