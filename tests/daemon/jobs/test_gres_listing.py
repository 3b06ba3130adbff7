"""The files of Slurm tell which MIG instance an index means only if slurmd has read them as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.config.document import Document, resolve_layers
from fairlead.daemon.jobs.gres_listing import GresListing, SlurmdsCount, UnclearError
from fairlead.host.bounded_disk import Direct
from fairlead.host.root import Root
from fairlead.model.facts import Node
from fairlead.model.gpu_state import MigDevice
from fairlead.topology.binding.published_files import NOT_LISTED, ListedDevices
from tests.checks import nodes
from tests.hooks.test_mig_on_slurm import caps
from tests.lab.slurmd import mig_minors

LINE = "NodeName=n1 Name=gpu Type=1g.10gb MultipleFiles=/dev/nvidia0{caps}\n"
BOTH = LINE.format(caps=caps(0, 11)) + LINE.format(caps=caps(0, 9))


def split(*gi: int) -> Node:
    devices = tuple(MigDevice(uuid=f"MIG-{each}", gi=each, ci=0, profile="1g.10gb") for each in gi)
    return nodes.node(nodes.gpu(0, minor=0, mig_current=True, mig_devices=devices))


def write(tree: Path, gres: str, nodes: str = "NodeName=n1 Gres=gpu:1g.10gb:2\n") -> None:
    for name, text in (("slurm.conf", nodes), ("gres.conf", gres)):
        (tree / "etc/slurm").mkdir(parents=True, exist_ok=True)
        (tree / "etc/slurm" / name).write_text(text)
    (tree / "proc/driver/nvidia-caps").mkdir(parents=True, exist_ok=True)
    (tree / "proc/driver/nvidia-caps/mig-minors").write_text(mig_minors(range(8)))


def document(tmp_path: Path) -> Document:
    return resolve_layers("n1", [("test", {"agent": {"run_dir": str(tmp_path / "run")}})])[0]


def listing(tmp_path: Path) -> GresListing:
    return GresListing(document(tmp_path), Root(str(tmp_path)), Direct())


def test_lines_of_a_tree_are_read(tmp_path: Path) -> None:
    write(tmp_path, BOTH)
    assert listing(tmp_path).read(split(9, 11)).uuids == {0: "MIG-11", 1: "MIG-9"}
    assert listing(tmp_path).read(split(9)).uuids == {1: "MIG-9"}, "an instance that is not there has no UUID"
    assert listing(tmp_path).read(nodes.node(nodes.gpu(0))) == NOT_LISTED


@pytest.mark.parametrize(
    ("gres", "conf"),
    [
        (f"AutoDetect=nvml\n{BOTH}", "NodeName=n1 Gres=gpu:2\n"),
        ("NodeName=n1 Name=gpu File=/dev/nvidia0\n", "NodeName=n1 Gres=gpu:1\n"),
        (BOTH, "NodeName=n2 Gres=gpu:2\n"),
        (BOTH, "NodeName=n1 Gres=gpu:a:1:b:c\n"),
        ("NodeName=n[1- Name=gpu\n", "NodeName=n1 Gres=gpu:2\n"),
        ("", "NodeName=n1 Gres=gpu:2\n"),
    ],
)
def test_other_files_tell_nothing(tmp_path: Path, gres: str, conf: str) -> None:
    write(tmp_path, gres, conf)
    assert not listing(tmp_path).read(split(9, 11)).uuids


def test_files_newer_than_slurmd_tell_nothing_until_it_is_restarted() -> None:
    first, second = {0: "MIG-1"}, {0: "MIG-2"}
    count = SlurmdsCount(NOT_LISTED)
    assert count.take(first, newer=False, pid=7, started=100, now=110) == ListedDevices(first, 100)
    assert count.take(first, newer=True, pid=7, started=100, now=120).uuids == first, "the files say the same to the same slurmd"
    with pytest.raises(UnclearError):
        count.take(second, newer=True, pid=7, started=100, now=130)
    with pytest.raises(UnclearError):
        count.take(first, newer=True, pid=8, started=135, now=140)  # this slurmd may have read something else
    assert count.take(second, newer=False, pid=9, started=150, now=160) == ListedDevices(second, 150)


def test_the_same_list_holds_over_a_restart_of_slurmd_and_of_the_agent() -> None:
    uuids = {0: "MIG-1"}
    count = SlurmdsCount(ListedDevices(uuids, 100))  # as the file topology says
    assert count.take(uuids, newer=False, pid=8, started=500, now=510).since == 100
    with pytest.raises(UnclearError):
        SlurmdsCount(ListedDevices(uuids, 100)).take(uuids, newer=True, pid=8, started=500, now=510)


def test_a_new_layout_under_the_same_lines_counts_from_when_it_was_seen() -> None:
    """The admin divides a GPU again. The files name the same capabilities, which are those of other instances now."""
    count = SlurmdsCount(NOT_LISTED)
    count.take({0: "MIG-1"}, newer=False, pid=7, started=100, now=200)
    assert count.take({0: "MIG-2"}, newer=False, pid=7, started=100, now=205).since == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may see which program a process of root executes")
def test_a_machine_without_slurmd_tells_nothing(tmp_path: Path) -> None:
    write(tmp_path, BOTH)
    document = resolve_layers("n1", [("test", {"slurm": {"conf": str(tmp_path / "etc/slurm/slurm.conf")}})])[0]
    assert GresListing(document, Root("/"), Direct()).read(split(9, 11)) == NOT_LISTED
