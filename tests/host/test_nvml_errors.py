"""Errors of GPUs from the simulated library through the worker to the checks that name them, all injected at run time."""

from __future__ import annotations

from fairlead import checks, config
from fairlead.host.gather import gather
from fairlead.host.gpu import gpus
from fairlead.host.nvml import Worker
from fairlead.host.root import Root
from fairlead.judge import reads
from fairlead.model.check_definition import Past
from fairlead.model.device import gpu_cards_of, readable_fields
from fairlead.model.facts import Gpu, Missing, Node, NvLink
from fairlead.model.finding import Finding, Level
from tests.lab.faults import Faults
from tests.lab.trees import MACHINES

NOT_SUPPORTED, CORRUPTED_INFOROM, RESET_REQUIRED, UNKNOWN = 3, 14, 16, 999
DOCUMENT = config.profile_document("n1", "hgx-h100")


def sweep() -> Node:
    """By a worker of its own: it reads everything at its first sweep."""
    worker = Worker(deadline_seconds=20)
    try:
        result = worker.sweep()
    finally:
        worker.close()
    assert isinstance(result.raw, dict), result
    return gather(Root(str(MACHINES / "hgx-h100.tuned")), result.raw, unsupported=DOCUMENT.unsupported, reads=reads(DOCUMENT))


def judged(machine: Node, past: Past) -> list[Finding]:
    """What is found of the GPUs (what else a machine has was not read)."""
    assert isinstance(machine.gpus, tuple)
    addresses = {g.pci for g in machine.gpus}
    found = (f for name, c in checks.load().items() for f in c.findings(machine, past, DOCUMENT.checks[name]))
    return [f for f in found if f.device in addresses]


def test_each_fault_is_named_and_nothing_else(faults: Faults) -> None:
    healthy = sweep()
    past = Past(available=True, readable=readable_fields(healthy), gpu_cards=gpu_cards_of(healthy))
    assert judged(healthy, past) == []
    faults.set(0, "nvlink.3.active", 0)
    faults.set(1, "inforom_valid", {"error": CORRUPTED_INFOROM})
    faults.set(2, "mig_mode.pending", 1)
    faults.set(3, "remap", {"error": NOT_SUPPORTED})  # as before Ampere
    for part in ("corrected", "uncorrected", "pending", "failed", "histogram.0"):
        faults.set(3, f"remap.{part}", {"error": NOT_SUPPORTED})
    for part, value in (("single_bit", 1), ("double_bit", 2), ("pending", 1)):
        faults.set(3, f"retired_pages.{part}", value)
    faults.set(4, "serial", "1650000000000")
    faults.set(4, "uuid", "GPU-00000000-1111-4222-8333-444444444444")
    faults.error(5, "nvmlDeviceGetPersistenceMode", RESET_REQUIRED)
    faults.set(6, "recovery_action", 1)
    faults.error(7, "nvmlDeviceGetPerformanceState", NOT_SUPPORTED)
    sick = sweep()
    assert isinstance(sick.gpus, tuple)
    found = {(sick.gpus[n].pci, f.check): f for f in judged(sick, past) for n in range(8) if f.device == sick.gpus[n].pci}
    expected = {
        (0, "nvlink"): Level.DRAIN,
        (1, "inforom"): Level.DRAIN,
        (2, "mig_mode"): Level.WARN,
        (3, "retired_pages"): Level.DRAIN,
        (3, "row_remap"): Level.DRAIN,  # could be read yesterday
        (4, "gpu_identity"): Level.WARN,
        (5, "gpu_readings"): Level.DRAIN,
        (6, "xid"): Level.DRAIN,
        (7, "gpu_readings"): Level.UNKNOWN,
    }
    assert {key: f.level for key, f in found.items()} == {(sick.gpus[n].pci, c): level for (n, c), level in expected.items()}


