"""Lists which packages do not work with a driver, and why: known-bad and required combinations, as data with their sources.

``faults`` is called when a lock is written and each time a lock is read. A set with faults is never sent to a node. Each rule
names a document that states the rule, and the day on which we read the document. Nothing is forbidden without such a document.
For example, an older nvidia-persistenced beside a newer driver is allowed, because Debian ships them together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from fairlead.model.change import Package

#: GPU architectures from old to new, each with the driver branch of the first CUDA that supports it.
#: Sources: NVIDIA Data Center Drivers, "CUDA Toolkit, Driver, and Architecture Matrix" (First CUDA Toolkit Support); CUDA Toolkit
#: release notes, "CUDA Toolkit and Corresponding Driver Versions".
FIRST_BRANCH = {
    "maxwell": 340, "pascal": 367, "volta": 384, "turing": 410, "ampere": 450, "ada": 520, "hopper": 520, "blackwell": 570,
}  # fmt: skip
#: The last branch that supports an architecture. Source: the same matrix (Last Driver Support: R580).
LAST_BRANCH = {"maxwell": 580, "pascal": 580, "volta": 580}
#: The GPU architecture of each hardware profile that fairlead contains.
PROFILES = {"hgx-a100": "ampere", "hgx-h100": "hopper", "l40s-pcie": "ada"}
#: Kernel module packages of Debian, Ubuntu and NVIDIA's own repository. NVIDIA's names for Ubuntu have no branch from 590 on.
#: Alma, RHEL, CIQ's Rocky, SUSE and Azure build the open module themselves, each with a name of its own.
#: Sources: NVIDIA Driver Installation Guide, "Recent Updates" (package renames) and "Version locking"; NVIDIA's
#: yum-packaging-precompiled-kmod, README and DISTROS.md (January 2026).
OPEN = re.compile(
    r"^(nvidia-open(-\d+)?|nvidia-open-kernel-dkms|nvidia-kernel-open-dkms|nvidia-(kernel|dkms)-(\d+-)?(server-)?open"
    r"|kmod-nvidia-(dc-)?open.*|nvidia-open-kmod|nvidia-open-driver-G\d+-signed.*|cuda-open-hwe"
    r"|linux-modules-nvidia-\d+(-server)?-open-.*)$"
)
PROPRIETARY = re.compile(
    r"^(nvidia-kernel-dkms|nvidia-dkms(-\d+)?(-server)?|cuda-drivers(-\d+)?|kmod-nvidia-(latest|dkms|\d).*"
    r"|linux-modules-nvidia-\d+-(?!(server-)?open)\S+)$"
)
#: The first branch that has no proprietary module.
OPEN_ONLY = 620
#: The oldest container toolkit from which no escape out of a container is known.
TOOLKIT_LEAST = (1, 19, 1)
_DRIVER = re.compile(r"^(?:\d+:)?(\d{3}\.\d+(?:\.\d+)?)(?:[-+~].*)?$")
_LIBRARY = (
    r"(lib)?nvidia-(?!container|persistenced|settings|xconfig|modprobe|support|fabric-?manager|nscq|imex|installer"
    r"|driver-pinning).*"
)
_NUMBERS = re.compile(r"^(?:\d+:)?v?(\d+(?:\.\d+)*)")


class Set(Struct, frozen=True, kw_only=True):
    """Holds a driver and the packages to be installed with it. ``gpu``: the GPUs' architecture, or "" if it is not known."""

    version: str
    branch: str
    module: str
    gpu: str
    packages: tuple[Package, ...]

    @property
    def number(self) -> int:
        return int(self.version.partition(".")[0] or 0)

    def named(self, *patterns: str) -> Iterator[Package]:
        """Return the packages whose whole name matches one of these regular expressions."""
        wanted = re.compile("|".join(patterns))
        return (p for p in self.packages if wanted.fullmatch(p.name))


class DriverRule(Struct, frozen=True, kw_only=True):
    """Describes one rule. ``broken`` yields each fault of a set, and nothing for a set without faults. ``why`` and ``source`` are
    printed with each fault. read: the day on which we last read the source, YYYY-MM-DD."""

    name: str
    broken: Callable[[Set], Iterator[str]]
    why: str
    source: str
    read: str


class DriverFault(Struct, frozen=True, kw_only=True):
    """Holds one reason why a set must not be installed."""

    rule: str
    what: str
    why: str
    source: str

    @property
    def text(self) -> str:
        return f"{self.what}: {self.why} [{self.source}]"


def driver_version(version: str) -> str:
    """Return the driver's version that a package's version contains (535.261.03 for 1:535.261.03-1), or "" if it contains
    none."""
    match = _DRIVER.match(version)
    return match[1] if match else ""


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a package's upstream version, for comparisons."""
    match = _NUMBERS.match(version)
    return tuple(int(n) for n in match[1].split(".")) if match else ()


