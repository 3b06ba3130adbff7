"""States that look like a fault and are none, and faults that look like health: each one beside its opposite."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import checks, config
from fairlead.checks import gpu_clocks, gpu_throttle
from fairlead.daemon.history import History
from fairlead.daemon.judge import fresh, judge
from fairlead.host.gpu_load import LoadSums
from fairlead.model.check import KernelRecord, Past, Sample
from fairlead.model.device import boards_of, readable_fields
from fairlead.model.facts import Node, NumaNode, PcieLink
from fairlead.model.finding import Action, Finding, Level
from fairlead.model.gpu_health import RetiredPages
from fairlead.model.host_facts import NvmeController
from tests.checks.hosts import WELL, host_node, judged, levels
from tests.checks.nodes import (
    ADDRESSES,
    BOOT,
    GEN5,
    LINKS,
    NA,
    STATE,
    UNSUPPORTED,
    endpoint,
    gpu,
    log,
    nic,
    node,
    port,
)

HERE = ADDRESSES[5]
YESTERDAY = Past(available=True, readable=readable_fields(node()), boards=boards_of(node()))
NO_PAGES = RetiredPages(single_bit=0, double_bit=0, pending=False)
PORT = "mlx5_0/1"


# -- links train after a boot: what they count meanwhile is no fault, during the grace or after it -----------------------


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


def test_links_that_went_down_in_the_log_while_they_trained() -> None:
    def told(first: float) -> Past:
        text = "mlx5_core 0000:19:00.0 ibp25s0: Link down"
        return Past(
            available=True,
            records=tuple(KernelRecord(sequence=i, seconds=first + i, priority=4, text=text, boot_id=BOOT) for i in range(3)),
        )

    facts = replace(host_node(), uptime_seconds=1000.0)
    assert judged("rdma_flaps", facts, told(20.0)) == []
    assert [f.level for f in judged("rdma_flaps", facts, told(400.0))] == [Level.DRAIN]


# -- values that went dark ----------------------------------------------------------------------------------------------


def test_row_remapping_that_went_dark_on_a_gpu_that_answers_for_retired_pages() -> None:
    dark = node(gpu(5, remap=NA, retired=NO_PAGES))
    assert [f.level for f in judged("row_remap", dark, YESTERDAY)] == [Level.DRAIN]
    assert judged("row_remap", dark, Past(available=True)) == []  # before Ampere it never remapped


def test_a_serial_that_went_dark_is_no_swapped_board() -> None:
    (found,) = judged("gpu_identity", node(gpu(5, serial=NA)), YESTERDAY)
    assert (found.level, found.device) == (Level.UNKNOWN, HERE) and "swapped" not in found.summary
    (found,) = judged("gpu_identity", node(gpu(5, serial="1999")), YESTERDAY)
    assert found.level is Level.WARN and "swapped" in found.summary
    by_uuid = replace(YESTERDAY, boards={HERE: "GPU-00000005"})
    assert judged("gpu_identity", node(gpu(5, serial=NA)), by_uuid) == []


def test_a_board_that_moved_to_a_slot_where_none_was() -> None:
    moved = node(gpus=(*node().gpus[:5], gpu(5, pci="0000:e3:00.0"), *node().gpus[6:]))  # type: ignore[index]
    (found,) = judged("gpu_identity", moved, YESTERDAY)
    assert (found.level, found.device) == (Level.WARN, "0000:e3:00.0") and f"was in slot {HERE}" in found.summary
    remembered = replace(YESTERDAY, boards={**YESTERDAY.boards, "0000:e3:00.0": "1651223005"})
    assert [f.evidence_id for f in judged("gpu_identity", moved, remembered)] == [found.evidence_id]
    cleared = {slot: board for slot, board in remembered.boards.items() if board != "1651223005"}
    assert judged("gpu_identity", moved, replace(YESTERDAY, boards=cleared)) == []


def test_links_that_count_nothing_where_the_profile_excuses_one_of_two_ways() -> None:
    older = dict.fromkeys(("crc_errors", "replay_errors", "recovery_errors"), NA)
    newer = dict.fromkeys(
        ("malformed_packets", "receive_errors", "recoveries_failed", "recoveries", "effective_errors"), UNSUPPORTED
    )
    blind = tuple(replace(link, **older, **newer) for link in LINKS)
    assert [f.level for f in judged("nvlink", node(gpu(5, nvlinks=blind)))] == [Level.UNKNOWN]
    excused = tuple(replace(link, **dict.fromkeys(older, UNSUPPORTED), **newer) for link in LINKS)
    assert judged("nvlink", node(gpu(5, nvlinks=excused))) == []


# -- what the kernel log says, and of whom ------------------------------------------------------------------------------


def firmware(number: int, severity: str, *sections: str) -> tuple[str, ...]:
    """A record of the firmware's as drivers/firmware/efi/cper.c prints it."""
    begin = f"{{{number}}}[Hardware Error]:"
    told = (f"{begin} event severity: {severity}", *(f"{begin}   section_type: {s}" for s in sections))
    return (f"{begin} Hardware error from APEI Generic Hardware Error Source: 4", *told)


