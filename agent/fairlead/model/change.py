"""Describes as data what has to be changed on a node. ``host.change`` executes changes, shows them and can undo them."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Literal

from msgspec import Struct

#: Debian Policy, 5.6.1 and 5.6.12. fairlead accepts a little more, but no slash, and no dot in front.
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~:_-]*")
_RPM_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~^:_-]*")
_EVR = re.compile(r"[0-9]+:[^:-]+-[^:-]+")


class Disruption(StrEnum):
    """Names what a change needs because of running jobs. none: nothing. idle: a node where no job runs. drain: a drained node
    where no job runs. draining: a drained node where jobs may still run, since the change disturbs none of them. reboot: a
    reboot."""

    NONE = "none"
    IDLE = "idle"
    DRAINING = "draining"
    DRAIN = "drain"
    REBOOT = "reboot"

    def allowed(self, *, busy: bool, drained: bool) -> bool:
        """Return whether an apply run may make such a change now. An apply run never reboots the node."""
        if self is Disruption.IDLE:
            return not busy
        if self is Disruption.DRAINING:
            return drained
        return self is Disruption.NONE or (self is Disruption.DRAIN and drained and not busy)


class Layer(StrEnum):
    """Names what a change sets. persisted: a file for the next boot. effective: the running kernel or the hardware.
    pending_reboot: a value that the node has only after a reboot."""

    PERSISTED = "persisted"
    EFFECTIVE = "effective"
    PENDING_REBOOT = "pending_reboot"


class Change(Struct, frozen=True, kw_only=True, tag=True):
    setting: str
    why: str  # "numa_balancing is 1, wanted 0"
    layer: Layer = Layer.EFFECTIVE
    disruption: Disruption = Disruption.NONE


class File(Change, frozen=True, kw_only=True):
    """Describes a file that fairlead writes as a whole. ``content`` None removes the file.

    ``lines``: None, or fairlead's lines in dnf's versionlock list, which other people and programs write too (``dnf_hold``). In
    this case their lines are read again when the change is made, and they stay. ``content`` only shows the expected result.
    """

    path: str
    content: str | None
    before: str | None = None
    mode: int = 0o644
    lines: tuple[str, ...] | None = None


class KernelValue(Change, frozen=True, kw_only=True):
    """Describes a value under /proc/sys or /sys. The value is written, and then read back."""

    path: str
    value: str
    before: str = ""


class PciBits(Change, frozen=True, kw_only=True):
    """Describes bits of a 16 bit word in a device's config space: (word & ~mask) | value. The word is written, and then read
    back."""

    address: str
    offset: int
    mask: int
    value: int
    before: int
    what: str = ""  # "ACSCtl"


class Unit(Change, frozen=True, kw_only=True):
    """Describes what to do with a systemd unit: reload the unit files, enable, start or restart the unit. ``enabled`` or
    ``active`` None leaves that state as it is."""

    name: str
    enabled: bool | None = None
    active: bool | None = None
    restart: bool = False
    daemon_reload: bool = False


class Module(Change, frozen=True, kw_only=True):
    """Names a kernel module that is to be loaded now (modprobe(8))."""

    name: str


class BootLoader(Change, frozen=True, kw_only=True):
    """Describes a new configuration of the boot loader, made from its own sources: ``update-grub``, or ``grubby`` for boot
    entries (Boot Loader Specification). ``words`` are added to the kernel command line, and the keys in ``without`` are
    removed."""

    tool: str
    words: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


class Reboot(Change, frozen=True, kw_only=True):
    """Describes that only a reboot is missing: the value is persisted and takes effect at the next boot. An apply run does not
    reboot the node."""

    what: str  # "iommu=pt"


class Nvml(Change, frozen=True, kw_only=True):
    """Describes a change of one GPU through NVML. The NVML worker makes the change within a deadline.

    ``what`` is one of these names, with these forms of ``value``. persistence, ecc_mode: 0 or 1. compute_mode:
    NVML_COMPUTEMODE_*. power_limit_milliwatts: a number. locked_clocks, locked_memory_clocks: "1200-1500" in MHz, or "off".
    application_clocks: memory and graphics clock in MHz, "2619,1980", or "off" for the default. mig: "2g.20gb@0,3g.40gb@4" for
    MIG with exactly these GPU instances, or "off". The number after @ is the first memory slice. Without it the driver chooses a
    slice. An instance that is there already stays. ``before``: the value that undo sets.
    """

    pci: str
    what: str
    value: int | str
    before: int | str


class Package(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Describes one package file of a set: its name for the package manager, and the hash of its content.

    ``format``: deb or rpm. ``version``: for rpm it is EPOCH:VERSION-RELEASE, also if the epoch is 0. ``url``: where the file was
    found. ``installed_kib``: the disk space of the unpacked package (Installed-Size, deb-control(5)). ``kept``: True if the
    package belongs to the driver, so that exactly this version is wanted. Other packages are dependencies, for which a newer
    installed version is accepted. The name, the version and the architecture become part of a path, so this raises ValueError
    for a word that dpkg or rpm does not accept.
    """

    name: str
    version: str
    architecture: str
    sha256: str
    size: int
    url: str = ""
    installed_kib: int = 0
    kept: bool = True
    format: Literal["deb", "rpm"] = "deb"

    def __post_init__(self) -> None:
        part = _PART if self.format == "deb" else _RPM_PART
        for word in (self.name, self.version, self.architecture):
            if not part.fullmatch(word):
                raise ValueError(f"{word[:60]!r} is no name, version or architecture of a package")
        if self.format == "rpm" and not _EVR.fullmatch(self.version):
            raise ValueError(f"{self.version[:60]!r} is not EPOCH:VERSION-RELEASE")

    @property
    def file(self) -> str:
        """Return the name of the package's file in the node's cache, in which the colon of an epoch is %3a. The file names of
        NVIDIA's RPMs have no epoch, so packages that differ only in the epoch would have the same file name."""
        version = self.version.replace(":", "%3a")
        if self.format == "rpm":
            return f"{self.name}-{version}.{self.architecture}.rpm"
        return f"{self.name}_{version}_{self.architecture}.deb"


class Packages(Change, frozen=True, kw_only=True):
    """Describes packages that change together in one transaction of apt or dnf. All packages of ``install`` are installed
    (exact files, by their hashes) and all packages of ``remove`` are removed, or nothing changes.

    ``allowed``: the whole set of packages that may change. ``hold``: packages that apt-mark(8) keeps at their version, and
    ``unhold``: those that it keeps no longer. For dnf both are empty, because a file keeps the packages (``dnf_hold``).
    ``mirror``: where files are fetched from that are not in the node's cache. ``before``: the names and versions that are
    installed now. ``keep``: the beginnings (NAME_VERSION_, NAME-VERSION.) of file names in the cache that stay there. These are
    the files of the former set, which undo needs.
    """

    install: tuple[Package, ...]
    allowed: tuple[Package, ...]
    remove: tuple[str, ...] = ()
    hold: tuple[str, ...] = ()
    unhold: tuple[str, ...] = ()
    mirror: str = ""
    before: tuple[tuple[str, str], ...] = ()
    keep: tuple[str, ...] = ()


class ModuleReload(Change, frozen=True, kw_only=True):
    """Describes that the NVIDIA kernel modules are unloaded and loaded again, so that version ``version`` is loaded. fairlead
    releases NVML for that. If another program uses a GPU, nothing is done, and the change takes effect with a reboot."""

    version: str


AnyChange = File | KernelValue | PciBits | Unit | Module | BootLoader | Reboot | Nvml | Packages | ModuleReload