def _same(*patterns: str) -> Callable[[Set], Iterator[str]]:
    def broken(s: Set) -> Iterator[str]:
        for p in s.named(*patterns):
            if driver_version(p.version) != s.version:
                yield f"{p.name} is {p.version}, the driver {s.version}"

    return broken


def _branch_of(s: Set) -> Iterator[str]:
    if s.branch and s.version.partition(".")[0] != s.branch:
        yield f"version {s.version} is not of branch {s.branch}"


def _module(s: Set) -> Iterator[str]:
    has_open = [p.name for p in s.packages if OPEN.match(p.name)]
    others = [p.name for p in s.packages if PROPRIETARY.match(p.name)]
    if s.module == "open" and not has_open:
        yield "module is open, and the set has no package of the open kernel module"
    if s.module == "proprietary" and not others:
        yield "module is proprietary, and the set has no package of it"
    wrong = {"open": others, "proprietary": has_open, "none": has_open + others}[s.module]
    if wrong and s.module in ("none", "proprietary"):
        yield f"module is {s.module}, and the set has {wrong[0]}"


def _open_needs(s: Set) -> Iterator[str]:
    if s.module == "open" and s.gpu in ("maxwell", "pascal", "volta"):
        yield f"the open module does not support {s.gpu} GPUs"


def _proprietary_ends(s: Set) -> Iterator[str]:
    if s.module == "proprietary" and s.gpu == "blackwell":
        yield "the proprietary module does not support blackwell GPUs"


def _proprietary_gone(s: Set) -> Iterator[str]:
    if s.number >= OPEN_ONLY:
        wrong = [p.name for p in s.packages if PROPRIETARY.match(p.name)]
        if wrong or s.module == "proprietary":
            yield f"driver {s.version} has no proprietary module" + (f", and the set has {wrong[0]}" if wrong else "")


def _known_gpu(s: Set) -> Iterator[str]:
    first, last = FIRST_BRANCH.get(s.gpu, 0), LAST_BRANCH.get(s.gpu, s.number)
    if s.number < first:
        yield f"driver {s.version} does not support {s.gpu} GPUs; branch {first} is the first that does"
    if s.number > last:
        yield f"driver {s.version} does not support {s.gpu} GPUs any more; branch {last} is the last that does"


def _userland(s: Set) -> Iterator[str]:
    for p in s.named(_LIBRARY, "libcuda1", "libnvcuvid1", "firmware-nvidia-gsp"):
        have = driver_version(p.version)
        if have and have != s.version:
            yield f"{p.name} is {p.version}, the driver {s.version}"


def _dcgm(s: Set) -> Iterator[str]:
    for p in s.named("datacenter-gpu-manager.*", "libdcgm.*"):
        if numbers(p.version)[:1] < (4,) and s.number >= 580:
            yield f"{p.name} {p.version} does not support driver branch {s.number}"


def _dcgm_cuda(s: Set) -> Iterator[str]:
    for p in s.named(r"datacenter-gpu-manager-4-cuda\d+"):
        cuda = int(p.name.rpartition("cuda")[2])
        if cuda >= 13 and s.number < 580:
            yield f"{p.name} needs driver branch 580, this is {s.number}"


def _toolkit(s: Set) -> Iterator[str]:
    names = ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container1", "libnvidia-container-tools")
    found = {p.name: p.version for p in s.named(*names)}
    if len(set(found.values())) > 1:
        yield "the container toolkit's packages are of several versions: " + ", ".join(
            f"{n} {v}" for n, v in sorted(found.items())
        )
    for name, version in found.items():
        if numbers(version) < TOOLKIT_LEAST:
            yield f"{name} {version} lets a container's image run code on the node"
            break


def _gdrcopy(s: Set) -> Iterator[str]:
    found = {p.name: numbers(p.version) for p in s.named("gdrdrv-dkms", "libgdrapi")}
    if len(found) == 2 and (found["gdrdrv-dkms"] < (2,)) != (found["libgdrapi"] < (2,)):
        yield "only one of GDRCopy's library and module is older than 2.0"


def _peermem(s: Set) -> Iterator[str]:
    for p in s.named("nvidia-peer-memory(-dkms)?", "nv-peer-mem.*"):
        if s.number >= 470:
            yield f"{p.name} is the older module; driver {s.number} has its own nvidia_peermem"


