"""Disks of stock Debian releases that boot in a virtual machine. Each is built once and never changed afterwards.

``image("trixie")`` returns the disk of Debian 13: its own kernel, systemd, GRUB, Slurm and munge, an sshd that takes the lab's
key, and a user ``alice``. mmdebstrap unpacks the packages into a folder, and mkfs.ext4 writes that folder into the disk. So the
build needs no loop device and no mount on the machine. The guest installs GRUB itself, at its first boot. The folder of an image
is renamed when it is complete: a build that was killed leaves nothing that looks like an image.

The folder lies below ``FAIRLEAD_LAB_DIR`` (tests/lab/roots.py), in ``vm/SUITE-HASH``. The hash changes with everything that the
image is made of.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

from msgspec import Struct

from tests.lab.roots import LabError, isolated, lab_dir, locked, munge_key, need_room, say, ssh_key
from tests.vm import accelerator, emulator
from tests.vm.guest import Guest
from tests.vm.mmdebstrap import EXCLUDED, mmdebstrap, need_mmdebstrap
from tests.vm.qemu import Direct

HERE = Path(__file__).resolve().parent
#: Suite -> the Slurm release that Debian ships in it.
SUITES = {"trixie": "24.11", "forky": "26.05"}
PACKAGES = (
    "systemd", "systemd-sysv", "udev", "dbus", "linux-image-amd64", "initramfs-tools", "grub-pc", "openssh-server", "python3",
    "python3-venv", "python3-apt", "munge", "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "pciutils",
    "apparmor", "iproute2", "procps", "kmod", "util-linux", "numactl", "irqbalance", "e2fsprogs", "systemd-timesyncd",
    "tuned",
)  # fmt: skip
DISK_BYTES, FIRST_SECTOR, SECTOR_BYTES = 5 << 30, 2048, 512
#: Free space that a build asks for before it starts: the folder, the disk, and the compiler of the kernel module.
ROOM_BYTES = 5 << 30
#: QEMU has no speculative execution, and without the kernel's mitigations against it a boot takes 61 s instead of 79 s. By itself
#: the kernel does not trust QEMU's TSC, and reads the time from an emulated device, which is slow.
KERNEL_WORDS = "quiet console=ttyS0 mitigations=off tsc=reliable"

FILES = {
    # Only the adapter that leads to the host: networkd's wait-online would wait two minutes for the others.
    "etc/systemd/network/80-vm.network": "[Match]\nDriver=virtio_net\n[Network]\nDHCP=yes\n",
    "etc/hostname": "gpu1\n",
    "etc/hosts": "127.0.0.1 localhost\n10.0.2.15 gpu1\n",
    "etc/fstab": "LABEL=root / ext4 defaults,noatime 0 1\n",
    "etc/ssh/sshd_config.d/vm.conf": "UseDNS no\nPermitRootLogin prohibit-password\n",
    "etc/default/grub.d/10-vm.cfg": (
        f'GRUB_TIMEOUT=0\nGRUB_TERMINAL=serial\nGRUB_CMDLINE_LINUX_DEFAULT="{KERNEL_WORDS}"\nGRUB_DISABLE_OS_PROBER=true\n'
    ),
    "etc/slurm/fairlead.conf": "",
    # After jobs have run, slurmctld 24.11 does not end on SIGTERM at a shutdown, and systemd would wait 90 s for it.
    "etc/systemd/system/slurmctld.service.d/vm.conf": "[Service]\nTimeoutStopSec=10\n",
    **{f"etc/slurm/{name}": (HERE / "inside" / name).read_text() for name in ("slurm.conf", "cgroup.conf", "gres.conf")},
}

SETUP = r"""
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
useradd --uid 2001 --create-home --shell /bin/bash alice
install -d -o slurm -g slurm /var/spool/slurmctld /var/log/slurm
mkdir -p /var/spool/slurmd
chown munge:munge /etc/munge/munge.key
chmod 400 /etc/munge/munge.key
systemctl --quiet enable systemd-networkd ssh munge slurmctld slurmd serial-getty@ttyS0
: > /etc/machine-id
"""

#: The guest's own GRUB. The disk is the only one of its kind there (QEMU's virtio-blk).
GRUB = "grub-install --target=i386-pc /dev/vda && update-grub"


class Image(Struct, frozen=True):
    """A finished image. ``folder`` holds it, and ``accelerator`` is the one that its kernel boots with on this machine."""

    suite: str
    folder: Path
    kernel: str
    python: str
    accelerator: str

    @property
    def disk(self) -> Path:
        """The disk. Guests write to an overlay, never to this file."""
        return self.folder / "disk.img"

    @property
    def module(self) -> Path:
        """The kernel module of tests/vm/kmod, built for the image's kernel."""
        return self.folder / "fakegpu.ko"


