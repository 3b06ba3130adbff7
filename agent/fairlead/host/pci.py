"""Reads PCI functions from /sys/bus/pci/devices: position in the tree, link, driver, bridge role, ACS.

Values that cannot change while a device is there (ids, position, offset of its ACS capability) are read once. Every thorough
sweep reads the links that are judged, the ACS control words, and whether a device is bound to vfio-pci. Any other driver is
reported as it was at the first reading.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache

from msgspec.structs import replace

from fairlead.host import config_space
from fairlead.host.root import Root, value_of
from fairlead.model.cpulist import parse_cpulist, parse_cpumask
from fairlead.model.facts import CLASS_UNREADABLE, Missing, PciDevice, PcieLink, unreadable

DEVICES = "/sys/bus/pci/devices"
# Domains above ffff exist (VMD: "10000:"). https://docs.kernel.org/PCI/sysfs-pci.html
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_GENERATIONS = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4, "32": 5, "32.0": 5, "64": 6, "64.0": 6}
_BROADCOM, _BRIDGE = 0x1000, 0x0604  # Broadcom's switches have their level in the subsystem id (topology.tree)
_VFIO = "vfio-pci"
_NVIDIA, _NVIDIA_GPUS = 0x10DE, "/proc/driver/nvidia/gpus"
_THREE_D = 0x030200  # 3D controller (PCI Code and ID Assignment)
_JUDGED = (0x02, 0x03, 0x12)  # network, display, accelerator: the links of these and of switches are read again and judged
_CONTROLLED = (0x0300, 0x0302, 0x0200, 0x0207, 0x0108)  # GPUs, Ethernet, InfiniBand, NVMe (PCI Code and ID Assignment)
_WIDTH_UNKNOWN = 255  # PCIE_LNK_WIDTH_UNKNOWN


@lru_cache(maxsize=1024)  # every sweep asks for the same few addresses
def normal_address(text: str) -> str:
    """Return a PCI address in fairlead's form: "0000:1b:00.0", for example for NVML's "00000000:1B:00.0".

    Raises ValueError for a text that is no PCI address.
    """
    low = text.strip().lower()
    if low.count(":") == 1:
        low = f"0000:{low}"
    if "." not in low:
        low += ".0"
    domain, _, rest = low.partition(":")
    address = f"{domain.lstrip('0').rjust(4, '0')}:{rest}"
    if not ADDRESS.fullmatch(address):
        raise ValueError(f"not a PCI address: {text[:40]!r}")
    return address


class Tour:
    """Reads all PCI functions again and again, at low cost."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._known: dict[str, PciDevice] = {}
        self._names: tuple[str, ...] = ()
        self._said_last: tuple[PciDevice, ...] = ()
        self._said: dict[str, tuple[bytes | Missing | None, ...]] = {}  # speed and width as last read
        self._inodes: dict[str, int] = {}  # a device that was removed and added again has another inode, and is read anew
        self._now: dict[str, int] = {}  # the inodes in the last listing
        self._passed_through: frozenset[str] = frozenset()  # addresses of devices bound to vfio-pci (virtual machines)
        self._of_nvidia: frozenset[str] = frozenset()  # addresses of the GPUs that NVIDIA's driver lists

    def devices(self, *, thorough: bool = True) -> tuple[PciDevice, ...]:
        """Return every function by address. With ``thorough`` False, devices that were seen before are only checked for
        presence."""
        names = self._root.names(DEVICES)
        if not thorough and names == self._names:
            return self._said_last
        self._names, self._now = names, self._root.inodes(DEVICES)
        self._passed_through = frozenset(self._root.names(f"/sys/bus/pci/drivers/{_VFIO}"))
        self._of_nvidia = frozenset(self._root.names(_NVIDIA_GPUS))
        known, self._known = self._known, {}
        for name in names:
            if ADDRESS.fullmatch(name):
                old = known.get(name)
                self._known[name] = self._first(name) if old is None else self._again(old) if thorough else old
        self._said_last = tuple(self._known.values())
        return self._said_last

    def _again(self, old: PciDevice) -> PciDevice:
        folder = f"{DEVICES}/{old.address}"
        nameless = not old.vendor or old.class_code == CLASS_UNREADABLE
        if nameless or self._now.get(old.address) != self._inodes.get(old.address):
            return self._first(old.address)
        new = old
        if (old.address in self._passed_through) != (old.driver == _VFIO) and (driver := self._driver(folder)) != old.driver:
            new = replace(new, driver=driver)
        if old.class_code >> 16 in _JUDGED or old.bridge_role == "switch_upstream" or isinstance(old.link, Missing):
            new = self._with_link(new, folder)
        if old.acs_offset is not None:
            new = self._with_acs(new, folder)
        elif isinstance(old.acs_capability, Missing):
            return self._with_capabilities(new, folder)
        return self._with_control(new, folder)

    def _first(self, address: str) -> PciDevice:
        folder = f"{DEVICES}/{address}"
        self._inodes[address] = self._now.get(address, 0)
        vendor, class_code = self._hex(f"{folder}/vendor"), self._hex(f"{folder}/class", CLASS_UNREADABLE)
        if address in self._of_nvidia:  # a GPU by the driver's list, even if sysfs cannot be read
            vendor = vendor or _NVIDIA
            class_code = _THREE_D if class_code == CLASS_UNREADABLE else class_code
        numa = _numa(self._root, folder)
        broadcom = vendor == _BROADCOM and class_code >> 8 == _BRIDGE
        device = PciDevice(
            address=address,
            vendor=vendor,
            device=self._hex(f"{folder}/device"),
            class_code=class_code,
            path=_path(self._root, address),
            numa=numa,
            local_cpus=_local_cpus(self._root, folder) if isinstance(numa, Missing) else (),
            link=unreadable("not read"),
            driver=self._driver(folder),
            virtual_function=self._root.readlink(f"{folder}/physfn") is not None,
            subsystem=self._hex(f"{folder}/subsystem_vendor") << 16 | self._hex(f"{folder}/subsystem_device") if broadcom else 0,
        )
        return self._with_capabilities(self._with_link(device, folder), folder)

    def _hex(self, path: str, unread: int = 0) -> int:
        """Return a vendor id, device id or class code. ``unread``: the number (which no device has) for an unreadable value."""
        value = self._root.number(path, 16)
        return unread if isinstance(value, Missing) or not 0 <= value <= 0xFFFFFF else value

    def _driver(self, folder: str) -> str:
        target = self._root.readlink(f"{folder}/driver")
        return os.path.basename(target) if isinstance(target, str) else ""

    def _with_link(self, device: PciDevice, folder: str) -> PciDevice:
        paths = f"{folder}/current_link_speed", f"{folder}/current_link_width"
        said = self._root.read_bytes(paths[0]), self._root.read_bytes(paths[1])
        old = device.link
        if said == self._said.get(device.address) and not isinstance(old, Missing):
            return device  # the maximum speed and width were read the first time
        self._said[device.address] = said
        speed, width = value_of(paths[0], said[0]), value_of(paths[1], said[1])
        if isinstance(old, Missing):
            best = generation(self._root.value(f"{folder}/max_link_speed")), lanes(self._root.value(f"{folder}/max_link_width"))
        else:
            best = old.gen_max, old.width_max  # the maximum does not change
        link: PcieLink | Missing
        if isinstance(speed, Missing) and isinstance(width, Missing) and all(isinstance(b, Missing) for b in best):
            link = speed
        else:
            link = PcieLink(gen_current=generation(speed), gen_max=best[0], width_current=lanes(width), width_max=best[1])
        text = "" if isinstance(speed, Missing) else speed
        return device if device.link == link and device.link_speed == text else replace(device, link=link, link_speed=text)

    def _with_capabilities(self, device: PciDevice, folder: str) -> PciDevice:
        config = _Config(self._root, f"{folder}/config")
        try:
            found = config_space.walk(config.read)
        finally:
            config.close()
        if config.failure is not None:
            return replace(device, acs_capability=config.failure, acs_control=config.failure)
        if isinstance(found.acs_offset, Missing):
            why = unreadable(f"{folder}/config: {found.acs_offset.detail}")
            return replace(device, bridge_role=found.role, acs_capability=why, acs_control=why, acs_offset=None)
        device = replace(device, bridge_role=found.role, acs_offset=found.acs_offset, acs_capability=None, acs_control=None)
        if not device.virtual_function and device.class_code >> 8 in _CONTROLLED:
            device = self._with_control(replace(device, express_offset=found.express_offset), folder)
        return device if found.acs_offset is None else self._with_acs(device, folder)

    def _with_control(self, device: PciDevice, folder: str) -> PciDevice:
        if device.express_offset is None:
            return device
        config = _Config(self._root, f"{folder}/config")
        try:
            words = config_space.control_words(config.read, device.express_offset)
        finally:
            config.close()
        if config.failure is not None:
            words = config.failure
        both = (words, words) if isinstance(words, Missing) else words
        if both == (device.device_control, device.link_control):
            return device
        return replace(device, device_control=both[0], link_control=both[1])

    def _with_acs(self, device: PciDevice, folder: str) -> PciDevice:
        config = _Config(self._root, f"{folder}/config")
        try:
            words = config_space.acs_words(config.read, device.acs_offset or 0)
        finally:
            config.close()
        capability: int | Missing
        control: int | Missing
        if config.failure is not None:
            capability = control = config.failure
        elif isinstance(words, Missing):
            capability = control = unreadable(f"{folder}/config: {words.detail}")
        else:
            capability, control = words
        if (capability, control) == (device.acs_capability, device.acs_control):
            return device
        return replace(device, acs_capability=capability, acs_control=control)


