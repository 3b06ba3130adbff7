"""Which packages do not go together with a driver, and why: known-bad and required combinations, as data with their sources.

``faults`` is asked when a lock is written and each time one is read: what it refuses is never sent to a node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from fairlead.model.change import Package

#: Architectures of GPUs from old to new, and the first driver branch that knows each.
#: Source: NVIDIA Data Center driver release notes ("Supported GPUs"), CUDA compatibility guide.
FIRST_BRANCH = {
    "maxwell": 340, "pascal": 367, "volta": 384, "turing": 410, "ampere": 450, "ada": 520, "hopper": 515, "blackwell": 570,
}  # fmt: skip
#: What the hardware profiles that fairlead carries are made of.
PROFILES = {"hgx-a100": "ampere", "hgx-h100": "hopper", "l40s-pcie": "ada"}
#: Kernel module packages of Debian, Ubuntu and NVIDIA's own repository.
OPEN = re.compile(
    r"^(nvidia-open(-\d+)?|nvidia-open-kernel-dkms|nvidia-kernel-open-dkms|nvidia-(kernel|dkms)-(\d+-)?(server-)?open"
    r"|kmod-nvidia-open.*|linux-modules-nvidia-\d+(-server)?-open-.*)$"
)
PROPRIETARY = re.compile(
    r"^(nvidia-kernel-dkms|nvidia-dkms-\d+(-server)?|cuda-drivers(-\d+)?|kmod-nvidia-(latest|dkms).*"
    r"|linux-modules-nvidia-\d+(-server)?-(?!open)\S+)$"
)
_DRIVER = re.compile(r"^(?:\d+:)?(\d{3}\.\d+(?:\.\d+)?)(?:[-+~].*)?$")
_NUMBERS = re.compile(r"^(?:\d+:)?v?(\d+(?:\.\d+)*)")


class Set(Struct, frozen=True, kw_only=True):
    """A driver and what is to be installed with it. ``gpu``: architecture, "" where nobody said."""

    version: str
    branch: str
    module: str
    gpu: str
    packages: tuple[Package, ...]

    @property
    def number(self) -> int:
        return int(self.version.partition(".")[0] or 0)

    def named(self, *patterns: str) -> Iterator[Package]:
        """The packages whose name is one of these (regular expressions, whole names)."""
        wanted = re.compile("|".join(patterns))
        return (p for p in self.packages if wanted.fullmatch(p.name))


class Rule(Struct, frozen=True, kw_only=True):
    """``broken``: what is wrong with a set, nothing when it is right. ``why`` and ``source`` are told with it."""

    name: str
    broken: Callable[[Set], Iterator[str]]
    why: str
    source: str


class Fault(Struct, frozen=True, kw_only=True):
    """One reason against a set."""

    rule: str
    what: str
    why: str
    source: str

    @property
    def text(self) -> str:
        return f"{self.what}: {self.why} [{self.source}]"


def driver_version(version: str) -> str:
    """The driver's version in a package's (1:535.261.03-1 is 535.261.03); "" where it is none."""
    match = _DRIVER.match(version)
    return match[1] if match else ""


def numbers(version: str) -> tuple[int, ...]:
    """The upstream numbers of a package's version, for comparing."""
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
        yield f"the open module does not know {s.gpu} GPUs"


def _proprietary_ends(s: Set) -> Iterator[str]:
    if s.module == "proprietary" and s.gpu == "blackwell":
        yield "the proprietary module does not know blackwell GPUs"


def _too_old(s: Set) -> Iterator[str]:
    first = FIRST_BRANCH.get(s.gpu, 0)
    if s.number < first:
        yield f"driver {s.version} does not know {s.gpu} GPUs; branch {first} is the first that does"


def _userland(s: Set) -> Iterator[str]:
    for p in s.named(r"(lib)?nvidia-(?!container|persistenced|settings|xconfig|modprobe|support|fabricmanager|imex|installer).*",
                     "libcuda1", "libnvcuvid1", "firmware-nvidia-gsp"):  # fmt: skip
        have = driver_version(p.version)
        if have and have != s.version:
            yield f"{p.name} is {p.version}, the driver {s.version}"


def _persistenced(s: Set) -> Iterator[str]:
    for p in s.named("nvidia-persistenced"):
        if numbers(p.version)[:1] != (s.number,):
            yield f"nvidia-persistenced is {p.version}, the driver {s.version}"


