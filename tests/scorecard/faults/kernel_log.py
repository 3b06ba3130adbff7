"""What the NVIDIA driver says in the kernel log. Line forms are those of real logs and of the driver's own source.

NVIDIA Xid catalogue: docs.nvidia.com/deploy/xid-errors; Fabric Manager guide, appendix of SXids:
docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide; nvswitch and Xid print forms: NVIDIA/open-gpu-kernel-modules.
"""

from __future__ import annotations

from tests.scorecard.entry import Document, Elapse, Ended, Fault, Job, Kernel, Sweeps

CATALOGUE = "NVIDIA Xid catalogue (docs.nvidia.com/deploy/xid-errors)"
SXIDS = "NVIDIA Fabric Manager user guide, SXid errors"
SOURCE = "NVIDIA/open-gpu-kernel-modules"


def xid(gpu: int, text: str, *, facility: int = 0, mig: str = "", times: int = 1, ago: float = 0.0) -> Kernel:
    return Kernel(f"NVRM: Xid (PCI:{{gpu{gpu}:bus}}{mig}): {text}", facility=facility, times=times, seconds_ago=ago)


def sxid(text: str, switch: int = 0) -> Kernel:
    return Kernel(f"nvidia-nvswitch{switch}: SXid (PCI:0000:0{switch + 5}:00.0): {text}")


def row(name: str, title: str, fault: tuple, twin: tuple, twin_words: str, *, level: str = "drain", source: str = CATALOGUE,
        said: str = "", says: str = "") -> Fault:  # fmt: skip
    return Fault(name, title, "xid", level, fault, twin, twin_words, source, said, says=says)


OFF_BUS = "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
GSP = "119, pid=1240590, name=python3, Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20803032 0x58c)."
DBE = "48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer."
FAULTY = "31, pid={pid}, name=python3, Ch 00000008, intr 10000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f12_34000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"

