"""KVM where the image's kernel boots under it, else QEMU's own emulation (TCG), which is slower and works everywhere.

A machine may open /dev/kvm and still not boot a stock kernel under it. So the build of an image boots the kernel once under KVM,
and the answer lies beside the image. ``FAIRLEAD_VM_ACCEL=kvm|tcg`` overrides the answer.

A KVM without VT-x or AMD-V, as some virtual machines offer it, runs only kernels that are made for it. It interprets each
instruction of another kernel, which is slower than TCG, and its interpreter does not know them all. So such a KVM is not tried
(docs/decisions/0051-kvm-needs-vt-x-or-amd-v.md).
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

from tests.lab import linux
from tests.lab.roots import LabError, say
from tests.vm.emulator import qemu
from tests.vm.qemu import MEMORY_MIB, PROCESSOR

KVM = Path("/dev/kvm")
CPUINFO = Path("/proc/cpuinfo")
CHOICES = ("kvm", "tcg")
#: A kernel that boots under KVM is there after two or three seconds.
PROBE_SECONDS = 30
#: The kernel prints it when it starts the initramfs's program. Source: init/main.c, run_init_process.
STARTED = "Run /init as init process"


def chosen(folder: Path) -> str:
    """Return the accelerator for the image in ``folder``. Raises LabError if the environment names an unknown one."""
    if wanted := os.environ.get("FAIRLEAD_VM_ACCEL"):
        if wanted not in CHOICES:
            raise LabError(f"FAIRLEAD_VM_ACCEL={wanted}: write kvm or tcg")
        return wanted
    found = (folder / "accelerator").read_text().strip() if (folder / "accelerator").is_file() else "tcg"
    return found if KVM.exists() else "tcg"


def choose(folder: Path) -> None:
    """Boot the kernel of the image in ``folder`` under KVM and note whether that works. Writes nothing to its disk."""
    against = obstacle(folder)
    (folder / "accelerator").write_text("tcg\n" if against else "kvm\n")
    say(f"  QEMU emulates the processor: {against}" if against else "  the kernel boots under KVM")


def obstacle(folder: Path, program: str = "") -> str:
    """Return in a few words why the kernel of the image in ``folder`` does not boot under KVM; '' if it does. ``program`` is
    another QEMU than the one of tests/vm/emulator.py."""
    if not KVM.exists():
        return f"there is no {KVM}; load kvm_intel or kvm_amd"
    if not re.search(r"^flags\s*:.*\b(vmx|svm)\b", CPUINFO.read_text(), re.MULTILINE):
        return f"{KVM} is there, but the processor has neither VT-x nor AMD-V (vmx or svm in {CPUINFO})"
    return _refusal(folder, program or qemu())


def _refusal(folder: Path, program: str) -> str:
    """Boot the kernel until its first program, and return what stopped it; '' if nothing did."""
    serial, log = folder / "probe.log", folder / "probe-qemu.log"
    serial.unlink(missing_ok=True)
    words = [program, "-machine", "q35", "-cpu", PROCESSOR, "-accel", "kvm", "-smp", "2", "-m", f"{MEMORY_MIB}M"]
    words += ["-nodefaults", "-display", "none", "-serial", f"file:{serial}", "-kernel", str(folder / "vmlinuz")]
    words += ["-initrd", str(folder / "initrd.img"), "-append", "console=ttyS0 loglevel=7"]
    with (
        open(log, "wb") as said,
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, preexec_fn=linux.die_with_parent) as qemu,
    ):
        end = time.monotonic() + PROBE_SECONDS
        try:
            while time.monotonic() < end:
                ended = qemu.poll() is not None
                if STARTED in _text(serial):
                    return ""
                # After an instruction that KVM cannot run, QEMU says so, stops the guest and stays.
                if ended or "KVM internal error" in _text(log):
                    break
                time.sleep(0.2)
        finally:
            qemu.kill()
    complaint = next((line for line in _text(log).splitlines() if line.strip()), "")
    printed = (_text(serial).strip().splitlines() or ["nothing"])[-1]
    return f"under KVM the kernel did not reach its first program in {PROBE_SECONDS} s; " + (
        f"QEMU said: {complaint}" if complaint else f"its console said: {printed}"
    )


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""
