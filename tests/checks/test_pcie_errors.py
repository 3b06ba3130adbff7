"""pcie_errors: replays and AER counts as rates, and fatal errors in the kernel log."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.checks.pcie_errors import Params, check, fatal
from fairlead.judge import heeded_by
from fairlead.model.check_definition import Past, Sample
from fairlead.model.facts import Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service
from fairlead.model.gpu_health import AerCounts
from tests.checks.nodes import ADDRESSES, BOOT, GEN5, NA, NO_ERRORS, UNSUPPORTED, gpu, log, node


def judged(machine: Node, past: Past | None = None, **params: object) -> list[Finding]:
    return list(check.findings(machine, past or Past(available=True), Params(**params)))


def past(name: str, *points: tuple[float, float]) -> Past:
    return Past(available=True, samples=tuple(Sample(device="1651223002", name=name, seconds=s, value=v) for s, v in points))


def test_healthy() -> None:
    assert judged(node()) == []


@pytest.mark.parametrize(
    ("name", "points", "value", "level"),
    [
        ("pcie.replays", ((9400.0, 0.0),), 80, Level.WARN),  # 8 a minute
        ("pcie.replays", ((9400.0, 0.0),), 79, None),
        ("pcie.replays", ((9400.0, 80.0),), 80, None),  # all of them at boot
        ("pcie.replays", ((9900.0, 0.0),), 10**6, None),  # samples too close together
        ("pcie.replays", ((9400.0, 1000.0),), 20, None),  # the driver was loaded anew
        ("aer.correctable", ((7000.0, 0.0),), 1000, Level.WARN),
        ("aer.correctable", ((7000.0, 0.0),), 100, None),
        ("port_aer.correctable", ((7000.0, 0.0),), 1000, Level.WARN),
        ("aer.nonfatal", ((7000.0, 0.0),), 10, Level.WARN),
        ("aer.nonfatal", ((7000.0, 0.0),), 3, None),
        ("aer.fatal", ((7000.0, 0.0),), 1, Level.DRAIN),
        ("port_aer.fatal", ((7000.0, 0.0),), 1, Level.DRAIN),
        ("port_aer.fatal", ((7000.0, 1.0),), 1, None),
    ],
)
def test_counters_are_rates(name: str, points: tuple[tuple[float, float], ...], value: int, level: Level | None) -> None:
    part, _, kind = name.partition(".")
    changed = {"pcie": replace(GEN5, replays=value)} if part == "pcie" else {part: replace(NO_ERRORS, **{kind: value})}
    found = judged(node(gpu(2, **changed)), past(name, *points))
    assert [f.level for f in found] == ([level] if level else [])
    if level:
        assert (found[0].device, found[0].action) == (ADDRESSES[2], Action.CHECK_HARDWARE)
        assert ("the port above" in found[0].summary) is (part == "port_aer")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("pcieport 0000:00:07.0: AER: Uncorrectable (Fatal) error message received from 0000:52:00.0", "0000:52:00.0"),
        ("pcieport 0000:00:07.0: AER: Uncorrected (Fatal) error received: 0000:52:00.0", "0000:52:00.0"),
        ("pcieport 0000:00:07.0: AER: Multiple Uncorrected (Fatal) error received: 52:00.0", "0000:52:00.0"),
        ("nvidia 0000:52:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible", "0000:52:00.0"),
        (
            "nvidia 0000:52:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
            "0000:52:00.0",
        ),
        ("pcieport 0001:52:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer, (ID)", "0001:52:00.0"),
        ("pcieport 0001:52:00.0: DPC: containment event, status:0x1f01 source:0x0000", "0001:52:00.0"),
        ("pcieport 0001:52:00.0: DPC: containment event, status:0x0009: unmasked uncorrectable error detected", "0001:52:00.0"),
        ("pcieport 0001:52:00.0: DPC: enabled with IRQ 24", ""),
        ("pcieport 0001:52:00.0: DPC: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+ SwTrigger+", ""),
        ("pcieport 0000:00:07.0: AER: Uncorrected (Non-Fatal) error received: 0000:52:00.0", ""),
        ("pcieport 0003:30:00.0: AER: Multiple Corrected error received: 0003:31:00.0", ""),
        ("pci 0000:e9:00.0: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)", ""),
        ("pcieport 0000:00:01.0: AER: enabled with IRQ 24", ""),
        ("nvidia 0000:52:00.0: enabling device (0000 -> 0003)", ""),
        ("usb 1-1: a name with PCIe Bus Error: severity=Uncorrected (Fatal) in it", ""),
    ],
)
def test_records(text: str, address: str) -> None:
    assert fatal(text) == address


def test_a_fatal_record_of_the_gpu_or_a_port_above_it() -> None:
    for where in (ADDRESSES[2], ADDRESSES[2].replace("0000:", "0001:")):
        record = f"nvidia {where}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)"
        (finding,) = judged(node(), log(record))
        assert (finding.level, finding.device, finding.service) == (Level.DRAIN, ADDRESSES[2], Service.DRAIN_AFTER_JOB)
        assert finding.evidence_id == f"{BOOT}:100"
    elsewhere = "nvme 0000:05:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)"
    assert judged(node(), log(elsewhere)) == []


def test_a_fatal_record_is_forgotten_and_is_of_this_boot() -> None:
    record = f"nvidia {ADDRESSES[2]}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)"
    assert judged(node(), log(record, seconds=1.0)) == []
    assert judged(node(), log(record, boot="another")) == []


def test_record_and_counter_are_one_finding() -> None:
    record = f"nvidia {ADDRESSES[2]}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)"
    both = replace(past("aer.fatal", (7000.0, 0.0)), records=log(record).records)
    assert len(judged(node(gpu(2, aer=replace(NO_ERRORS, fatal=1))), both)) == 1


def test_unreadable() -> None:
    assert judged(node(gpu(2, aer=None, port_aer=None))) == []  # a kernel without AER: NVML counts replays
    assert judged(node(gpu(2, pcie=replace(GEN5, replays=NA)))) == []  # and the other way round
    (neither,) = judged(node(gpu(2, pcie=replace(GEN5, replays=NA), aer=None, port_aer=None)))
    assert neither.level is Level.UNKNOWN
    assert judged(node(gpu(2, pcie=replace(GEN5, replays=UNSUPPORTED), aer=None, port_aer=None))) == []
    (broken,) = judged(node(gpu(2, aer=AerCounts(correctable=0, nonfatal=NA, fatal=0))))
    assert broken.level is Level.UNKNOWN and "AER counts of GPU" in broken.summary
    (port,) = judged(node(gpu(2, port_aer=NA)))
    assert port.level is Level.UNKNOWN and "port above" in port.summary
    assert judged(node(gpu(2, lost=True, pcie=NA, aer=NA))) == []


def test_only_fatal_records_are_heeded() -> None:
    wakes = {"pcie_errors": check.wakes_on, "xid": ("NVRM: Xid",)}
    corrected = "pcieport 0000:00:07.0: AER: Corrected error received: 0000:52:00.0"
    assert list(heeded_by(corrected, wakes)) == []
    assert list(heeded_by("pcieport 0000:00:07.0: AER: Uncorrected (Fatal) error received: 52:00.0", wakes)) == ["pcie_errors"]
    assert list(heeded_by("NVRM: Xid (PCI:0000:1b:00): 79, x", wakes)) == ["xid"]


def test_it_observes() -> None:
    assert check.mode is Mode.OBSERVE and check.samples is not None
    assert ("1651223002", "port_aer.fatal", 0.0) in set(check.samples(node()))
