"""Records that a person who attacks fairlead found a way with, and true ones that the defence had lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.host.kmsg import FOLLOWED, Follower, parse
from fairlead.xid.log_file import message

XID = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
LOST = "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus."


def text_of(record: str, *, flag: str = "-", device: str = "") -> str | None:
    more = f"\n DEVICE={device}" if device else ""
    found = parse(f"6,10,1000,{flag};{record}{more}\n".encode(), names_devices=True)
    return None if found is None else found.text


@pytest.mark.parametrize("text", [XID, LOST, "NVRM: Xid (PCI:0000:01:00): 43, pid=1814139, name=cuda_assert_64b, Ch 00000018"])
@pytest.mark.parametrize("flag", ["c", "-"])
def test_no_line_of_the_nvidia_driver_is_lost_for_its_flag(text: str, flag: str) -> None:
    """The driver prints everything with KERN_CONT, so /dev/kmsg calls its lines fragments."""
    assert text_of(text, flag=flag) == text
    assert message(f"4,1227,437812449,{flag};{text}") == text


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PC[5214]: segfault at 0 ip 401136 sp 7ffe error 4 in x[401000+1000]",
        "EDAC MC0: 1 UE memory read error on x",
        f"{XID},mems_allowed=0",
    ],
)
def test_other_fragments_are_dropped(text: str) -> None:
    assert text_of(text, flag="c") is None
    assert message(f"4,1227,437812449,c;{text}") == ""


def test_a_cgroup_called_like_an_xid_is_none(tmp_path: Path) -> None:
    """Another CPU printed twice while the kernel reported that memory ran out: the name of the cgroup stands alone."""
    log = tmp_path / "kmsg"
    lines = [
        "6,10,1000,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=",
        "6,11,1001,-;something else",
        f"6,12,1002,c;{XID}",
        "6,13,1003,-;something else",
        f"6,{11 + FOLLOWED},1004,c;{LOST}",
    ]
    log.write_text("".join(f"{line}\n" for line in lines))
    found = [record.text for record in Follower(str(log)).read()]
    assert XID not in found
    assert LOST in found, "what the driver says later is believed again"


@pytest.mark.parametrize(
    "text",
    [
        f"{XID} IN=veth0 OUT= TRUNCATED",
        f"{XID} IN=veth0 OUT= MAC=aa:bb:cc TRUNCATED",
        f"{XID} IN=veth0 OUT= MAC=aa:bb:cc:dd:ee:ff:88:b5 ",
        f"{XID} IN=veth0 OUT= ",
        f"{XID} IN=sit1 OUT= MAC=aa:bb TUNNEL=1.2.3.4->5.6.7.8 SRC=1.2.3.4 DST=5.6.7.8",
        "NVRM: Xid (1b:00): 79 IN=br0 OUT= MAC source = aa MAC dest = bb proto = 0x0800",
        f"{XID} IN=\x1c OUT= MAC= SRC=1.2.3.4 DST=5.6.7.8",
        "XFS (sda1): Filesystem has been shut down IN=\u2028 OUT=eth0 SRC=1.2.3.4 DST=5.6.7.8",
        f"{XID}: python: potentially unexpected fatal signal 11.",
        "EXT4-fs (md0): Remounting filesystem read-only: x: potentially unexpected fatal signal 6.",
        "EDAC MC0: 1 UE  cpuset=a on b mems_allowed=0",
        "nvme\tnvme0: Removing after probe failure status: -19",
        "nvidia\x010000:1b:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal)",
        "pcieport\x010000:00:01.0: AER: Multiple Uncorrected (Fatal) error received",
        "mlx5_core\x010000:18:00.0 eth0: Link down",
    ],
)
def test_a_way_that_was_found_is_closed(text: str) -> None:
    escaped = "".join(c if c.isprintable() else "".join(f"\\x{b:02x}" for b in c.encode()) for c in text)
    assert text_of(escaped) is None


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("EDAC MC0: 1 UE reserved error (16) on unknown memory (node:0)", ""),
        ("EDAC MC0: 1 UE Can't discover the memory rank for ch addr 0x1234 on any memory (channel:0)", ""),
        ("nvme nvme0: Removing after probe failure status: -19", "c237:0"),
        ("nvidia-nvswitch3: SXid (PCI:0000:a9:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error", ""),
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: be00000000800400", ""),
        ("{1}[Hardware Error]: event severity: fatal", ""),
    ],
)
def test_a_true_record_passes(text: str, device: str) -> None:
    assert text_of(text, device=device) == text
