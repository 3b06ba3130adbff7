"""NVMe controllers, and requests that failed on local disks."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import checks
from fairlead.model.finding import Level
from fairlead.model.host_facts import NvmeController
from tests.checks.hosts import NOW, host_node, judged, levels
from tests.checks.nodes import NA, log

IO = "I/O error, dev nvme0n1, sector 123456 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2"


@pytest.mark.parametrize(
    ("texts", "level", "device"),
    [
        ([IO], Level.WARN, "nvme0n1"),
        ([IO] * 10, Level.DRAIN, "nvme0n1"),
        (["blk_update_request: I/O error, dev sda, sector 5 op 0x0:(READ) flags 0x0"], Level.WARN, "sda"),
        (["critical medium error, dev sdb, sector 5 op 0x0:(READ) flags 0x0"], Level.WARN, "sdb"),
        (["Buffer I/O error on dev dm-0, logical block 0, async page read"], Level.WARN, "dm-0"),
        (["nvme nvme0: controller is down; will reset: CSTS=0x3, PCI_STATUS=0x10"], Level.WARN, "nvme0"),
        (["nvme nvme0: I/O 528 QID 10 timeout, reset controller"], Level.WARN, "nvme0"),
        (["nvme nvme0: I/O tag 12 (1234) opcode 0x2 (I/O Cmd) QID 10 timeout, aborting"], Level.WARN, "nvme0"),
        (["nvme nvme0: Removing after probe failure status: -19"], Level.DRAIN, "nvme0"),
        (["nvme nvme0: Disabling device after reset failure: -19"], Level.DRAIN, "nvme0"),
        (["md/raid1:md1: Disk failure on sda1, disabling device."], Level.WARN, "md1 (sda1)"),
        (["nvme nvme0: 64/0/0 default/read/poll queues"], None, ""),  # at every boot
        (["nvme nvme0: pci function 0000:2a:00.0"], None, ""),
        (["I/O error, dev loop3, sector 5 op 0x0:(READ) flags 0x0"] * 20, None, ""),  # a user's image
        (["critical target error, dev nvme0n1, sector 2048 op 0x9:(WRITE_ZEROES) flags 0x0"] * 20, None, ""),  # by mkfs
        (["I/O error, dev sda, sector 2048 op 0x3:(DISCARD) flags 0x800 phys_seg 1"] * 20, None, ""),  # by fstrim
        (["I/O error, dev sr0, sector 5 op 0x0:(READ) flags 0x0"], None, ""),  # an empty drive
        (["Buffer I/O error on dev nbd0, logical block 0, async page read"], None, ""),
    ],
)
def test_disk_records(texts: list[str], level: Level | None, device: str) -> None:
    assert levels(judged("disks", host_node(), log(*texts))) == ([(level, device)] if level is not None else [])
    assert all(checks.load()["disks"].heeds(text) is bool(device) for text in texts)  # type: ignore[misc]
    lasting = ("Removing", "Disabling", "md/raid")  # what is gone stays gone
    old = judged("disks", host_node(), log(*texts, seconds=NOW - 90000))
    assert bool(old) is any(word in texts[0] for word in lasting)


@pytest.mark.parametrize(
    ("state", "level"),
    [("live", None), ("resetting", Level.WARN), ("dead", Level.DRAIN), ("deleting (no IO)", Level.DRAIN), (NA, Level.UNKNOWN)],
)
def test_nvme_states(state: Any, level: Level | None) -> None:
    node = host_node(nvme=(NvmeController(name="nvme0", pci="0000:2a:00.0", state=state),))
    assert levels(judged("disks", node, nvme_expected=1)) == ([(level, "nvme0")] if level is not None else [])
    (gone,) = [f for f in judged("disks", node, nvme_expected=2) if not f.device]
    assert gone.summary == "1 of 2 NVMe controllers are there: check_hardware"


HAS = frozenset({"sda", "sda1", "nvme0n1", "md0", "mc0"})


def test_an_nvme_that_never_came_up_is_found() -> None:
    """The driver names the device with its record (host.kmsg asks for it): no list is needed that it may never have been on."""
    (found,) = judged("disks", host_node(devices=HAS), log("nvme nvme7: Removing after probe failure status: -19"))
    assert (found.level, found.device) == (Level.DRAIN, "nvme7")


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
