"""What is fuzzed: every parser of text that fairlead did not write. A target takes bytes, and raises on what must not be.

Used by hypothesis and with hostile lengths in `make test` (test_targets.py), by atheris in `make test-all` (test_atheris.py).
"""

from __future__ import annotations

from collections.abc import Callable

from fairlead.errors import DataError, FairleadError
from fairlead.host import kmsg
from fairlead.host.job_records import GPUS_MAX, gpu_list
from fairlead.model.cpulist import CPUS_MAX, format_cpulist, parse_cpulist, parse_cpumask
from fairlead.model.verdict import parse_line
from fairlead.slurm.node_groups import parse_topology
from fairlead.slurm.scontrol import parse_jobs, parse_nodes
from fairlead.xid import nvlink5, parse, read
from fairlead.xid.decode import decode
from fairlead.xid.line import XidLine, address
from fairlead.xid.log_file import message
from fairlead.xid.meaning import meaning
from fairlead.xid.versions import loaded, parse_version

MARK = "@00112233445566778899aabb@"
BLAMES = {"application", "gpu", "node", "fabric", "driver"}


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _sound(line: XidLine) -> None:
    assert line.code >= 0 and (line.pci == "" or address(line.pci) == line.pci)
    for driver in ("", "550.90.07", "570.172.08", "610.10.01"):
        means = meaning(line, driver)
        assert means.blames in BLAMES and means.words.isprintable()
    if line.registers is not None:
        assert line.fatal is not None and line.code in nvlink5.CODES


def xid_line(data: bytes) -> None:
    """One kernel record."""
    text = text_of(data)
    for prefix in (
        "",
        "NVRM: Xid (PCI:0000:3b:00): ",
        "NVRM: Xid (PCI:0000:3b:00): 145, pid=1, name=",
        "nvidia-nvswitch0: SXid ",
    ):
        line = parse(prefix + text)
        if line is not None:
            _sound(line)
    loaded(f"NVRM: loading NVIDIA UNIX {text}")
    parse_version(text)


def xid_log(data: bytes) -> None:
    """A whole log of any form: at most one object a line, in order."""
    texts = [message(line) for line in text_of(data).split("\n")]
    found = list(decode(texts))
    assert [r.line for r in found] == sorted({r.line for r in found})
    assert all(1 <= r.line <= len(texts) and r.blames in BLAMES for r in found)
    assert len(list(read(texts))) == len(found)


def kmsg_record(data: bytes) -> None:
    """A record of /dev/kmsg, and what the Xid parser makes of its text."""
    record = kmsg.parse(data)
    if record is not None:
        assert record.text.isprintable() and 0 <= record.priority < 8
        parse(record.text)


def scontrol_nodes(data: bytes) -> None:
    """sinfo's output, as it is and as the fields of one node."""
    text = text_of(data)
    for output in (text, text.replace("|", MARK), MARK.join(["n1", "host", text, "root", text, "main", text, ""]) + "\n"):
        try:
            nodes = parse_nodes(output, MARK)
        except FairleadError:
            continue
        for node in nodes:
            assert node.reason_time >= 0 and all(state for state in node.states)


def scontrol_jobs(data: bytes) -> None:
    """squeue's output."""
    for job in parse_jobs(text_of(data)):
        assert job.nodes >= 0 and job.id


def slurm_topology(data: bytes) -> None:
    """The switches and blocks of scontrol."""
    try:
        parse_topology(text_of(data))
    except FairleadError:
        pass


def cpulist(data: bytes) -> None:
    """The kernel's CPU lists and masks."""
    text = text_of(data)
    for read_list in (parse_cpulist, parse_cpumask):
        try:
            cpus = read_list(text)
        except ValueError:
            continue
        assert all(0 <= cpu < CPUS_MAX for cpu in cpus) and parse_cpulist(format_cpulist(cpus)) == cpus


def run_files(data: bytes) -> None:
    """What the hooks leave: GPU lists of job records, the verdict's line."""
    text = text_of(data)
    assert all(0 <= gpu < GPUS_MAX for gpu in gpu_list(text))
    try:
        parse_line(text)
    except DataError:
        pass


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (xid_line, xid_log, kmsg_record, scontrol_nodes, scontrol_jobs, slurm_topology, cpulist, run_files)
}

_XID = b"NVRM: Xid (PCI:0000:4e:00 GPU-I:05 GPU-CI:01): 94, pid=7194, name=a, b, Contained: SM (0x1). RST: No, D-RST: No"
_LOG = b"""Linux version 6.1.0
[    5.1] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.172.08  Fri May 31 09:35:42 UTC 2025
4,339,5140900,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=python3, Ch 00000008, intr 00000000. MMU Fault
kern  :warn  : 2025-02-10T16:28:06,502716+00:00 NVRM: Xid (PCI:0000:3b:00): 45, pid=7, name=x, Ch 1 caused by previous Xid 31
Aug 17 00:00:24 gpu-01 kernel: message repeated 3 times: [ NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.]
NVRM: The NVIDIA GPU 0000:b3:00.0
NVRM: (PCI ID: 10de:26b5) installed in this system has
NVRM: fallen off the bus and is not responding to commands.
nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
"""

#: Where a fuzzer starts from.
SEEDS: dict[str, tuple[bytes, ...]] = {
    "xid_line": (
        _XID,
        b"149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x0215c5c6 0x00000000 0x00000000)",
        b"a, b, RLW_RXPIPE Nonfatal XC0 i0 Link 12 (0x040980c2 0x00000008)",
        b"154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
        b"(PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        b"NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
        b"NVRM: The NVIDIA GPU 0000:b3:00.0 NVRM: (PCI ID: 10de:26b5) installed in this system has fallen off the bus",
        b"Open Kernel Module for x86_64  580.95.05  Release Build",
    ),
    "xid_log": (_LOG,),
    "kmsg_record": (b"6,339,5140900,-;NET: Registered\\x0a x", b"4,1,2,c,caller=T1;" + _XID + b"\n SUBSYSTEM=pci\n"),
    "scontrol_nodes": (b"idle+drain", b"down*", b"n1|host|idle|root|17|main*|none|\n", b"Kill task failed"),
    "scontrol_jobs": (b"7 R 2\n8 CD 1\n9 CG 1\n", b"10 PD 4"),
    "slurm_topology": (
        b"SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-4,8]\n",
        b"BlockName=b1 BlockIndex=0 Nodes=n[001-018] BlockSize=18\n",
    ),
    "cpulist": (b"0-3,8", b"00000001,000000ff", b"0-63"),
    "run_files": (b"0-3,5", b"1\tok\t100\t7\tall well\n"),
}
