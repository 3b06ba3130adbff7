"""What labs of several processes share: who owns them, and a limit of the whole machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import clean, inotify, ledger
from tests.lab.ledger import Ledger

GONE = "1 1"  # no process 1 that started at tick 1


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder of its own, and a file in the place of the kernel's limit."""
    file = tmp_path / "max_user_instances"
    file.write_text("128\n")
    monkeypatch.setattr(ledger, "RUN", tmp_path / "run")
    monkeypatch.setattr(ledger, "INOTIFY", file)
    monkeypatch.setattr(inotify, "INOTIFY", file)
    return file


def rack(name: str) -> Ledger:
    made = Ledger(name)
    made.open()
    made.add("rack", name)
    return made


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_the_last_rack_puts_the_limit_back(limit: Path, order: tuple[int, ...]) -> None:
    racks = [rack(f"r{number}") for number in range(3)]
    for each, wanted in zip(racks, (1024, 512, 4096), strict=True):
        with ledger.alone():
            each.raise_inotify(wanted)
    assert limit.read_text() == "4096\n"
    for number in order[:-1]:
        assert racks[number].end() == []
        assert int(limit.read_text()) == 4096
    assert racks[order[-1]].end() == []
    assert limit.read_text() == "128\n"
    assert ledger.labs() == []


def test_hosts_that_are_about_to_boot_are_counted(limit: Path) -> None:
    limit.write_text(f"{inotify.in_use() + 200}\n")
    before = limit.read_text()
    inotify.make_room(rack("one"), 16)
    assert limit.read_text() == before
    inotify.make_room(rack("two"), 16)
    assert int(limit.read_text()) > int(before)


def test_labs_of_a_killed_test_process_are_ended_and_no_others(limit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from tests.lab import ledger; import sys; ledger.RUN = ledger.Path(sys.argv[1]); ledger.Ledger(sys.argv[2]).open()"

    def make(name: str, owner: str) -> None:
        """By a process that has ended, as a rack's can that stays up."""
        env = {**os.environ, ledger.OWNER: owner}
        subprocess.run([sys.executable, "-c", code, str(ledger.RUN), name], env=env, cwd=Path(__file__).parents[2], check=True)

    monkeypatch.setattr(clean, "RUN", ledger.RUN)
    make("killed", GONE)
    make("left up", "")
    make("ours", os.environ[ledger.OWNER])
    assert clean.clean_orphans() == ["killed: its test process was killed; taken down"]
    assert [lab.name for lab in ledger.labs()] == ["left up", "ours"]
    assert [lab.creator_alive() for lab in ledger.labs()] == [False, True]