def recipe_hash(suite: str) -> str:
    """Return twelve hex digits that change with everything that the image of ``suite`` is made of."""
    module = [(HERE / "kmod" / name).read_text() for name in ("Makefile", "fakegpu.c")]
    recipe = json.dumps([suite, PACKAGES, EXCLUDED, DISK_BYTES, FILES, SETUP, GRUB, module, 1])
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def image_path(suite: str) -> Path:
    """Return the folder of the image of ``suite``, whether it is built or not. Raises LabError for an unknown suite."""
    if suite not in SUITES:
        raise LabError(f"no image of the release {suite!r}; run: make vm SUITE={'|'.join(SUITES)}")
    return lab_dir() / "vm" / f"{suite}-{recipe_hash(suite)}"


def image(suite: str) -> Image:
    """Return the image of ``suite``. Builds it first if it is missing, or if its disk is not what the build left.

    Raises LabError with one line if there is no room, a program is missing, or the build fails.
    """
    folder = image_path(suite)
    with locked(f"vm-{suite}"):
        if folder.is_dir() and (found := damage(folder, suite)):
            say(f"{folder}: {found}; the image is built again")
            shutil.rmtree(folder)
        if not folder.is_dir():
            _build(suite, folder)
    made = json.loads((folder / "made.json").read_text())
    return Image(suite=suite, folder=folder, kernel=made["kernel"], python=made["python"], accelerator=accelerator.chosen(folder))


def damage(folder: Path, suite: str) -> str:
    """Return what is wrong with the finished image of ``suite`` in ``folder``, or '' if it is as its build left it.

    A disk that was written to has another time of its last change; a disk that was cut or copied in part has another size.
    """
    try:
        made = json.loads((folder / "made.json").read_text())
        disk = (folder / "disk.img").stat()
        if not (folder / "fakegpu.ko").stat().st_size:
            return "fakegpu.ko is empty"
    except (OSError, ValueError) as error:
        return f"{error}"
    if made["suite"] != suite:
        return f"this is an image of {made['suite']}"
    if (disk.st_size, disk.st_mtime_ns) != (made["disk_bytes"], made["disk_mtime_ns"]):
        return "disk.img was changed since it was built"
    return ""