class _Config:
    """Reads config space a few bytes at a time, because each dword of a real device is a transaction on the bus."""

    def __init__(self, root: Root, path: str) -> None:
        self.failure: Missing | None = None
        self._path = path
        self._fd = -1
        try:
            self._fd = root.open(path)
        except OSError as e:
            self.failure = unreadable(f"{path}: {e.strerror}")

    def read(self, offset: int, length: int) -> bytes:
        if self._fd < 0:
            return b""
        try:
            return os.pread(self._fd, length, offset)
        except OSError as e:
            self.failure = unreadable(f"{self._path}: {e.strerror}")
            return b""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def generation(speed: str | Missing) -> int | Missing:
    """Return the PCIe generation of a link speed in sysfs: 5 for "32.0 GT/s PCIe" (drivers/pci/probe.c, pci_speed_string)."""
    if isinstance(speed, Missing):
        return speed
    number, _, unit = speed.partition(" ")
    if unit.startswith("GT/s") and number in _GENERATIONS:
        return _GENERATIONS[number]
    return unreadable(f"link speed {speed[:40]!r}")


def lanes(width: str | Missing) -> int | Missing:
    """Return the lanes for sysfs' "16" or the older "x16". 0 means that the link is down, 255 that the width is
    unknown."""
    if isinstance(width, Missing):
        return width
    text = width.removeprefix("x")
    if text.isascii() and text.isdigit() and len(text) < 4 and int(text) != _WIDTH_UNKNOWN:
        return int(text)
    return unreadable(f"link width {width[:40]!r}")


def _numa(root: Root, folder: str) -> int | Missing:
    """Return the NUMA node. -1 means that the kernel does not know the node, and gives Missing."""
    value = root.number(f"{folder}/numa_node")
    if isinstance(value, int) and value < 0:
        return unreadable(f"{folder}/numa_node is {value}")
    return value


def _local_cpus(root: Root, folder: str) -> tuple[int, ...]:
    """Return the CPUs that the kernel calls local (Documentation/ABI/testing/sysfs-bus-pci), or () if there is no such
    list or it is malformed."""
    for name, parse in (("local_cpulist", parse_cpulist), ("local_cpus", parse_cpumask)):
        text = root.read_line(f"{folder}/{name}")
        if isinstance(text, str):
            try:
                return parse(text)
            except ValueError:
                continue
    return ()


def _path(root: Root, address: str) -> tuple[str, ...]:
    real = root.real(f"{DEVICES}/{address}").partition("/devices/")[2]
    path = tuple(c for c in real.split("/") if ADDRESS.fullmatch(c) or _HOST_BRIDGE.fullmatch(c))
    return path if path and path[-1] == address else (address,)
