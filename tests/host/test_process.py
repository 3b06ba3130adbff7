"""Finding processes by name again and again, and reading again only what was written."""

from __future__ import annotations

import shutil
from pathlib import Path

from fairlead.host import process
from fairlead.host.gather import Gatherer
from fairlead.host.root import Root


def make(proc: Path, pid: int, name: str) -> Path:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "comm").write_text(f"{name}\n")
    (folder / "status").write_text("Uid:\t0\t0\t0\t0\n")
    (folder / "exe").symlink_to(f"/usr/sbin/{name}")
    return folder


def test_a_process_is_found_again_only_when_it_has_gone(tmp_path: Path) -> None:
    found = process.Found(str(tmp_path))
    assert found.pid("irqbalance", search=True) is None
    made = {pid: make(tmp_path, pid, "irqbalance") for pid in (200, 300)}
    assert found.pid("irqbalance", search=False) is None  # not searched on a quick look
    assert found.pid("irqbalance", search=True) == 200
    shutil.rmtree(made[200])
    assert found.pid("irqbalance", search=False) == 300


def test_a_file_that_was_written_is_seen_on_a_quick_look(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "proc").mkdir()
    conf = tmp_path / "etc/nccl.conf"
    look = Gatherer(Root(str(tmp_path)), reads=("/etc/nccl.conf", "/proc/x"), slow_seconds=3600)
    assert look.gather(None).texts["/etc/nccl.conf"] is None
    conf.write_text("A=1\n")
    (tmp_path / "proc/x").write_text("1")
    node = look.gather(None)
    assert (node.texts["/etc/nccl.conf"], node.texts["/proc/x"]) == ("A=1\n", "1")
    fresh = tmp_path / "etc/new"
    fresh.write_text("A=2\n")
    fresh.rename(conf)
    assert look.gather(None).texts["/etc/nccl.conf"] == "A=2\n"
    conf.unlink()
    assert look.gather(None).texts["/etc/nccl.conf"] is None


def test_what_no_quick_check_wants_is_read_on_thorough_looks_only(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    quick, slow = tmp_path / "proc/quick", tmp_path / "proc/slow"
    quick.write_text("1")
    slow.write_text("1")
    paths = ("/proc/quick", "/proc/slow")
    look = Gatherer(Root(str(tmp_path)), reads=paths, quick_reads=paths[:1], slow_seconds=3600)
    assert look.gather(None).thorough
    quick.write_text("2")
    slow.write_text("2")
    node = look.gather(None)
    assert (node.thorough, node.text("/proc/quick"), node.text("/proc/slow")) == (False, "2", "1")
    look.read_thoroughly()
    assert look.gather(None).text("/proc/slow") == "2"
