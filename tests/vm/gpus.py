"""The simulated GPUs of a guest: the NVML library of the lab, with the PCI addresses that the guest's displays have."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tempfile
from pathlib import Path

from tests.lab import hardware, trees
from tests.lab.nvml.library import NAME, write_conf
from tests.vm.guest import Guest
from tests.vm.image import HERE, Image

#: The displays that stand for GPUs: QEMU's bochs-display. fake-gpus hides its vendor and device.
DISPLAYS = "lspci -Dn -d 1234:1111"
TREE = "hgx-h100"
#: An upload goes to /root/in, and from there to its final paths.
INSTALL = f"""
set -e
mkdir -p /root/in /opt/sim /etc/fairlead-sim
tar -C /root/in -x
cp /root/in/fakegpu.ko /opt/sim/
install -m 755 /root/in/fake-gpus /opt/sim/
cp /root/in/fake-gpus.service /etc/systemd/system/
cp /root/in/nvml.conf /etc/fairlead-sim/
install -m 755 /root/in/{NAME} /usr/lib/x86_64-linux-gnu/
ldconfig
systemctl enable --now fake-gpus
systemctl restart slurmctld slurmd
"""


def install(guest: Guest, image: Image, scratch: Path) -> list[str]:
    """Give the running guest its GPUs, and return their PCI addresses in the order of their minor numbers."""
    addresses = sorted(line.split()[0] for line in guest.ssh(DISPLAYS).splitlines())
    conf = configuration(addresses, scratch)
    files = [image.module, HERE / "inside/fake-gpus", HERE / "inside/fake-gpus.service", conf, hardware.simulated_nvml() / NAME]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for file in files:
            tar.add(file, file.name)
    guest.ssh(INSTALL, stdin=packed.getvalue(), timeout=300)
    return addresses


def configuration(addresses: list[str], folder: Path) -> Path:
    """Write the library's input for the GPUs of ``TREE`` with other ``addresses``, and return its path.

    The distances between GPUs follow from the tree's own sys/, so each new address becomes a link to the old device.
    """
    with tempfile.TemporaryDirectory(dir=folder) as made:
        tree = Path(made, "tree")
        shutil.copytree(trees.ensure() / TREE, tree, symlinks=True)
        nvml = json.loads((tree / "nvml.json").read_text())
        devices = tree / "sys/bus/pci/devices"
        targets = [(devices / gpu["pci"]).readlink() for gpu in nvml["gpus"]]
        for gpu in nvml["gpus"]:
            (devices / gpu["pci"]).unlink()
        for gpu, address, target in zip(nvml["gpus"], addresses, targets, strict=True):
            gpu["pci"] = address
            (devices / address).unlink(missing_ok=True)
            (devices / address).symlink_to(target)
        (tree / "nvml.json").write_text(json.dumps(nvml))
        return write_conf(tree, folder / "nvml.conf")
