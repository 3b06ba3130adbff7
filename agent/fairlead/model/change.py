"""Changes: what has to be done to a node, as data. ``host.change`` executes them, shows them and can undo them."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Disruption(StrEnum):
    """What a change does to jobs. A busy node gets only NONE."""

    NONE = "none"
    IDLE = "idle"
    DRAIN = "drain"
    REBOOT = "reboot"


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


AnyChange = File | KernelValue | PciBits | Unit | Module | BootLoader | Reboot | Nvml
