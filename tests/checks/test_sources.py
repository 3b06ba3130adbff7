"""Absence is never health: whatever file of a tree is taken away, something says so.

Every file that gathering opens is taken away once, one of each kind (names and addresses aside), and the node is judged again
by its profile with everything declared. Either there is a finding that was not there, or the file's kind is in ``UNJUDGED``:
facts that no check judges, each with its reason. A kind in that list that does cause a finding fails too.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import config
from fairlead.cli.machine_tree import recorded_nvml
from fairlead.config import Document
from fairlead.config.site import profile_layer
from fairlead.host.gather import gather
from fairlead.host.kmsg import past_now
from fairlead.host.root import Root
from fairlead.judge import judge, reads, wanted
from fairlead.model.check_definition import Past
from fairlead.model.device import readable_fields
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Finding, Level
from tests.lab.trees import MACHINES, described, names

pytestmark = pytest.mark.trees

TREES = MACHINES
ADDRESS = r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
ROLES = {"0x0604": "bridge", "0x0302": "gpu", "0x0207": "hca", "0x0200": "nic", "0x0108": "disk"}
BESIDE = ("nvml.json", "host.json", "dev/kmsg")
#: Kinds of files (as ``kind`` names them) that may go without a word, and why.
UNJUDGED = {
    r"/(bridge|disk|other)/(current|max)_link_(speed|width)": "links of GPUs, adapters and the switches above them are judged",
    r"/gpu/(current|max)_link_(speed|width)": "NVML says the same of a GPU; what neither says is unknown",
    r"/gpu/(class|vendor)": "NVIDIA's driver names its own GPUs in /proc/driver/nvidia/gpus; a GPU that neither names is missed",
    r"/(hca|nic)/max_link_(speed|width)": "the port above the adapter, or the profile, says what is expected",
    r"/(bridge|disk|gpu|hca|nic|other)/(device|numa_node|local_cpulist|subsystem_\w+)": "its model and its place: topology",
    r"/(hca|nic)/net/\w+/(mtu|operstate|speed|type)": "plain interfaces are not judged; RDMA ports are, by files of their own",
    r"/nic/infiniband/\w+/ports/N/gid.*": "addresses of a RoCE port: the nccl setting chooses among them",
    r"/dev/nodes": "device files that no profile declares (IMEX channels are, where a profile has them)",
    r"/proc/(mounts|net/route)": "read by the nccl setting, whose file no tree has: that drift is there anyway",
    r"/proc/sys/kernel/random/boot_id": "names the boot; a machine's is always there",
    r"/proc/sys/kernel/modprobe": "asked only where /proc/modules is missing: whether the kernel has modules at all",
    r"/proc/version": "decides between two ways of GPU direct RDMA, of which the other is looked for too",
    r"/(proc/driver|sys/module)/nvidia/version": "each stands in for the other",
    r"/sys/devices/system/cpu/cpuN/(cache|topology)/.*": "binding and topology; how many CPUs there are is cpu/online",
    r"/sys/devices/system/cpu/cpufreq/policyN/scaling_available_governors": "only looked at when the governor has to change",
    r"/sys/devices/system/node/.*": "binding and topology; how much memory there is is /proc/meminfo",
    r"/sys/kernel/iommu_groups/N/type": "ACS is judged by its own bits; the type of one group of many changes nothing",
}


def kind(tree: Path, file: Path) -> str:
    """A file's path with numbers, addresses and interface names taken out; of a PCI function, what it is in their place."""
    path = str(file).removeprefix(str(tree))
    function = re.match(rf"(/sys/devices/pci[0-9a-f:]+(?:/{ADDRESS})+)(/.*)", path)
    if function is not None:
        code = (tree / function[1][1:] / "class").read_text().strip()[:6]
        path = f"/{ROLES.get(code, 'other')}{function[2]}"
    return re.sub(r"\d+", "N", re.sub(r"(enp|ibp)\w+", r"\1", path))