@pytest.mark.parametrize(
    ("texts", "bad"),
    [
        (firmware(1, "recoverable", "PCIe error"), False),  # of the link, whose counters pcie_errors judges
        (firmware(1, "recoverable", "memory error"), True),
        (firmware(1, "recoverable"), True),  # of what is not known: it is told
        (firmware(1, "recoverable", "PCIe error", "memory error"), True),
        ((*firmware(1, "corrected", "PCIe error"), *firmware(2, "recoverable", "memory error")), True),
        ((*firmware(1, "recoverable", "PCIe error"), *firmware(2, "corrected", "memory error")), False),
    ],
)
def test_errors_that_firmware_tells(texts: tuple[str, ...], bad: bool) -> None:
    assert [f.level for f in judged("memory_errors", host_node(), log(*texts))] == [Level.DRAIN] * bad
    heeds = checks.load()["memory_errors"].heeds
    assert [heeds(t) for t in texts[:1]] == [False] and all(heeds(t) for t in texts if "section" in t)


def test_firmware_says_what_it_was_some_lines_later() -> None:
    first = firmware(1, "recoverable")
    assert judged("memory_errors", host_node(), log(*first, seconds=9999.0)) == []
    told = judged("memory_errors", host_node(), log(*firmware(1, "recoverable", "memory error"), seconds=9999.0))
    assert [f.level for f in told] == [Level.DRAIN]


def test_a_flood_of_what_firmware_corrected_pushes_nothing_out() -> None:
    history = History("", BOOT)
    flood = [text for number in range(2, 2000) for text in firmware(number, "corrected", "PCIe error")[2:]]
    other = "I/O error, dev nvme0n1, sector 5 op 0x0:(READ) flags 0x0"
    for place, text in enumerate([other, *flood, "Memory failure: 0x12345: x"]):
        history.add_records([KernelRecord(sequence=place, seconds=9000.0, priority=4, text=text, boot_id=BOOT)])
    kept = [r.text for r in history.past().records]
    assert other in kept and kept[-1].startswith("Memory failure") and len(kept) < 40


@pytest.mark.parametrize("what", ["timeout", "protection", "device offline"])
def test_requests_that_the_device_failed_by_other_words(what: str) -> None:
    text = f"{what} error, dev nvme0n1, sector 123456 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2"
    assert levels(judged("disks", host_node(), log(*[text] * 10))) == [(Level.DRAIN, "nvme0n1")]
    known = checks.load()["disks"]
    assert known.heeds(text) and text.startswith(known.wakes_on)


