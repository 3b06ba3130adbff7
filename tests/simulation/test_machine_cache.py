"""The cache of machine trees is always what the sources say."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import trees


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Two small trees as tests/machines would keep them: a base with a link that leads upwards, and a fault."""
    sources, base = tmp_path / "sources", tmp_path / "whole"
    (base / "sys/device/port").mkdir(parents=True)
    (base / "sys/device/numa_node").write_text("0\n")
    (base / "sys/device/port/numa_node").write_text("1\n")
    (base / "sys/device/width").write_text("16\n")
    (base / "sys/device/port/up").symlink_to("../..")
    sources.mkdir()
    trees.pack("base", base, sources)
    (sources / "base.fault").mkdir()
    (sources / "base.fault/base").write_text("base\n")
    (sources / "base.fault/everywhere").write_text("numa_node -1\n")
    (sources / "base.fault/sys/device").mkdir(parents=True)
    (sources / "base.fault/sys/device/width").write_text("8\n")
    return sources


def test_a_fault_is_its_base_with_what_its_files_say(kept: Path, tmp_path: Path) -> None:
    cache = trees.ensure(kept, tmp_path / "cache/machines")
    assert (cache / "base/sys/device/width").read_text() == "16\n"
    assert (cache / "base/sys/device/port/up").readlink() == Path("../..")
    fault = cache / "base.fault/sys/device"
    assert [(fault / name).read_text() for name in ("width", "numa_node", "port/numa_node")] == ["8\n", "-1\n", "-1\n"]
    assert not (cache / "base.fault/everywhere").exists() and not (cache / "base.fault/base").exists()


def test_a_stale_a_damaged_and_a_missing_cache_are_made_again_and_a_good_one_is_kept(kept: Path, tmp_path: Path) -> None:
    cache = trees.ensure(kept, tmp_path / "cache/machines")
    made = cache.stat().st_ino
    assert trees.ensure(kept, cache).stat().st_ino == made
    (kept / "base.fault/sys/device/width").write_text("4\n")
    trees.ensure(kept, cache)
    assert (cache / "base.fault/sys/device/width").read_text() == "4\n"
    (cache / trees.STAMP).write_bytes(b"\xff\xfe")
    trees.ensure(kept, cache)
    shutil.rmtree(cache)
    trees.ensure(kept, cache)
    assert (cache / "base.fault/sys/device/width").read_text() == "4\n"
    assert {path.name for path in cache.parent.iterdir()} == {"machines", "machines.lock"}, "nothing is left over"


def test_two_that_begin_at_once_make_one_cache(kept: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache/machines"
    script = f"from pathlib import Path; from tests.lab import trees; trees.ensure(Path({str(kept)!r}), Path({str(cache)!r}))"
    started = [subprocess.Popen([sys.executable, "-c", script], cwd=trees.PROJECT) for _ in range(4)]
    assert [process.wait(60) for process in started] == [0] * 4
    assert (cache / "base.fault/sys/device/width").read_text() == "8\n"
    assert {path.name for path in cache.parent.iterdir()} == {"machines", "machines.lock"}


@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_what_cannot_be_unpacked_is_named_with_the_next_step_and_the_old_cache_stays(
    kept: Path, tmp_path: Path, damage: bytes | None
) -> None:
    cache = trees.ensure(kept, tmp_path / "cache/machines")
    archive = kept / "base.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-30] if damage is None else damage)
    with pytest.raises(SystemExit, match=r"base cannot be unpacked: .*git checkout -- tests/machines"):
        trees.ensure(kept, cache)
    assert (cache / "base/sys/device/width").read_text() == "16\n"


def test_a_fault_whose_base_is_no_archive_is_named(kept: Path, tmp_path: Path) -> None:
    (kept / "base.fault/base").write_text("nosuch\n")
    with pytest.raises(SystemExit, match=r"base\.fault cannot be unpacked: its base is 'nosuch', which is no archive"):
        trees.ensure(kept, tmp_path / "cache/machines")


def test_an_edited_copy_is_packed_as_the_files_that_differ(kept: Path, tmp_path: Path) -> None:
    cache = trees.ensure(kept, tmp_path / "cache/machines")
    copy = Path(shutil.copytree(cache / "base.fault", tmp_path / "copy", symlinks=True))
    (copy / "sys/device/width").write_text("16\n")
    (copy / "sys/device/speed").write_text("32\n")
    (copy / "sys/device/numa_node").write_text("0\n")
    trees.pack("base.fault", copy, kept, cache)
    names = {str(path.relative_to(kept / "base.fault")) for path in (kept / "base.fault").rglob("*") if path.is_file()}
    assert names == {"base", "everywhere", "sys/device/speed", "sys/device/numa_node"}
    trees.ensure(kept, cache)
    left, right = (
        sorted((path.relative_to(tree), path.read_text()) for path in tree.rglob("*") if path.is_file())
        for tree in (copy, cache / "base.fault")
    )
    assert left == right


def test_what_a_difference_cannot_say_is_refused(kept: Path, tmp_path: Path) -> None:
    cache = trees.ensure(kept, tmp_path / "cache/machines")
    copy = Path(shutil.copytree(cache / "base.fault", tmp_path / "copy", symlinks=True))
    (copy / "sys/device/width").unlink()
    with pytest.raises(ValueError, match="sys/device/width"):
        trees.pack("base.fault", copy, kept, cache)


def test_the_same_tree_is_packed_to_the_same_bytes(tmp_path: Path, kept: Path) -> None:
    cache = trees.ensure(kept, tmp_path / "cache/machines")
    assert trees.archived(cache / "base") == (kept / "base.tar.gz").read_bytes()
