"""A snapshot read back is the machine it was taken of."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from fairlead import config, judge
from fairlead.apply import apply
from fairlead.errors import HostError
from fairlead.host.gather import gather
from fairlead.host.kmsg import Follower
from fairlead.host.root import Root
from fairlead.host.tree_snapshot import snapshot
from fairlead.model.check_definition import Past
from fairlead.model.facts import Gid, Nic, Node, unreadable
from fairlead.model.host_facts import Wanted
from fairlead.nccl import roce
from tests.host.test_gather import TREES, nvml
from tests.lab.pcitree import link_to, put
from tests.lab.sites import write_site
from tests.lab.trees import MACHINES

READS = ("/proc/cmdline", "/sys/kernel/iommu_groups/*/type", "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")

WANTED = Wanted(mounts=("/", "/home", "/not-there"), units=True)


def gathered(tree: Path) -> Node:
    return gather(Root(os.fspath(tree)), json.loads((tree / "nvml.json").read_text()), reads=READS, wanted=WANTED)


@pytest.mark.parametrize("machine", TREES)
def test_round_trip(machine: str, tmp_path: Path) -> None:
    source, target = MACHINES / machine, tmp_path / "copy"
    snapshot(Root(os.fspath(source)), nvml(machine), target, redact=False)
    assert gathered(target) == gathered(source)
    assert (target / "dev/kmsg").read_text() == (source / "dev/kmsg").read_text()
    assert (target / "dev/nodes").read_text() == (source / "dev/nodes").read_text()
    for link in target.rglob("*"):
        if link.is_symlink():
            assert os.path.realpath(link).startswith(os.path.realpath(target) + "/")


def test_second_generation_is_the_first(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "same", tmp_path / "b" / "same"
    snapshot(Root(os.fspath(MACHINES / "hgx-a100")), nvml("hgx-a100"), first, redact=False)
    snapshot(Root(os.fspath(first)), nvml("hgx-a100"), second, redact=False)

    def content(tree: Path) -> dict[str, str | bytes]:
        found: dict[str, str | bytes] = {}
        for path in tree.rglob("*"):
            name = os.fspath(path.relative_to(tree))
            if path.is_symlink():
                found[name] = os.readlink(path)
            elif path.is_file():
                found[name] = path.read_bytes()
        return found

    assert content(first) == content(second)


def gids(nic: Nic) -> tuple[Gid, ...]:
    assert isinstance(nic.gids, tuple)
    return nic.gids


def test_redacted_names_nobody_and_differs_in_nothing_else(tmp_path: Path) -> None:
    source = MACHINES / "hgx-h100.xid79"
    snapshot(Root(os.fspath(source)), nvml(source.name), tmp_path / "copy", redact=True)
    before, after = gathered(source), gathered(tmp_path / "copy")
    assert isinstance(before.gpus, tuple)
    assert isinstance(after.gpus, tuple)
    known = [v for g in before.gpus for v in (g.uuid, g.serial) if isinstance(v, str)]
    known += [p.read_text().strip() for p in source.glob("sys/class/net/[ei]*/address")]
    known += [p.read_text().strip() for p in source.glob("sys/class/infiniband/*/node_guid")]
    known += [p.read_text().strip() for p in source.glob("sys/class/infiniband/*/ports/*/gids/*")]
    assert len(known) > 30
    everything = "\n".join(
        p.read_text(errors="replace") for p in (tmp_path / "copy").rglob("*") if p.is_file() and p.name != "config"
    )
    assert [k for k in known if k in everything] == []
    assert len({g.uuid for g in after.gpus}) == 8
    same = ("cpus", "numa", "pci", "driver", "virtual")
    assert [replace(n, gids=()) for n in after.nics] == [replace(n, gids=()) for n in before.nics]
    before_gids, after_gids = ([g for n in node.nics for g in gids(n)] for node in (before, after))
    assert [(g.index, g.version) for g in after_gids] == [(g.index, g.version) for g in before_gids]
    assert [(a is None, getattr(a, "version", 0)) for a in map(roce.address, after_gids)] == [(True, 0)] * 2 + [
        (False, 4)
    ] * 2 + [(True, 0)] * 2 + [(False, 4)] * 2
    assert {k: asdict(after)[k] for k in same} == {k: asdict(before)[k] for k in same}
    changed = {"uuid", "serial"}
    for old, new in zip(before.gpus, after.gpus, strict=True):
        assert {k for k, v in asdict(new).items() if v != asdict(old)[k]} <= changed
    uuid = after.gpus[0].uuid
    assert isinstance(uuid, str)
    assert uuid in next((tmp_path / "copy/proc/driver/nvidia/gpus").glob("0000:1b:00.0/information")).read_text()
    xids = [r.text for r in Follower(os.fspath(tmp_path / "copy/dev/kmsg")).read() if "Xid" in r.text]
    assert xids == [r.text for r in Follower(os.fspath(source / "dev/kmsg")).read() if "Xid" in r.text]
    assert xids


PROVISIONED = ("numa_balancing", "sysctl", "nccl", "kernel_modules", "memlock", "pcie_acs", "cpu_governor")


@pytest.mark.parametrize("redact", [False, True])
def test_a_provisioned_node_is_provisioned_in_its_snapshot_too(redact: bool, memory: Path) -> None:
    tree = shutil.copytree(MACHINES / "hgx-h100", memory / "tree", symlinks=True)
    document = config.profile_document("localhost", "hgx-h100")
    apply(document, Root(os.fspath(tree)))

    def drift(of: Path) -> dict[str, str]:
        node = gather(Root(os.fspath(of)), nvml("hgx-h100"), reads=judge.reads(document), unsupported=document.unsupported)
        found = judge.judge(document, node, Past(available=True), {f"setting.{name}" for name in PROVISIONED})
        return {f.check.removeprefix("setting."): f.summary for f in found}

    assert drift(tree) == {}
    snapshot(Root(os.fspath(tree)), nvml("hgx-h100"), memory / "copy", redact=redact, reads=judge.reads(document))
    assert drift(memory / "copy") == {}
    (tree / "etc/nccl.conf").write_text("NCCL_SOCKET_IFNAME=corp0\n")  # a person's own now
    snapshot(Root(os.fspath(tree)), nvml("hgx-h100"), memory / "again", redact=redact, reads=judge.reads(document))
    assert set(drift(memory / "again")) == {"nccl"}
    if redact:
        assert not (memory / "again/etc/nccl.conf").exists(), "a site's own file may name people and servers"
        assert "cannot be read: /etc/nccl.conf: left out" in drift(memory / "again")["nccl"], "left out is not absent"
        third = memory / "third"
        snapshot(Root(os.fspath(memory / "again")), nvml("hgx-h100"), third, redact=False, reads=judge.reads(document))
        assert drift(third) == drift(memory / "again"), "a copy of the copy says the same"


def test_links_between_amd_gpus_come_along_without_their_serials(tmp_path: Path) -> None:
    tree = write_site(tmp_path / "lumi", "lumi-g")
    nodes = tree / "sys/devices/virtual/kfd/kfd/topology/nodes"
    link_to(tree / "sys/class/kfd", tree / "sys/devices/virtual/kfd")
    for number, bus in ((4, 0xC1), (5, 0xC6)):
        put(nodes / f"{number}/properties", f"location_id {bus << 8}\ndomain 0\nunique_id 1234567890123456789")
        put(nodes / f"{number}/io_links/0/properties", f"type 11\nnode_to {9 - number}\nmax_bandwidth 200000")
    for redact in (False, True):
        copy = tmp_path / f"copy{redact}"
        snapshot(Root(os.fspath(tree)), unreadable("no NVML"), copy, redact=redact)
        (link,) = gather(Root(os.fspath(copy)), None).gpu_links
        assert (link.a, link.b, link.count) == ("0000:c1:00.0", "0000:c6:00.0", 4)
        text = (copy / "sys/class/kfd/kfd/topology/nodes/4/properties").read_text()
        assert ("1234567890123456789" in text) is not redact


def test_live_machine(tmp_path: Path) -> None:
    root = Root()
    snapshot(root, unreadable("no driver here"), tmp_path / "copy", redact=True)
    before, after = gather(root, None), gather(Root(os.fspath(tmp_path / "copy")), None)
    assert (after.cpus, after.numa, after.virtual) == (before.cpus, before.numa, before.virtual)
    assert [d.address for d in after.pci] == [d.address for d in before.pci]
    assert isinstance(after.uptime_seconds, float)
    raw = json.loads((tmp_path / "copy/nvml.json").read_text())
    assert (raw["error"], raw["call"]) == (999, "no driver here")
    assert re.search("addresses replaced", (tmp_path / "copy/README.md").read_text())


def test_target_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="file"):
        snapshot(Root(os.fspath(MACHINES / "hgx-h100")), {"schema": 1}, tmp_path / "file" / "below", redact=False)
