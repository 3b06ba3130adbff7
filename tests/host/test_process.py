"""Finding processes by name again and again, and reading again only what was written."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from fairlead.host import process
from fairlead.host.gather import Gatherer
from fairlead.host.root import Root


def test_a_process_is_found_again_only_when_it_has_gone() -> None:
    name = f"fl{os.getpid() % 100000}"
    found = process.Found(Root("/"))
    assert found.pid(name, search=True) is None
    made = [
        subprocess.Popen(["bash", "-c", f"echo -n {name} > /proc/$$/comm; read -r _"], stdin=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for child in made:
            while Path(f"/proc/{child.pid}/comm").read_text() != f"{name}\n":
                pass
        assert found.pid(name, search=False) is None  # not searched on a quick look
        first = found.pid(name, search=True)
        assert first in {c.pid for c in made}
        gone = next(c for c in made if c.pid == first)
        gone.kill()
        gone.wait()
        assert found.pid(name, search=False) in {c.pid for c in made} - {first}
    finally:
        for child in made:
            child.kill()
            child.wait()
            assert child.stdin is not None
            child.stdin.close()


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
    look.look_closely()
    assert look.gather(None).text("/proc/slow") == "2"
