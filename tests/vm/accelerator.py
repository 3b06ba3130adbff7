"""KVM where the image's kernel boots under it, else QEMU's own emulation (TCG), which is slower and works everywhere.

A machine may open /dev/kvm and still not boot a stock kernel under it. So the build of an image boots the kernel once under KVM,
and the answer lies beside the image. ``FAIRLEAD_VM_ACCEL=kvm|tcg`` overrides the answer.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from tests.lab import linux
from tests.lab.roots import LabError, say
from tests.vm.qemu import MEMORY_MIB, PROGRAM

KVM = Path("/dev/kvm")
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
    found = "kvm" if KVM.exists() and boots(folder) else "tcg"
    (folder / "accelerator").write_text(f"{found}\n")
    say(f"  the kernel boots under {'KVM' if found == 'kvm' else 'emulation only'}")


def boots(folder: Path) -> bool:
    """Say whether the kernel of the image in ``folder`` reaches its first program under KVM."""
    serial = folder / "probe.log"
    words = [PROGRAM, "-machine", "q35", "-cpu", "max", "-accel", "kvm", "-smp", "2", "-m", f"{MEMORY_MIB}M", "-nodefaults"]
    words += ["-display", "none", "-serial", f"file:{serial}", "-kernel", str(folder / "vmlinuz")]
    words += ["-initrd", str(folder / "initrd.img"), "-append", "console=ttyS0 loglevel=7"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet, preexec_fn=linux.die_with_parent) as qemu:
        end = time.monotonic() + PROBE_SECONDS
        try:
            while time.monotonic() < end and qemu.poll() is None:
                if serial.is_file() and STARTED in serial.read_text(errors="replace"):
                    return True
                time.sleep(0.2)
        finally:
            qemu.kill()
    return False
