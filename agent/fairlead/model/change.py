"""Changes: what has to be done to a node, as data. ``host.change`` executes them, shows them and can undo them."""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

#: Debian Policy, 5.6.1 and 5.6.12, a little wider: no slash, and no dot in front.
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~:_-]*")


class Disruption(StrEnum):
    """What a change does to jobs: nothing; it needs a node where no job runs; one that no job can come to (drained); a reboot."""

    NONE = "none"
    IDLE = "idle"
    DRAIN = "drain"
    REBOOT = "reboot"

    def allowed(self, *, busy: bool, drained: bool) -> bool:
        """Whether a run may make such a change now. A reboot is never an apply run's to make."""
        if self is Disruption.IDLE:
            return not busy
        return self is Disruption.NONE or (self is Disruption.DRAIN and drained and not busy)


class Layer(StrEnum):
    """persisted: a file for the next boot. effective: the running kernel or hardware. pending: needs a reboot."""

    PERSISTED = "persisted"
    EFFECTIVE = "effective"
    PENDING_REBOOT = "pending_reboot"


class Change(Struct, frozen=True, kw_only=True, tag=True):
    setting: str
    why: str  # "numa_balancing is 1, wanted 0"
    layer: Layer = Layer.EFFECTIVE
    disruption: Disruption = Disruption.NONE


class File(Change, frozen=True, kw_only=True):
    """A whole file of ours. ``content`` None removes it."""

    path: str
    content: str | None
    before: str | None = None
    mode: int = 0o644


class KernelValue(Change, frozen=True, kw_only=True):
    """A value under /proc/sys or /sys: written, then read back."""

    path: str
    value: str
    before: str = ""


class PciBits(Change, frozen=True, kw_only=True):
    """Bits of a 16 bit word in a device's config space: (word & ~mask) | value, then read back."""

    address: str
    offset: int
    mask: int
    value: int
    before: int
    what: str = ""  # "ACSCtl"


class Unit(Change, frozen=True, kw_only=True):
    """A systemd unit: reload the unit files, enable, start or restart. None leaves as it is."""

    name: str
    enabled: bool | None = None
    active: bool | None = None
    restart: bool = False
    daemon_reload: bool = False


class Module(Change, frozen=True, kw_only=True):
    """A kernel module that is to be loaded now (modprobe(8))."""

    name: str


class BootLoader(Change, frozen=True, kw_only=True):
    """The boot loader's own configuration, made anew from its sources: ``update-grub``, or ``grubby`` for boot entries
    (Boot Loader Specification) with ``words`` to add to the kernel command line and ``without`` (keys) to remove."""

    tool: str
    words: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


class Reboot(Change, frozen=True, kw_only=True):
    """Nothing more to write: what is persisted takes effect with a reboot, which is not the apply run's to make."""

    what: str  # "iommu=pt"


class Nvml(Change, frozen=True, kw_only=True):
    """A setting of one GPU by NVML, made in the NVML worker with a deadline.

    what and value: persistence, ecc_mode (0, 1); compute_mode (NVML_COMPUTEMODE_*); power_limit_milliwatts; locked_clocks,
    locked_memory_clocks ("1200-1500", in MHz; "off"); application_clocks (memory and graphics clock, "2619,1980"; "off": the
    default); mig ("3g.40gb,2g.20gb": on, with exactly these GPU instances; "off"). ``before`` is what undo sets.
    """

    pci: str
    what: str
    value: int | str
    before: int | str


class Package(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One package file of a set: what apt and dpkg call it, and what its content must be. ``url``: where it was found.
    ``installed_kib``: the room that it takes unpacked (Installed-Size, deb-control(5)). ``kept``: it belongs to the driver, so
    exactly this version is wanted; otherwise it is only needed, and one that is there in a newer version will do.

    A name, a version or an architecture becomes part of a path: raises ValueError for what dpkg would take for none."""

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
        """The name of its file, as apt's own cache has it (an epoch's colon is %3a)."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


class Packages(Change, frozen=True, kw_only=True):
    """Packages that move together, in one transaction of apt: all of ``install`` (exact files, by their hashes) and none of
    ``remove``, or nothing. ``allowed``: the whole set, beyond which nothing may change. ``hold``: kept where they are by
    apt-mark(8). ``mirror``: where a file is fetched that is not in the node's cache. ``before``: name and version now.
    ``keep``: beginnings of the names (NAME_VERSION_) of files in the cache that belong to the former set: the way back."""

    install: tuple[Package, ...]
    allowed: tuple[Package, ...]
    remove: tuple[str, ...] = ()
    hold: tuple[str, ...] = ()
    mirror: str = ""
    before: tuple[tuple[str, str], ...] = ()
    keep: tuple[str, ...] = ()


class ModuleReload(Change, frozen=True, kw_only=True):
    """The NVIDIA kernel modules taken out and put in again, so that those of version ``version`` are loaded. NVML is let go
    of for it; where another program holds a GPU, nothing is done and a reboot is left to make it effective."""

    version: str


AnyChange = File | KernelValue | PciBits | Unit | Module | BootLoader | Reboot | Nvml | Packages | ModuleReload