@pytest.mark.parametrize("what", ["operation not supported", "critical space allocation", "reservation conflict"])
def test_requests_that_failed_and_the_device_is_well(what: str) -> None:
    text = f"{what} error, dev nvme0n1, sector 123456 op 0x9:(WRITE_ZEROES) flags 0x0 phys_seg 1 prio class 2"
    assert judged("disks", host_node(), log(*[text] * 10)) == []


def test_a_controller_over_the_network_stands_in_for_no_drive() -> None:
    far = NvmeController(name="nvme7", pci="", state="live")
    near = NvmeController(name="nvme0", pci="0000:2a:00.0", state="live")
    assert judged("disks", host_node(nvme=(near, far)), nvme_expected=1) == []
    assert [f.level for f in judged("disks", host_node(nvme=(far,)), nvme_expected=1)] == [Level.DRAIN]


# -- GPUs in MIG mode say nothing of their utilisation -------------------------------------------------------------------


def under_mig(mask: int, hertz: int, module: Any) -> list[Finding]:
    """What a check says of GPU 3, watched for 14 minutes in this state."""
    seen, history = LoadSums(), History("", BOOT)
    state: dict[str, Any] = {"mig_current": True, "mig_pending": True, "utilization_percent": NA}
    sliced = gpu(3, throttle_reasons=mask, clock_sm_hertz=hertz, **state)
    for number in range(60):
        now = number * 14.0
        facts = node(gpus=seen.add((sliced,), now), uptime_seconds=10000.0 + now)
        history.add_samples(10000.0 + now, module.check.samples(facts))
    return list(module.check.judge(facts, history.past(), module.Params()))


def test_clocks_under_mig() -> None:
    assert [f.level for f in under_mig(0x48, 900_000_000, gpu_throttle)] == [Level.DRAIN]
    assert under_mig(0x49, 900_000_000, gpu_throttle) == []  # hot, and nothing runs
    assert [f.level for f in under_mig(0x0, 345_000_000, gpu_clocks)] == [Level.DRAIN]
    assert under_mig(0x1, 345_000_000, gpu_clocks) == []
    assert under_mig(0x0, 1_980_000_000, gpu_clocks) == []


@pytest.mark.parametrize(("mask", "bad"), [(0x0, True), (0x1, False)])
def test_pcie_speed_under_mig(mask: int, bad: bool) -> None:
    slow = gpu(5, mig_current=True, utilization_percent=NA, throttle_reasons=mask, pcie=replace(GEN5, gen_current=1))
    assert [f.device for f in judged("pcie_link", node(slow))] == [HERE] * bad


# -- clocks that somebody left low ---------------------------------------------------------------------------------------


def test_application_clocks_that_were_left_low() -> None:
    low = gpu(5, state=replace(STATE, application_sm_hertz=345_000_000))
    (found,) = judged("gpu_clocks", node(low))
    assert (found.level, found.device, found.action) == (Level.DRAIN, HERE, Action.PROVISION)
    assert judged("gpu_clocks", node(low), judge_application=False) == []
    # a board whose own is below its highest, and a driver that has none
    usual = replace(STATE, application_sm_hertz=765_000_000, application_default_sm_hertz=765_000_000)
    assert judged("gpu_clocks", node(gpu(5, state=usual))) == []
    assert judged("gpu_clocks", node(gpu(5, state=replace(STATE, application_sm_hertz=UNSUPPORTED)))) == []


# -- the link that GPUs share --------------------------------------------------------------------------------------------

ROOT, SWITCH = "0000:10:01.0", "0000:11:00.0"


def behind_a_switch(uplink: PcieLink | Any, root: PcieLink = GEN5, *, busy: int = 0, **more: Any) -> Node:
    """GPU 5 and an adapter below a switch below a root port."""
    top = replace(port(HERE, root), address=ROOT, path=("pci0000:10", ROOT), bridge_role="root_port")
    switch = replace(top, address=SWITCH, path=(*top.path, SWITCH), bridge_role="switch_upstream", link=uplink)
    down = replace(port(HERE), path=(*switch.path, port(HERE).address))
    below = replace(endpoint(HERE), path=(*down.path, HERE))
    others = tuple(d for d in node().pci if d.address not in (HERE, down.address))
    machine = node(gpu(5, utilization_percent=busy), pci=(*others, top, switch, down, below))
    return replace(machine, **more)