FAULTS = (
    row("xid-79", "Xid 79: fallen off the bus", (xid(0, OFF_BUS),), (xid(0, OFF_BUS, facility=1),),
        "the same line written to /dev/kmsg by a program (facility user): not the kernel's word",
        source=f"{CATALOGUE}; Documentation/ABI/testing/dev-kmsg", says="Xid 79"),
    row("xid-48", "Xid 48: double bit error", (xid(1, DBE),), (xid(1, DBE.replace("48", "92").replace("An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer.", "High single-bit ECC error rate")),),
        "Xid 92: corrected single bit errors, which NVIDIA says to ignore", says="Xid 48", said="Xid 92"),
    row("xid-64", "Xid 64: a row could not be remapped", (xid(2, "64, pid='<unknown>', name=<unknown>, Row Remapper: Failed to remap row"),),
        (xid(2, "160, pid='<unknown>', name=<unknown>, NV_CHANNEL_REPAIR"),), "Xid 160: a repair that succeeded", says="Xid 64", said="Xid 160"),
    row("xid-74", "Xid 74: NVLink error", (xid(3, "74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 7(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"),),
        (xid(3, "137, pid=77, name=python3, NVLink FLA privilege error on link 7"),), "Xid 137: a job's illegal access over NVLink",
        said="Xid 137", says="Xid 74"),
    row("xid-95", "Xid 95: uncontained memory error", (xid(4, "95, pid=7194, name=python3, Uncontained: FBHUB. RST: Yes, D-RST: No"),),
        (xid(4, "43, pid=7194, name=python3, Ch 00000008"),), "Xid 43: a process stopped its own channel", said="Xid 43",
        says="Xid 95"),
    row("xid-119", "Xid 119: GSP does not answer", (xid(5, GSP),), (xid(5, GSP.replace("119, ", "31, ")),),
        "Xid 31 with the same words: the job's own fault", said="Xid 31", says="Xid 119"),
    row("xid-120", "Xid 120: GSP error", (xid(6, "120, pid='<unknown>', name=<unknown>, GSP task 0x5 exception"),),
        (xid(6, "120, pid='<unknown>', name=<unknown>, GSP task 0x5 exception", facility=3),),
        "the same words from a daemon (facility daemon)", says="Xid 120"),
    row("xid-79-storm", "Xid 79: five hundred lines", (xid(7, OFF_BUS, times=500),),
        (xid(7, "13, pid=77, name=python3, Graphics Exception: ESR 0x504730=0x10009", times=500),),
        "five hundred lines of a job's own Xid 13", said="Xid 13", says="Xid 79"),
    row("xid-45-cause", "Xid 45 that names its cause 145",
        (xid(0, "45, pid=1818989, name=python3, Ch 00000002 caused by previous Xid 48"),),
        (xid(0, "45, pid=1818989, name=python3, Ch 00000002"),),
        "Xid 45 alone: a job was killed", source=f"{CATALOGUE}; {SOURCE} issue 1150", says="Xid 48"),
    row("xid-94-busy", "Xid 94 and the job has ended",
        (Job(11), xid(1, "94, pid=7194, name=python3, Contained: SM (0x1). RST: No, D-RST: No"), Sweeps(1), Ended(11)),
        (Job(11), xid(1, "94, pid=7194, name=python3, Contained: SM (0x1). RST: No, D-RST: No")),
        "while the job that was hit still runs: the node is left to it", said="Xid 94", says="Xid 94"),
    row("xid-63-busy", "Xid 63 (row to be remapped) and the job has ended",
        (Job(12), xid(2, "63, pid='<unknown>', name=<unknown>, Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate."), Sweeps(1), Ended(12)),
        (Job(12), xid(2, "63, pid='<unknown>', name=<unknown>, Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate.")),
        "while a job runs: it may end first", said="Xid 63", says="Xid 63"),
    row("xid-mig", "Xid 95 of a MIG instance", (xid(3, "95, pid=7, name=a, b, Uncontained: SM", mig=" GPU-I:05 GPU-CI:01"),),
        (xid(3, "13, pid=7, name=a, b, Graphics Exception: ESR 0x504730=0x10009", mig=" GPU-I:05 GPU-CI:01"),),
        "an instance's job made an illegal access", said="Xid 13", says="Xid 95"),
    row("xid-154-reset", "Xid 154: the driver wants a GPU reset",
        (xid(4, "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),),
        (xid(4, "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),),
        "the driver takes its advice back", says="Xid 154"),
    row("xid-154-r610", "Xid 154 in the words of driver r610",
        (xid(5, "154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)"),),
        (xid(5, "154, GPU recovery action changed from 0x2 (OS Reboot) to 0x0 (None)"),),
        "taken back, in the same words", source=f"{SOURCE}, r610", says="Xid 154"),
    row("xid-149", "Xid 149: fatal NVLink 5 event",
        (xid(6, "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x0215c5c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"),),
        (xid(6, "149, NETIR_LINK_EVT  Nonfatal XC0 i0 Link 14 (0x00000000 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"),),
        "the same event, marked Nonfatal", said="Xid 149", says="Xid 149"),
    row("xid-163", "Xid 163: power smoothing disengaged", (xid(7, "163, pid='<unknown>', name=<unknown>, off"),),
        (xid(7, "163, pid='<unknown>', name=<unknown>, off"), xid(7, "162, pid='<unknown>', name=<unknown>, on")),
        "163 and then 162, which takes it back", level="warn", says="Xid 163"),
    row("xid-three-users", "Xid 31 of three users on one GPU",
        tuple(step for n in (1, 2, 3) for step in (Job(20 + n, 2000 + n, "0-7"), Sweeps(1), xid(0, FAULTY.format(pid=n)), Sweeps(1), Ended(20 + n), Sweeps(2))),
        tuple(step for n in (1, 2, 3) for step in (Job(30 + n, 2000, "0-7"), Sweeps(1), xid(0, FAULTY.format(pid=n)), Sweeps(1), Ended(30 + n), Sweeps(2))),
        "three times by one user: his program", level="warn", said="Xid 31", says="suspect"),
    row("xid-own-policy", "Xid 109, which the site has made a drain",
        (Document({"checks": {"xid": {"services": {"109": "drain_now"}}}}), xid(1, "109, pid=77, name=python3, Ch 00000008, errorString CTX SWITCH TIMEOUT")),
        (Document({"checks": {"xid": {"services": {"109": "keep"}}}}), xid(1, "109, pid=77, name=python3, Ch 00000008, errorString CTX SWITCH TIMEOUT")),
        "the same line at a site that keeps it", said="Xid 109", says="Xid 109"),
    row("sxid-fatal", "SXid 20034, fatal", (sxid("20034, Fatal, Link 62 LTSSM Fault Up"),),
        (sxid("20009, Non-fatal, Link 04 RX Short Error Rate"),), "an SXid marked Non-fatal", source=SXIDS, said="SXid 20009",
        says="SXid 20034"),
    row("sxid-12028", "SXid 12028, fatal", (sxid("12028, Fatal, Link 61 egress non-posted PRIV error (First)", 2),),
        (sxid("12028, Non-fatal, Link 61 egress non-posted PRIV error (First)", 2),), "the same, marked Non-fatal", source=SXIDS,
        said="SXid 12028", says="SXid 12028"),
    row("off-bus-no-xid", "fallen off the bus without an Xid", (Kernel("NVRM: GPU {gpu2}: GPU has fallen off the bus."),),
        (Kernel("NVRM: GPU at PCI:{gpu2:bus}: GPU-509665ad-b600-ac93-3616-d754b23d636d"),),
        "the line that names a GPU before its Xid", source="NVIDIA/NVSentinel issue 155", says="fallen off"),
    row("off-bus-three-lines", "fallen off the bus in three records",
        (Kernel("NVRM: The NVIDIA GPU {gpu3}"), Kernel("NVRM: (PCI ID: 10de:2330) installed in this system has"),
         Kernel("NVRM: fallen off the bus and is not responding to commands.")),
        (Kernel("NVRM: The NVIDIA GPU {gpu3}"), Kernel("NVRM: (PCI ID: 10de:2330) installed in this system is"),
         Kernel("NVRM: not supported by open")),
        "the same three records with another end: a board that the driver does not support",
        source="NVIDIA/NVSentinel issue 155; nv-pci.c", says="fallen off"),
    row("xid-13-forgotten", "Xid 79 two hours ago", (xid(4, OFF_BUS), Sweeps(2), Elapse(7200)),
        (xid(4, "13, pid=77, name=python3, Graphics Exception: ESR 0x504730=0x10009"), Sweeps(2), Elapse(7200)),
        "a job's Xid 13 two hours ago", says="Xid 79"),
)  # fmt: skip