class Watched(Root):
    """A root that notes what was there when it was read, by its real path in the tree."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.seen: dict[str, None] = {}

    def read_bytes(self, path: str, limit: int = 4 << 20, *, head: bool = False) -> bytes | Missing | None:
        data = super().read_bytes(path, limit, head=head)
        if isinstance(data, bytes):
            self.seen[os.path.realpath(self.join(path))] = None
        return data


def declared(tree: Path) -> Document:
    """The profile of a tree, with everything declared that only a site can."""
    profile = tree.name.partition(".")[0]
    asked = {
        "fs_space": {"paths": ["/"]},
        "hung_mounts": {"paths": ["/home"]},
        "units": {"wanted": ["slurmd.service"]},
        "cpu_memory": {"cpus_expected": 2, "smt": False},
        "pcie_nic": {"gen": 4},
        "disks": {"nvme_expected": 1},
        "rdma_ports": {"ethernet_ports": 1, "ethernet_rate_gbps": 100.0},
        "kernel_log": {"patterns": [{"name": "lockup", "regex": "watchdog: BUG: soft lockup"}]},
    }
    name = tree.name.partition(".")[0]
    profile = config.load_profile(name)
    return config.resolve_layers("n1", [(name, profile_layer(profile)), ("test", {"checks": asked})], profile=name)[0]


def sweep(tree: Path, document: Document, root: Root, yesterday: Node | None) -> tuple[Node, set[tuple[str, str, str]]]:
    """The node, and what is found of it: with the history that an agent has who could read all of it yesterday."""
    node = gather(
        root, recorded_nvml(str(tree)), reads=reads(document), unsupported=document.unsupported, wanted=wanted(document)
    )
    seen = past_now(str(tree / "dev/kmsg"), "")
    past = Past(available=True, records=seen.records, log=seen.log, readable=readable_fields(yesterday or node))
    return node, {_said(f) for f in judge(document, node, past) if f.level is not Level.OK}


def _said(finding: Finding) -> tuple[str, str, str]:
    return finding.check, finding.device, finding.summary


def sources(tree: Path, root: Watched) -> Iterator[Path]:
    """One file of each kind that was read, and those that are read beside the gathering."""
    chosen: dict[str, str] = {}
    for path in root.seen:
        chosen.setdefault(kind(tree, Path(path)), path)
    yield from {Path(p): None for p in chosen.values()} | {tree / name: None for name in BESIDE}


def silent(name: str, folder: Path) -> tuple[set[str], set[str]]:
    """The kinds of a tree whose absence nothing says, and all kinds."""
    tree = Path(shutil.copytree(TREES / name, folder / name, symlinks=True)).resolve()
    document = declared(tree)
    root = Watched(str(tree))
    before, baseline = sweep(tree, document, root, None)
    quiet: set[str] = set()
    kinds: set[str] = set()
    files = list(sources(tree, root))
    names = {path: kind(tree, path) for path in files}
    for path in files:
        kept = path.read_bytes()
        path.unlink()
        try:
            _, found = sweep(tree, document, Root(str(tree)), before)
        finally:
            path.write_bytes(kept)
        name_of = names[path]
        kinds.add(name_of)
        if not found - baseline:
            quiet.add(name_of)
    return quiet, kinds


QUICK = ("hgx-h100.tuned",)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names() if name not in described()],
)
def test_no_source_goes_in_silence(name: str) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        quiet, kinds = silent(name, Path(folder))
    assert len(kinds) > 80
    excused = {k for k in kinds if any(re.fullmatch(pattern, k) for pattern in UNJUDGED)}
    assert quiet - excused == set()


def test_nothing_is_excused_that_does_not_exist() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        tree = Path(shutil.copytree(TREES / "hgx-h100.tuned", Path(folder) / "hgx-h100.tuned", symlinks=True)).resolve()
        root = Watched(str(tree))
        sweep(tree, declared(tree), root, None)
        kinds = {kind(tree, path) for path in sources(tree, root)}
    assert [pattern for pattern in UNJUDGED if not any(re.fullmatch(pattern, k) for k in kinds)] == []