def test_an_answer_that_says_never_counts_once_it_is_given_twice(faults: Faults) -> None:
    worker = Worker(deadline_seconds=20)

    def third() -> Gpu:
        found = gpus(worker.sweep().raw)
        assert isinstance(found, tuple)
        return found[3]

    try:
        third()
        faults.error(3, "nvmlDeviceGetRemappedRows", NOT_SUPPORTED)
        faults.error(3, "nvmlDeviceGetNvLinkState", NOT_SUPPORTED)
        faults.set(3, "ecc.volatile_uncorrected", {"error": NOT_SUPPORTED})
        once = third()
        faults.error(3, "nvmlDeviceGetRemappedRows", 0)
        faults.error(3, "nvmlDeviceGetNvLinkState", 0)
        faults.set(3, "ecc.volatile_uncorrected", 0)
        again = third()
    finally:
        worker.close()
    assert isinstance(once.remap, Missing) and isinstance(once.ecc.volatile_uncorrected, Missing)  # type: ignore[union-attr]
    assert not isinstance(again.remap, Missing) and again.ecc.volatile_uncorrected == 0  # type: ignore[union-attr]
    assert isinstance(again.nvlinks, tuple) and len(again.nvlinks) == 18


def test_nvlink_5_counters_are_read_where_the_older_are_not_there(faults: Faults) -> None:
    for link in range(18):
        for name in ("crc_errors", "replay_errors", "recovery_errors"):
            faults.set(0, f"nvlink.{link}.{name}", {"error": NOT_SUPPORTED})
        for name in ("malformed_packets", "receive_errors", "recoveries_failed", "recoveries", "effective_errors"):
            faults.set(0, f"nvlink.{link}.{name}", 7 if (link, name) == (5, "recoveries") else 0)
    machine = sweep()
    assert isinstance(machine.gpus, tuple) and isinstance(machine.gpus[0].nvlinks, tuple)
    assert [link.recoveries for link in machine.gpus[0].nvlinks] == [7 if n == 5 else 0 for n in range(18)]
    assert [f for f in judged(machine, Past(available=True)) if f.check == "nvlink"] == []


def links_of(machine: Node, gpu: int) -> tuple[NvLink, ...]:
    assert isinstance(machine.gpus, tuple)
    links = machine.gpus[gpu].nvlinks
    assert isinstance(links, tuple)
    return links


def test_bit_error_rates_of_nvlink_5_are_read_where_they_are(faults: Faults) -> None:
    """nvml.h packs a rate: bits 8 to 11 are the mantissa, bits 0 to 7 the exponent. 4095 is the least, for a link without errors.
    A GPU without the fields has no value, and never 0."""
    for link in range(18):
        faults.set(0, f"nvlink.{link}.effective_ber_code", 3 << 8 | 14 if link == 5 else 4095)
        faults.set(0, f"nvlink.{link}.symbol_ber_code", {"error": UNKNOWN} if link == 5 else 0)
    machine = sweep()
    links = links_of(machine, 0)
    assert [link.effective_ber for link in links] == [3e-14 if n == 5 else 15e-255 for n in range(18)]
    assert all(isinstance(link.symbol_ber, Missing) for link in links)
    assert "UNKNOWN" in links[5].symbol_ber.detail and "no rate" in links[4].symbol_ber.detail  # type: ignore[union-attr]
    for gpu in range(1, 8):
        assert all(isinstance(link.effective_ber, Missing) for link in links_of(machine, gpu))
    assert [f for f in judged(machine, Past(available=True)) if f.check == "nvlink"] == []


def test_bit_error_rates_come_and_go_with_the_driver(faults: Faults) -> None:
    """A GPU without them has no such key in nvml.json, so that a snapshot of an older GPU is as before."""
    worker = Worker(deadline_seconds=20)
    try:
        assert isinstance(worker.sweep().raw, dict)
        faults.set(2, "nvlink.0.effective_ber_code", 4095)
        first = worker.sweep().raw
    finally:
        worker.close()
    assert isinstance(first, dict)
    assert all("effective_ber_code" not in link for gpu in first["gpus"] for link in gpu["nvlink"]), "asked again in ten minutes"
