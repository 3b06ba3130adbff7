"""Describes as data what has to be changed on a node. ``host.change`` executes changes, shows them and can undo them."""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

#: Debian Policy, 5.6.1 and 5.6.12. fairlead accepts a little more, but no slash, and no dot in front.
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~:_-]*")


class Disruption(StrEnum):
    """Names what a change does to jobs: nothing; it needs a node where no job runs; it needs a drained node; it needs a
    reboot."""

    NONE = "none"
    IDLE = "idle"
    DRAIN = "drain"
    REBOOT = "reboot"

    def allowed(self, *, busy: bool, drained: bool) -> bool:
        """Say whether a run may make such a change now. An apply run never reboots the node."""
        if self is Disruption.IDLE:
            return not busy
        return self is Disruption.NONE or (self is Disruption.DRAIN and drained and not busy)


class Layer(StrEnum):
    """Names where a value holds. persisted: in a file for the next boot. effective: in the running kernel or the hardware.
    pending: only after a reboot."""

    PERSISTED = "persisted"
    EFFECTIVE = "effective"
    PENDING_REBOOT = "pending_reboot"


class Change(Struct, frozen=True, kw_only=True, tag=True):
    setting: str
    why: str  # "numa_balancing is 1, wanted 0"
    layer: Layer = Layer.EFFECTIVE
    disruption: Disruption = Disruption.NONE


class File(Change, frozen=True, kw_only=True):
    """Describes a whole file that fairlead writes. ``content`` None removes the file."""

    path: str
    content: str | None
    before: str | None = None
    mode: int = 0o644


class KernelValue(Change, frozen=True, kw_only=True):
    """Describes a value under /proc/sys or /sys. It is written, and then read back."""

    path: str
    value: str
    before: str = ""


class PciBits(Change, frozen=True, kw_only=True):
    """Describes bits of a 16 bit word in a device's config space: (word & ~mask) | value. It is written, and then read back."""

    address: str
    offset: int
    mask: int
    value: int
    before: int
    what: str = ""  # "ACSCtl"


class Unit(Change, frozen=True, kw_only=True):
    """Describes what to do with a systemd unit: reload the unit files, enable, start or restart it. None leaves a state as it
    is."""

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
    """Says that nothing more is to be written: what is persisted takes effect with a reboot, which an apply run does not make."""

    what: str  # "iommu=pt"


class Nvml(Change, frozen=True, kw_only=True):
    """Describes a setting of one GPU by NVML. The NVML worker makes it, with a deadline.

    what and value: persistence, ecc_mode (0, 1); compute_mode (NVML_COMPUTEMODE_*); power_limit_milliwatts; locked_clocks,
    locked_memory_clocks ("1200-1500", in MHz; "off"); application_clocks (memory and graphics clock, "2619,1980"; "off": the
    default); mig ("3g.40gb,2g.20gb": on, with exactly these GPU instances; "off"). ``before`` is what undo sets.
    """

    pci: str
    what: str
    value: int | str
    before: int | str


class Package(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Describes one package file of a set: its name for apt and dpkg, and the hash of its content.

    ``url``: where the file was found. ``installed_kib``: the room that it takes unpacked (Installed-Size, deb-control(5)).
    ``kept``: the package belongs to the driver, so exactly this version is wanted. Other packages are only needed, and a newer
    version that is installed will do. The name, the version and the architecture become part of a path, so this raises
    ValueError for what dpkg does not accept.
    """

    name: str
    version: str
    architecture: str
    sha256: str
    size: int
    url: str = ""
    installed_kib: int = 0
    kept: bool = True

    def __post_init__(self) -> None:
        for word in (self.name, self.version, self.architecture):
            if not _PART.fullmatch(word):
                raise ValueError(f"{word[:60]!r} is no name, version or architecture of a package")

    @property
    def file(self) -> str:
        """Return the name of its file as apt's own cache has it (an epoch's colon is %3a)."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


class Packages(Change, frozen=True, kw_only=True):
    """Describes packages that change together, in one transaction of apt: all of ``install`` (exact files, by their hashes)
    and none of ``remove``, or nothing.

    ``allowed``: the whole set; nothing else may change. ``hold``: packages that apt-mark(8) keeps at their version.
    ``mirror``: where a file is fetched from that is not in the node's cache. ``before``: name and version now. ``keep``:
    beginnings of the names (NAME_VERSION_) of the former set's files in the cache, which are needed to go back.
    """

    install: tuple[Package, ...]
    allowed: tuple[Package, ...]
    remove: tuple[str, ...] = ()
    hold: tuple[str, ...] = ()
    mirror: str = ""
    before: tuple[tuple[str, str], ...] = ()
    keep: tuple[str, ...] = ()


class ModuleReload(Change, frozen=True, kw_only=True):
    """Says that the NVIDIA kernel modules are taken out and put in again, so that version ``version`` is loaded. fairlead lets
    go of NVML for that. Where another program holds a GPU, nothing is done, and the change takes effect with a reboot."""

    version: str


AnyChange = File | KernelValue | PciBits | Unit | Module | BootLoader | Reboot | Nvml | Packages | ModuleReload