def _build(suite: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    for stale in folder.parent.glob(f".building-{suite}-*"):
        shutil.rmtree(stale)
    need_room(folder.parent, ROOM_BYTES)
    need_mmdebstrap()
    if shutil.which("mkfs.ext4") is None:
        raise LabError("mkfs.ext4 is not installed; run: apt-get install e2fsprogs")
    building = folder.parent / f".building-{suite}-{os.getpid()}"
    building.mkdir()
    log = lab_dir() / f"vm-{suite}.log"
    log.unlink(missing_ok=True)
    began = time.monotonic()
    say(f"building the image of {suite} (Slurm {SUITES[suite]}) in {folder}, about five minutes; log: {log}")
    try:
        root = building / "root"
        isolated(mmdebstrap(suite, root, PACKAGES), log)
        say(f"  packages unpacked after {time.monotonic() - began:.0f} s")
        _configure(root, log)
        kernel = next((root / "lib/modules").iterdir()).name
        _module(suite, kernel, building, log)
        say(f"  kernel module built after {time.monotonic() - began:.0f} s")
        write_disk(root, building / "disk.img")
        for name in ("vmlinuz", "initrd.img"):
            shutil.copyfile(root / "boot" / f"{name}-{kernel}", building / name)
        python = os.readlink(root / "usr/bin/python3").removeprefix("python")
        shutil.rmtree(root)
        accelerator.choose(building)
        _install_grub(suite, building)
        disk = (building / "disk.img").stat()
        made = {"suite": suite, "kernel": kernel, "python": python, "disk_bytes": disk.st_size, "disk_mtime_ns": disk.st_mtime_ns}
        (building / "made.json").write_text(json.dumps(made))
        building.rename(folder)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    for stale in folder.parent.glob(f"{suite}-*"):
        if stale != folder:
            shutil.rmtree(stale)  # a guest that still runs on it keeps its open file
    say(f"image of {suite} ready after {time.monotonic() - began:.0f} s")


def _configure(root: Path, log: Path) -> None:
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "etc/munge/munge.key").write_bytes(munge_key())
    (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    (root / "root/.ssh/authorized_keys").write_text(ssh_key().with_suffix(".pub").read_text())
    isolated(["chroot", str(root), "/bin/sh", "-c", SETUP], log)


def _module(suite: str, kernel: str, building: Path, log: Path) -> None:
    """Build fakegpu.ko in a root of its own, so that compiler and headers never get into the image."""
    chroot = building / "compiler"
    isolated(mmdebstrap(suite, chroot, (f"linux-headers-{kernel}", "make"), "apt"), log)
    shutil.copytree(HERE / "kmod", chroot / "kmod")
    # objtool of newer kernels reads /proc.
    make = f"mount -t proc proc {chroot}/proc && chroot {chroot} make -s -C /lib/modules/{kernel}/build M=/kmod modules"
    isolated(["sh", "-ec", make], log)
    shutil.copyfile(chroot / "kmod/fakegpu.ko", building / "fakegpu.ko")
    shutil.rmtree(chroot)


def write_disk(root: Path, disk: Path) -> None:
    """Write a disk with one bootable partition (MBR, ext4 with the label root) that holds the folder ``root``."""
    sectors = DISK_BYTES // SECTOR_BYTES
    entry = struct.pack("<B3sB3sII", 0x80, b"\xfe\xff\xff", 0x83, b"\xfe\xff\xff", FIRST_SECTOR, sectors - FIRST_SECTOR)
    with open(disk, "wb") as out:
        out.truncate(DISK_BYTES)
        out.seek(440)  # the disk's signature, two zero bytes, four entries, the mark of an MBR
        out.write(os.urandom(4) + b"\0\0" + entry + bytes(48) + b"\x55\xaa")
    offset = FIRST_SECTOR * SECTOR_BYTES
    # GRUB must be able to read it: without features that are younger than the oldest GRUB here.
    features = "^metadata_csum_seed,^orphan_file"
    command = ["mkfs.ext4", "-q", "-F", "-L", "root", "-O", features, "-E", f"offset={offset}", "-d", str(root), str(disk)]
    done = subprocess.run(
        [*command, f"{(DISK_BYTES - offset) // 1024}k"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise LabError(f"mkfs.ext4 failed with {done.returncode}: {done.stderr.strip()[-200:]}")


def _install_grub(suite: str, building: Path) -> None:
    """Boot the kernel of the image directly and let the guest install its own GRUB."""
    direct = Direct(kernel=building / "vmlinuz", initrd=building / "initrd.img", words=f"root=LABEL=root ro {KERNEL_WORDS}")
    guest = Guest(suite, building / "disk.img", accelerator.chosen(building), direct=direct, writable=True)
    with guest:
        guest.ssh(GRUB, timeout=300)
        guest.off()


def main(words: list[str]) -> int:
    """Unpack QEMU and build the image of the named release, each if it is missing. With ``--known`` only say whether there can be
    such an image, and whether the QEMU that the environment names starts."""
    names = [word for word in words if word != "--known"] or ["trixie"]
    try:
        for name in names:
            if "--known" in words:
                image_path(name)
                emulator.named()
            else:
                emulator.qemu()
                print(image(name).folder)
    except LabError as error:
        print(f"vm: {error}", file=sys.stderr)
        return 69
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
