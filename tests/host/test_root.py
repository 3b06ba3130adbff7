"""Reads stay inside a recorded tree, are bounded, and say why they failed."""

from __future__ import annotations

import os
from pathlib import Path

from fairlead.host.root import Root
from fairlead.model.facts import Missing, Why
from tests.host.conftest import write


def test_absent_present_unreadable(tree: Path) -> None:
    write(tree, "/sys/a", "1\n")
    write(tree, "/sys/empty", "")
    (tree / "sys/folder").mkdir()
    root = Root(os.fspath(tree))
    assert root.read_text("/sys/a") == "1\n"
    assert root.read_line("/sys/a") == "1"
    assert root.number("/sys/a") == 1
    assert root.read_text("/sys/none") is None
    assert root.read_text("/sys/a/below") is None
    assert root.read_text("/sys/empty") == ""
    unreadable = root.read_text("/sys/folder")
    assert isinstance(unreadable, Missing)
    assert (unreadable.why, unreadable.detail) == (Why.UNREADABLE, "/sys/folder: Is a directory")
    assert root.value("/sys/none") == Missing(Why.UNREADABLE, "/sys/none: no such file")
    assert root.value("/sys/empty") == Missing(Why.UNREADABLE, "/sys/empty: empty")
    write(tree, "/sys/word", "Unknown\n")
    assert root.number("/sys/word") == Missing(Why.UNREADABLE, "/sys/word: not a number: 'Unknown'")


def test_links_stay_in_the_tree(tree: Path) -> None:
    outside = tree.parent / "outside"
    outside.write_text("secret")
    write(tree, "/etc/inside", "mine")
    (tree / "sys").mkdir()
    (tree / "sys/absolute").symlink_to("/etc/inside")
    (tree / "sys/up").symlink_to("../../../../../../etc/inside")
    (tree / "sys/away").symlink_to("../../outside")
    (tree / "sys/exact").symlink_to(outside)
    (tree / "sys/folder").symlink_to("/etc")
    (tree / "sys/loop").symlink_to("loop")
    root = Root(os.fspath(tree))
    assert root.read_text("/sys/absolute") == "mine"
    assert root.read_text("/sys/up") == "mine"
    assert root.read_text("/sys/folder/inside") == "mine"
    assert root.read_text("/sys/away") is None
    assert root.read_text("/sys/exact") is None
    assert root.read_text("/../outside") is None
    assert isinstance(root.read_text("/sys/loop"), (Missing, type(None)))
    assert root.real("/sys/folder/inside") == "/etc/inside"
    assert root.glob("/sys/f*/in*") == ("/sys/folder/inside",)


def test_a_link_that_leads_elsewhere_now_is_followed_there(tree: Path) -> None:
    for name in ("one", "other"):
        (tree / name).mkdir()
        (tree / name / "value").write_text(name)
    (tree / "sys").mkdir(exist_ok=True)
    link = tree / "sys/way"
    link.symlink_to("../one/value")
    root = Root(os.fspath(tree))
    assert [root.read_text("/sys/way"), root.read_text("/sys/way")] == ["one", "one"]
    link.unlink()
    link.symlink_to("/other/value")
    assert root.read_text("/sys/way") == "other"
    link.unlink()
    assert root.read_text("/sys/way") is None
    link.write_text("a file")
    assert root.read_text("/sys/way") == "a file" and root.reading == ""


def test_size_is_bounded(tree: Path) -> None:
    write(tree, "/proc/big", b"x" * 10000)
    root = Root(os.fspath(tree))
    over = root.read_bytes("/proc/big", 9999)
    assert isinstance(over, Missing)
    assert over.detail == "/proc/big: larger than 9999 bytes"
    assert root.read_bytes("/proc/big", 10000) == b"x" * 10000
    assert root.read_bytes("/proc/big", 100, head=True) == b"x" * 100


def test_glob_matches_files_of_many_folders(tree: Path) -> None:
    for group in (0, 3, 11):
        write(tree, f"/sys/kernel/iommu_groups/{group}/type", "identity\n")
    write(tree, "/sys/kernel/iommu_groups/.hidden/type", "x")
    root = Root(os.fspath(tree))
    assert root.glob("/sys/kernel/iommu_groups/*/type") == tuple(f"/sys/kernel/iommu_groups/{g}/type" for g in (0, 11, 3))
    assert root.glob("/nowhere/*") == ()


def test_kernel_refusal_is_missing() -> None:
    """A write-only or failing attribute of the live kernel: /proc/self/mem at offset 0 gives EIO."""
    found = Root().read_bytes("/proc/self/mem", 16)
    assert isinstance(found, Missing)
    assert found.detail.startswith("/proc/self/mem: ")