@pytest.mark.parametrize(
    ("machine", "level"),
    [
        (behind_a_switch(GEN5), None),
        (behind_a_switch(replace(GEN5, width_current=8)), Level.DRAIN),
        (behind_a_switch(replace(GEN5, width_current=8), replace(GEN5, width_max=8)), None),  # the slot can do no more
        (behind_a_switch(replace(GEN5, gen_current=1)), None),  # nothing runs
        (behind_a_switch(replace(GEN5, gen_current=3), busy=100), Level.DRAIN),
        (behind_a_switch(NA), Level.UNKNOWN),
        (behind_a_switch(NA, virtual=True), None),  # made up by the hypervisor
    ],
)
def test_the_switch_above_a_gpu(machine: Node, level: Level | None) -> None:
    assert levels(judged("pcie_switch", machine)) == ([(level, SWITCH)] if level is not None else [])
    assert judged("pcie_link", machine) == []


def test_a_switch_that_was_read_while_nothing_ran() -> None:
    """Links of bridges are read on thorough looks only: between these, one read at idle would stand beside a GPU busy now."""
    known = config.profile_document("n1", "hgx-h100")
    machine = behind_a_switch(replace(GEN5, gen_current=1), busy=100)

    def told(looked: Node) -> list[str]:
        return [f.device for f in judge(known, looked, Past(available=True), fresh(known, looked)) if f.check == "pcie_switch"]

    assert told(replace(machine, thorough=False)) == []
    assert told(replace(machine, thorough=True)) == [SWITCH]


def test_the_switch_above_an_adapter_only() -> None:
    address = "0000:19:00.0"
    machine = behind_a_switch(replace(GEN5, width_current=4))
    above = next(d for d in machine.pci if d.address == SWITCH)
    adapter = replace(endpoint(address, vendor=0x15B3, class_code=0x020700), path=(*above.path, address))
    devices = tuple(d for d in machine.pci if d.address != HERE)
    told = judged("pcie_switch", replace(machine, gpus=machine.gpus[:5], nics=(nic(),), pci=(*devices, adapter)))  # type: ignore[index]
    assert levels(told) == [(Level.DRAIN, SWITCH)]


@pytest.mark.parametrize(
    ("numa", "level"),
    [
        ((), Level.DRAIN),
        ((NumaNode(id=0, cpus=(0, 1), memory_bytes=85 << 30),), Level.DRAIN),  # the processor's own
        ((NumaNode(id=4, cpus=(), memory_bytes=85 << 30),), None),  # GH200: the kernel hands the GPU's memory out
        ((NumaNode(id=4, cpus=(), memory_bytes=512 << 30),), Level.DRAIN),  # a memory expander
    ],
)
def test_memory_of_a_gpu_that_the_kernel_hands_out(numa: tuple[NumaNode, ...], level: Level | None) -> None:
    machine = node(gpu(3, memory_used_bytes=9 << 30), numa=numa)
    assert [f.level for f in judged("gpu_leftovers", machine)] == ([level] if level is not None else [])


def test_a_counter_that_a_guest_may_lack() -> None:
    counters = {**WELL.ports[0].counters, "rx_icrc_encapsulated": NA}  # type: ignore[index]
    machine = host_node(ports=(replace(WELL.ports[0], counters=counters),))  # type: ignore[index]
    assert [f.level for f in judged("rdma_errors", machine)] == [Level.UNKNOWN]
    assert judged("rdma_errors", replace(machine, virtual=True)) == []


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
    )
    assert [(f.check, f.summary) for name in checks.load() for f in judged(name, machine) if f.level is not Level.OK] == []
