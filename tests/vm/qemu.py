"""The words of QEMU's command line: a server with two sockets, eight displays that stand for GPUs, and real PCI Express ports.

Two NUMA nodes of two CPUs each. Behind each socket are two root ports with a real ACS capability. A PCIe switch behind each root
port has two displays (bochs-display) and a network adapter (e1000e). An NVMe drive is behind a root port of its own. Nothing of
the guest reaches any network: QEMU forwards only its port 22 to 127.0.0.1.

QEMU's limits: the ports of its switches (x3130) have no ACS, its devices keep MaxReadReq at 128 bytes, and its displays have one
lane.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

#: QEMU runs each CPU of the guest in a thread. On two cores a boot takes 126 s with eight CPUs and 78 s with four. With 3 GiB the
#: kernel sometimes found only 23 of the 32 huge pages that the tests declare.
CPUS_PER_SOCKET, MEMORY_MIB = 2, 4096
#: An old processor is faster to emulate: a kernel that knows of no AVX saves fewer registers, and without ERMS it copies memory
#: eight bytes at a time. With QEMU 7.2 a boot took 75 s with the processor `max`, and 47 s with this one and the kernel's TSC.
#: Without the flag of a hypervisor: fairlead would rightly refuse what makes no sense in a virtual machine.
PROCESSOR = "Nehalem,hypervisor=off"


class Direct(Struct, frozen=True):
    """A kernel that QEMU boots itself, without the disk's boot loader, and the words of its command line."""

    kernel: Path
    initrd: Path
    words: str


def arguments(
    disk: Path, port: int, serial: Path, accelerator: str, *, direct: Direct | None = None, writable: bool = False
) -> list[str]:
    """Return QEMU's words after its name. ``port`` on 127.0.0.1 leads to the guest's sshd, and ``serial`` gets its console.

    Without ``writable`` QEMU keeps what the guest writes in a file that has no name any more, so it ends with QEMU.
    """
    half = MEMORY_MIB // 2
    words = [
        "-machine",
        "q35,kernel-irqchip=split",
        "-cpu",
        PROCESSOR,
        "-accel",
        "tcg,thread=multi" if accelerator == "tcg" else accelerator,
    ]
    words += ["-smp", f"{2 * CPUS_PER_SOCKET},sockets=2,cores={CPUS_PER_SOCKET},threads=1", "-m", f"{MEMORY_MIB}M"]
    # The kernel uses it with intel_iommu=on, and then sets ACS bits itself.
    words += ["-device", "intel-iommu,intremap=on"]
    words += ["-smbios", "type=1,manufacturer=Example,product=Server"]
    for node in (0, 1):
        words += ["-object", f"memory-backend-ram,id=m{node},size={half}M"]
        cpus = f"{node * CPUS_PER_SOCKET}-{(node + 1) * CPUS_PER_SOCKET - 1}"
        words += ["-numa", f"node,nodeid={node},memdev=m{node},cpus={cpus}"]
    words += ["-numa", "dist,src=0,dst=1,val=21", "-nodefaults", "-display", "none", "-serial", f"file:{serial}"]
    overlay = "off" if writable else "on"
    words += ["-drive", f"file={disk},if=none,id=d0,format=raw,cache=unsafe,discard=unmap,snapshot={overlay}"]
    words += ["-device", "virtio-blk-pci,drive=d0,bus=pcie.0,bootindex=1", "-device", "virtio-rng-pci,bus=pcie.0"]
    words += ["-netdev", f"user,id=n0,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22"]
    words += ["-device", "virtio-net-pci,netdev=n0,romfile=,bus=pcie.0", *_hardware()]
    if direct:
        words += ["-kernel", str(direct.kernel), "-initrd", str(direct.initrd), "-append", direct.words]
    return words


def _hardware() -> list[str]:
    """Return the devices of both sockets."""
    devices = []
    chassis = 0
    for socket in (0, 1):
        devices.append(f"pxb-pcie,id=pxb{socket},bus=pcie.0,bus_nr={32 + 96 * socket},numa_node={socket}")
        for port in (0, 1):
            here = f"{socket}{port}"
            chassis += 1
            devices.append(f"pcie-root-port,id=rp{here},bus=pxb{socket},chassis={chassis},slot={chassis},x-speed=16,x-width=16")
            devices.append(f"x3130-upstream,id=up{here},bus=rp{here}")
            for slot in (0, 1, 2):
                chassis += 1
                devices.append(f"xio3130-downstream,id=dn{here}{slot},bus=up{here},chassis={chassis},slot={slot}")
                device = "e1000e,romfile=" if slot == 2 else "bochs-display,vgamem=4M"
                devices.append(f"{device},bus=dn{here}{slot}")
        chassis += 1
        devices.append(f"pcie-root-port,id=rpn{socket},bus=pxb{socket},chassis={chassis},slot={chassis},x-speed=16,x-width=4")
        devices.append(f"nvme,bus=rpn{socket},serial=n{socket}")
    return [word for device in devices for word in ("-device", device)]
