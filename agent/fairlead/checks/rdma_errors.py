"""Reports errors on RDMA links as rates. A link that retrains, or drops or damages packets, slows every collective through it.

The check reads the counters of the port (/sys/class/infiniband; IBTA PortCounters, as drivers/infiniband/core/sysfs.c reads
them). With mlx5 it also reads the hw_counters of the transport. symbol_error and port_rcv_errors stop at 65535,
link_error_recovery at 255, and local_link_integrity_errors and excessive_buffer_overrun_errors at 15. A counter that has reached
its end cannot grow, so the check reports it. A single error is harmless: a link within the specification's bit error rate of
1e-12 may have 120 symbol errors an hour. After a reset of a counter, the check counts from zero. Errors within the boot grace do
not count, because links train then. rx_icrc_encapsulated exists only where the device may read its physical port's counters
(drivers/infiniband/hw/mlx5/counters.c, PCAM), so a virtual function in its guest may lack it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past, Sample
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, with_action
from fairlead.model.host_facts import PORT_COUNTER_BITS, RdmaPort
from fairlead.model.trend import growth, series, settled_seconds
from fairlead.model.unread import rdma_ports, unread

Limit = Annotated[float, Meta(ge=0)]
#: Maps each counter to the parameter that limits it.
LIMITS = {
    "symbol_error": "symbol_errors_per_hour_max",
    "link_error_recovery": "recoveries_per_hour_max",
    "port_rcv_errors": "receive_errors_per_hour_max",
    "local_link_integrity_errors": "integrity_errors_per_hour_max",
    "excessive_buffer_overrun_errors": "integrity_errors_per_hour_max",
    "rx_icrc_encapsulated": "receive_errors_per_hour_max",
    "packet_seq_err": "retransmissions_per_hour_max",
    "local_ack_timeout_err": "retransmissions_per_hour_max",
}

BOOT_GRACE_SECONDS = 300

Known = Mapping[tuple[str, str], Sequence[Sample]]


class Params(CheckParams, frozen=True, kw_only=True):
    symbol_errors_per_hour_max: Annotated[
        Limit, Meta(description="The check warns at this many or more symbol errors an hour. 0: never.")
    ] = 120.0
    recoveries_per_hour_max: Annotated[
        Limit, Meta(description="The check warns at this many or more retrainings of the link an hour. 0: never.")
    ] = 4.0
    receive_errors_per_hour_max: Annotated[
        Limit, Meta(description="The check warns at this many or more damaged packets an hour. 0: never.")
    ] = 120.0
    integrity_errors_per_hour_max: Annotated[
        Limit,
        Meta(
            description="The check warns at this many or more local link integrity errors or buffer overruns an hour. 0: never."
        ),
    ] = 4.0
    retransmissions_per_hour_max: Annotated[
        Limit,
        Meta(description="The check warns at this many or more time-outs or packets out of sequence an hour (mlx5). 0: never."),
    ] = 100000.0
    window_seconds: Annotated[int, Meta(ge=60, le=7200, description="The rate is measured over this window.")] = 3600
    window_least_seconds: Annotated[int, Meta(ge=1, description="Samples that are closer together than this give no rate.")] = 300
    ignore: Annotated[tuple[str, ...], Meta(description="RDMA devices that are not judged.")] = ()


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    known = series(past)
    for port in rdma_ports(node, params.ignore):
        if isinstance(port, Finding):
            yield port
        else:
            yield from _port(port, node, past, known, params)


def _port(port: RdmaPort, node: Node, past: Past, known: Known, params: Params) -> Iterator[Finding]:
    name = f"{port.name}/{port.port}"
    known_not = ("rx_icrc_encapsulated",) if node.virtual is True else ()
    missing = [c for c in LIMITS if isinstance(port.counters.get(c), Missing) and c not in known_not]
    if missing:
        yield unread(f"{', '.join(missing)} of port {name}", port.counters[missing[0]], name)  # type: ignore[arg-type]
    fast: list[str] = []
    full: list[str] = []
    late = False
    for counter, limit_name in LIMITS.items():
        value, limit, now = port.counters.get(counter), getattr(params, limit_name), node.uptime_seconds
        if not isinstance(value, int) or isinstance(now, Missing) or not limit:
            continue
        found = growth(
            known.get((name, counter), ()),
            value,
            now,
            window_seconds=settled_seconds(now, params.window_seconds, params.boot_grace_seconds, BOOT_GRACE_SECONDS),
            least_seconds=params.window_least_seconds,
        )
        if found is not None and found.per_hour >= limit and found.amount >= 2:
            fast.append(
                f"{counter}: {found.per_hour:.0f} per hour over {found.seconds:.0f} s, {value} in all, {limit:g} accepted"
            )
        elif counter in PORT_COUNTER_BITS and value >= (1 << PORT_COUNTER_BITS[counter]) - 1:
            full.append(counter)
        late = late or (value > 0 and found is None and not past.available)
    if fast:
        yield with_action(
            Level.WARN,
            f"errors come too fast on port {name} ({', '.join(f.partition(':')[0] for f in fast)})",
            Action.CHECK_FABRIC,
            *fast,
            device=name,
        )
    elif full:
        yield _note(name, f"{', '.join(full)} of port {name} cannot count any further: clear them (perfquery -R)")
    elif late:
        yield _note(name, f"port {name} has counted errors: their rate needs history", history=True)


def _note(device: str, summary: str, *, history: bool = False) -> Finding:
    return Finding(level=Level.OK, device=device, summary=summary, needs_history=history)


def samples(node: Node) -> Iterator[tuple[str, str, float]]:
    """Yield the error counters of each port."""
    if isinstance(node.host, Missing) or isinstance(node.host.ports, Missing):
        return
    for port in node.host.ports:
        for counter in LIMITS:
            value = port.counters.get(counter)
            if isinstance(value, int):
                yield f"{port.name}/{port.port}", counter, float(value)


check = Check(
    summary="Errors on RDMA links, as rates",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    boot_grace_seconds=BOOT_GRACE_SECONDS,
    samples=samples,
    slow=True,
)
