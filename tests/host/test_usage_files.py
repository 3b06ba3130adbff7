"""Files of usage records: whole or not there, limited, and what is not a record is set aside."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fairlead.host import usage_files
from fairlead.host.bounded_disk import Direct
from fairlead.host.usage_files import UsageFiles

OPEN, DONE = b'{"job":1}\n', b'{"job":1,"end_unix":5.0}\n'


def at(folder: Path) -> UsageFiles:
    return UsageFiles(str(folder), Direct())


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "usage").iterdir()} - {"aside"}


def test_what_was_written_is_found_unless_it_has_an_end(tmp_path: Path) -> None:
    files = at(tmp_path)
    assert files.open_files() == {}
    assert files.write({"1-100.json": OPEN, "2-100.json": DONE}, readers={}, sync=True)
    assert at(tmp_path).open_files() == {"1-100.json": OPEN}
    assert (tmp_path / "usage/1-100.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("data", [b"", OPEN[:-1], OPEN[:5], b" " * usage_files.FILE_MAX_BYTES + OPEN])
def test_a_file_that_is_not_whole_is_set_aside(tmp_path: Path, data: bytes) -> None:
    folder = tmp_path / "usage"
    folder.mkdir()
    (folder / "1-100.json").write_bytes(data)
    assert at(tmp_path).open_files() == {}
    assert (folder / "aside/1-100.json").read_bytes() == data
    assert names(tmp_path) == set()


@pytest.mark.parametrize("name", ["x.json", "1-100.json.bak", "-1.json", "1-1.JSON", "\n", "1-1.json\n"])
def test_a_foreign_name_is_set_aside(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "usage"
    folder.mkdir()
    (folder / name).write_bytes(OPEN)
    assert at(tmp_path).open_files() == {}
    assert (folder / "aside" / name).exists()


def test_a_link_a_fifo_and_a_folder_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "usage"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(OPEN)
    (folder / "1-1.json").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "2-1.json")
    (folder / "3-1.json").mkdir()
    assert at(tmp_path).open_files() == {}
    assert names(tmp_path) == set()


def test_what_a_killed_agent_left_half_written_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "usage"
    folder.mkdir()
    (folder / "1-1.json.99.tmp").write_bytes(OPEN[:3])
    assert at(tmp_path).open_files() == {}
    assert list(folder.iterdir()) == []


def test_aside_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_files, "ASIDE_MAX", 3)
    (tmp_path / "usage").mkdir()
    for number in range(9):
        (tmp_path / "usage" / f"foreign{number}").write_bytes(b"")
    at(tmp_path).open_files()
    assert len(list((tmp_path / "usage/aside").iterdir())) == 3


def test_no_two_starts_of_a_job_have_one_name(tmp_path: Path) -> None:
    """Also if the clock was set back, and for an agent that starts later."""
    files = at(tmp_path)
    files.open_files()
    first = files.new_name(7, 100.9)
    assert (first, files.new_name(7, 100.1), files.new_name(8, 100.1)) == ("7-100.json", "7-101.json", "8-100.json")
    files.write({first: DONE}, readers={}, sync=False)
    later = at(tmp_path)
    later.open_files()
    assert later.new_name(7, 100.9) == "7-101.json"


def written(folder: Path, count: int, days: float = 0.0) -> UsageFiles:
    files = at(folder)
    files.open_files()
    for number in range(count):
        files.write({f"{number}-1.json": DONE}, readers={}, sync=False)
        when = time.time() - days * 86400 - (count - number)
        os.utime(folder / "usage" / f"{number}-1.json", (when, when))
    return files


def test_old_files_are_removed_and_open_ones_kept(tmp_path: Path) -> None:
    files = written(tmp_path, 3, days=31)
    files.prune(30, {"1-1.json"})
    assert names(tmp_path) == {"1-1.json"}


@pytest.mark.parametrize(("limit", "value"), [("FILES_MAX", 2), ("BYTES_MAX", 2 * len(DONE))])
def test_the_oldest_files_beyond_a_limit_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(usage_files, limit, value)
    written(tmp_path, 5).prune(30, set())
    assert names(tmp_path) == {"3-1.json", "4-1.json"}


def test_a_disk_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "usage").write_bytes(b"a file where the folder should be")
    files = at(tmp_path)
    assert files.open_files() is None
    assert files.trouble == f"usage records: {tmp_path}/usage: File exists"
    assert not files.write({"1-1.json": OPEN}, readers={}, sync=False)
    (tmp_path / "usage").unlink()
    assert files.write({"1-1.json": OPEN}, readers={}, sync=False)
    assert files.trouble == ""