READ = "2026-11-22"
_GUIDE = "NVIDIA Driver Installation Guide"
RULES: tuple[DriverRule, ...] = (
    DriverRule(name="branch", broken=_branch_of, why="both are declared and must agree", source="fairlead", read=READ),
    DriverRule(
        name="module",
        broken=_module,
        why="the kernel loads one of the two kinds",
        source=f"{_GUIDE}, Kernel modules; the packages' own descriptions (DKMS source, DKMS source open flavor)",
        read=READ,
    ),
    DriverRule(
        name="open_from_turing",
        broken=_open_needs,
        why="it needs the GPU's own system processor, which Turing was the first to have",
        source="NVIDIA developer blog, NVIDIA Transitions Fully Towards Open-Source GPU Kernel Modules (July 2024);"
        " open-gpu-kernel-modules issue 19",
        read=READ,
    ),
    DriverRule(
        name="proprietary_before_blackwell",
        broken=_proprietary_ends,
        why="Grace Hopper and Blackwell GPUs work with the open modules only",
        source="NVIDIA developer blog, NVIDIA Transitions Fully Towards Open-Source GPU Kernel Modules (July 2024)",
        read=READ,
    ),
    DriverRule(
        name="open_only",
        broken=_proprietary_gone,
        why=f"from branch {OPEN_ONLY} on there are only the open modules",
        source=f"{_GUIDE} r620, Kernel modules (that of 615 still has the proprietary module)",
        read=READ,
    ),
    DriverRule(
        name="known_gpu",
        broken=_known_gpu,
        why="the driver would not find the GPUs",
        source="NVIDIA Data Center Drivers, CUDA Toolkit, Driver, and Architecture Matrix; CUDA Toolkit release notes",
        read=READ,
    ),
    DriverRule(
        name="userland",
        broken=_userland,
        why="module, GSP firmware and libraries must be of one release, else they refuse each other"
        " (NVML_ERROR_LIB_RM_VERSION_MISMATCH, 18)",
        source="open-gpu-kernel-modules README; NVML API reference, nvmlReturn_t; deepops issue 1186",
        read=READ,
    ),
    DriverRule(
        name="fabric_manager",
        broken=_same(r"nvidia-fabricmanager(-dev(el)?)?(-\d+)?", r"nvidia-fabric-manager.*", r"libnvidia-nscq(-\d+)?"),
        why="it compares its version with the loaded driver's; where they differ it ends, and no CUDA program starts",
        source="NVIDIA Fabric Manager User Guide, Overview; gpu-operator issue 544; gpu-driver-container issue 735",
        read=READ,
    ),
    DriverRule(
        name="nvsdm",
        broken=_same(r"libnvsdm(-\d+)?"),
        why="it is released with the driver, and on EL no relation of the packages keeps the two together",
        source=f"{_GUIDE}, NVSwitch; NVIDIA's release lists for EL (each libnvsdm has a driver's version)",
        read=READ,
    ),
    DriverRule(
        name="imex",
        broken=_same(r"nvidia-imex(-\d+)?"),
        why="it compares its version with the loaded driver's and ends where they differ",
        source="NVIDIA IMEX Service Guide, Getting Started, Other NVIDIA Software Packages",
        read=READ,
    ),
    DriverRule(
        name="dcgm_generation",
        broken=_dcgm,
        why="DCGM 3.3.9 does not work with driver 580 (CUDA 13): its health check drained each node after its job",
        source="cluster-toolkit pull request 5821",
        read=READ,
    ),
    DriverRule(
        name="dcgm_cuda",
        broken=_dcgm_cuda,
        why="drivers before 580 support CUDA 12 at most",
        source="NVIDIA Data Center Drivers, Supported Drivers and CUDA Toolkit Versions",
        read=READ,
    ),
    DriverRule(
        name="container_toolkit",
        broken=_toolkit,
        why="CVE-2025-23266 (fixed in 1.17.8) and CVE-2026-24260 (fixed in 1.19.1); and its packages must be of one version",
        source="NVIDIA security bulletins, Container Toolkit, July 2025 and June 2026 (answer 5850)",
        read=READ,
    ),
    DriverRule(
        name="gdrcopy",
        broken=_gdrcopy,
        why="each needs at least 2.0 of the other, and ends where the other is older",
        source="gdrcopy, src/gdrapi.c (gdr_open) and src/gdrdrv/gdrdrv.h (MINIMUM_GDR_API_VERSION)",
        read=READ,
    ),
    DriverRule(
        name="peermem",
        broken=_peermem,
        why="the driver's nvidia_peermem replaces it, and it gets no more fixes; dma-buf needs neither of them",
        source="NVIDIA GPUDirect RDMA User Manual v1.8, Installing; Mellanox/nv_peer_memory README",
        read=READ,
    ),
)  # fmt: skip


def faults(chosen: Set) -> tuple[DriverFault, ...]:
    """Return every reason why the set must not be installed. Return () if none is known."""
    return tuple(DriverFault(rule=r.name, what=what, why=r.why, source=r.source) for r in RULES for what in r.broken(chosen))


def architecture(declared: str, profile: str, table: Mapping[str, str] = PROFILES) -> str:
    """Return the GPUs' architecture: the declared architecture, else that of fairlead's hardware profile, else ""."""
    return declared or table.get(profile, "")