def _dcgm(s: Set) -> Iterator[str]:
    for p in s.named("datacenter-gpu-manager.*", "libdcgm.*"):
        if numbers(p.version)[:1] < (4,) and s.number >= 580:
            yield f"{p.name} {p.version} does not know driver branch {s.number}"


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
        if numbers(version) < (1, 17, 8):
            yield f"{name} {version} lets a container's image run code on the node"
            break


def _gdrcopy(s: Set) -> Iterator[str]:
    found = {p.name: numbers(p.version)[:2] for p in s.named("gdrdrv-dkms", "libgdrapi", "gdrcopy")}
    if len(set(found.values())) > 1:
        yield f"GDRCopy's library and module differ: {', '.join(sorted(found))}"


def _peermem(s: Set) -> Iterator[str]:
    for p in s.named("nvidia-peer-memory(-dkms)?", "nv-peer-mem.*"):
        if s.number >= 470:
            yield f"{p.name} is the module from before; driver {s.number} has nvidia_peermem of its own"


RULES: tuple[Rule, ...] = (
    Rule(name="branch", broken=_branch_of, why="both are declared and must agree", source="fairlead"),
    Rule(
        name="module",
        broken=_module,
        why="one of both kinds is what the kernel loads",
        source="NVIDIA driver README, Kernel Modules",
    ),
    Rule(
        name="open_from_turing",
        broken=_open_needs,
        why="it needs the GPU's own system processor, which Turing was the first to have",
        source="NVIDIA driver README, Open Linux Kernel Modules",
    ),
    Rule(
        name="proprietary_before_blackwell",
        broken=_proprietary_ends,
        why="Grace Hopper and Blackwell GPUs work with the open modules only",
        source="NVIDIA transitions fully towards open-source GPU kernel modules (NVIDIA developer blog, July 2024)",
    ),
    Rule(name="known_gpu", broken=_too_old, why="it would not find the GPUs", source="NVIDIA Data Center driver release notes"),
    Rule(
        name="userland",
        broken=_userland,
        why="module and libraries of different versions refuse each other (NVML_ERROR_LIB_RM_VERSION_MISMATCH, 18)",
        source="NVML API reference; deepops issue 1186",
    ),
    Rule(
        name="fabric_manager",
        broken=_same(r"nvidia-fabricmanager(-\d+)?", r"nvidia-fabric-manager.*", r"libnvidia-nscq(-\d+)?"),
        why="its version must be the driver's to the last digit, or it ends and no CUDA program starts",
        source="NVIDIA Fabric Manager user guide; gpu-operator issue 544; azhpc-images pull request 86",
    ),
    Rule(
        name="imex",
        broken=_same(r"nvidia-imex(-\d+)?"),
        why="it is built with the driver and speaks its version's protocol between nodes",
        source="NVIDIA IMEX service guide",
    ),
    Rule(
        name="persistenced",
        broken=_persistenced,
        why="it is built from the driver's branch",
        source="NVIDIA driver persistence guide",
    ),
    Rule(
        name="dcgm_generation",
        broken=_dcgm,
        why="DCGM 3 fails on drivers from 580: health checks drained every node after each job",
        source="cluster-toolkit issue 5821; DCGM 4 release notes",
    ),
    Rule(
        name="dcgm_cuda",
        broken=_dcgm_cuda,
        why="CUDA 13 needs driver branch 580 or newer",
        source="CUDA 13 release notes, minimum required driver",
    ),
    Rule(
        name="container_toolkit",
        broken=_toolkit,
        why="CVE-2025-23266, mended in 1.17.8; 1.17.7-1 broke containers besides, and its parts go together",
        source="NVIDIA security bulletin, Container Toolkit, July 2025; slurm-gcp pins 1.17.7-1 away",
    ),
    Rule(
        name="gdrcopy",
        broken=_gdrcopy,
        why="the library speaks to the module of its own version",
        source="GDRCopy README, Build and installation",
    ),
    Rule(
        name="peermem",
        broken=_peermem,
        why="both would claim the same memory; nvidia_peermem needs MLNX_OFED or DOCA, dma-buf neither",
        source="NVIDIA driver README, GPUDirect RDMA Peer Memory Client; deepops issue 1300",
    ),
)  # fmt: skip


def faults(chosen: Set) -> tuple[Fault, ...]:
    """Every reason against the set; () when nothing is known to be wrong with it."""
    return tuple(Fault(rule=r.name, what=what, why=r.why, source=r.source) for r in RULES for what in r.broken(chosen))


def architecture(declared: str, profile: str, table: Mapping[str, str] = PROFILES) -> str:
    """The GPUs' architecture: as declared, else that of a hardware profile that fairlead carries."""
    return declared or table.get(profile, "")
