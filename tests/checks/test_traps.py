"""States that look like a fault and are none, and faults that look like health: each one beside its opposite."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import checks
from fairlead.checks import gpu_clocks, gpu_throttle
from fairlead.history.memory import History
from fairlead.host.gpu_load_reader import LoadSums
from fairlead.model.check_definition import KernelRecord, Past, Sample
from fairlead.model.facts import Node, PcieLink
from fairlead.model.finding import Finding, Level
from tests.checks.hosts import WELL, host_node, judged
from tests.checks.nodes import BOOT, GEN5, LINKS, NA, endpoint, gpu, nic, node

PORT = "mlx5_0/1"


def counted(device: str, name: str, value: float, *, at: float) -> Past:
    """A counter that went from 0 to ``value`` a minute after ``at`` seconds of uptime, and stayed."""
    points = ((at, 0.0), (at + 60, value))
    return Past(available=True, samples=tuple(Sample(device=device, name=name, seconds=s, value=v) for s, v in points))


def trained(check: str, uptime: float) -> tuple[Node, str, str, int]:
    """A node whose one counter has grown by so much that it is a fault: facts, device, counter, its value."""
    ports = (replace(WELL.ports[0], counters={**WELL.ports[0].counters, "link_downed": 6, "symbol_error": 5000}),)  # type: ignore[index]
    links = (replace(LINKS[0], recoveries_failed=9), *LINKS[1:])
    made: dict[str, tuple[Node, str, str, int]] = {
        "rdma_flaps": (host_node(ports=ports), PORT, "link_downed", 6),
        "rdma_errors": (host_node(ports=ports), PORT, "symbol_error", 5000),
        "nvlink": (node(gpu(5, nvlinks=links)), "1651223005", "nvlink.0.recoveries_failed", 9),
        "pcie_errors": (node(gpu(5, pcie=replace(GEN5, replays=4000))), "1651223005", "pcie.replays", 4000),
    }
    facts, device, name, value = made[check]
    return replace(facts, uptime_seconds=uptime), device, name, value


@pytest.mark.parametrize("check", ["rdma_flaps", "rdma_errors", "nvlink", "pcie_errors"])
def test_what_links_count_while_they_train(check: str) -> None:
    facts, device, name, value = trained(check, 1000.0)
    assert judged(check, facts, counted(device, name, value, at=15.0)) == []
    assert [f.level for f in judged(check, facts, counted(device, name, value, at=500.0))] == [
        Level.DRAIN if check in ("rdma_flaps", "nvlink") else Level.WARN
    ]
    assert judged(check, facts, counted(device, name, value, at=15.0), boot_grace_seconds=0)  # the site counts from the start


def firmware(number: int, severity: str, *sections: str) -> tuple[str, ...]:
    """A record of the firmware's as drivers/firmware/efi/cper.c prints it."""
    begin = f"{{{number}}}[Hardware Error]:"
    told = (f"{begin} event severity: {severity}", *(f"{begin}   section_type: {s}" for s in sections))
    return (f"{begin} Hardware error from APEI Generic Hardware Error Source: 4", *told)


def test_a_flood_of_what_firmware_corrected_pushes_nothing_out() -> None:
    history = History("", BOOT)
    flood = [text for number in range(2, 2000) for text in firmware(number, "corrected", "PCIe error")[2:]]
    other = "I/O error, dev nvme0n1, sector 5 op 0x0:(READ) flags 0x0"
    for place, text in enumerate([other, *flood, "Memory failure: 0x12345: x"]):
        history.add_records([KernelRecord(sequence=place, seconds=9000.0, priority=4, text=text, boot_id=BOOT)])
    kept = [r.text for r in history.past().records]
    assert other in kept and kept[-1].startswith("Memory failure") and len(kept) < 40


def under_mig(mask: int, hertz: int, module: Any) -> list[Finding]:
    """What a check says of GPU 3, watched for 14 minutes in this state."""
    seen, history = LoadSums(), History("", BOOT)
    state: dict[str, Any] = {"mig_current": True, "mig_pending": True, "utilization_percent": NA}
    sliced = gpu(3, throttle_reasons=mask, clock_sm_hertz=hertz, **state)
    for number in range(60):
        now = number * 14.0
        facts = node(gpus=seen.add((sliced,), now), uptime_seconds=10000.0 + now)
        history.add_samples(10000.0 + now, module.check.samples(facts))
    return list(module.check.findings(facts, history.past(), module.Params()))


def test_clocks_under_mig() -> None:
    assert [f.level for f in under_mig(0x48, 900_000_000, gpu_throttle)] == [Level.DRAIN]
    assert under_mig(0x49, 900_000_000, gpu_throttle) == []  # hot, and nothing runs
    assert [f.level for f in under_mig(0x0, 345_000_000, gpu_clocks)] == [Level.DRAIN]
    assert under_mig(0x1, 345_000_000, gpu_clocks) == []
    assert under_mig(0x0, 1_980_000_000, gpu_clocks) == []


def test_a_guest_of_a_cloud_is_well() -> None:
    """Its adapter tells no link and counts nothing, its own functions are of class 0, no port is above its GPUs."""
    nothing = PcieLink(gen_current=NA, gen_max=NA, width_current=0, width_max=0, replays=NA)
    flat = tuple(replace(d, path=("pci0000:00", d.address)) for d in node().pci if d.class_code >> 8 == 0x0302)
    adapter = replace(
        endpoint("0000:19:00.0", vendor=0x1D0F, class_code=0x020000, link=nothing), path=("pci0000:00", "0000:19:00.0")
    )
    power = replace(endpoint("0000:00:01.3", vendor=0x8086, class_code=0), path=("pci0000:00", "0000:00:01.3"), link=NA)
    port = replace(WELL.ports[0], width_lanes=NA, counters={}, carrier_downs={})  # type: ignore[index]
    machine = replace(
        host_node(ports=(port,), controllers=()),
        virtual=True,
        pci=(*flat, adapter, power),
        nics=(nic(link_layer="Unspecified"),),
        gpus=tuple(gpu(place, aer=None, port_aer=None) for place in range(8)),
        texts=dict.fromkeys((path for check in checks.load().values() for path in check.reads), None),
    )
    found = [(f.check, f.summary) for name in checks.load() for f in judged(name, machine) if f.level is not Level.OK]
    assert found == []
