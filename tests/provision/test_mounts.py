"""Folders of a node that are full, read-only or noexec: real mounts; what is said names the folder, and what to do."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlead.apply import applying
from fairlead.cli import main
from fairlead.errors import HostError
from fairlead.host import change
from fairlead.host.root import Root
from fairlead.model.change import File
from fairlead.on_node import apply_command
from fairlead.on_node.installed_release import Release
from fairlead.on_node.managed_files import write
from fairlead.on_node.stop import Stop, next_step

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@contextmanager
def mounted(path: Path, options: str, fill: bool = False) -> Iterator[Path]:
    """A tmpfs there, gone afterwards; fill: without a byte of room."""
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(path)], check=True)
    try:
        if fill:
            with (path / "full").open("wb", buffering=0) as f, pytest.raises(OSError, match="No space left"):
                while True:
                    f.write(b"x" * 4096)
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_where_no_way_back_can_be_noted_nothing_is_changed_and_that_folder_is_named(tmp_path: Path) -> None:
    with mounted(tmp_path / "var/lib/fairlead/undo", "size=8k", fill=True):
        file = File(setting="s", why="w", path="/etc/x.conf", content="new\n")
        (outcome,) = change.execute([file], Root(str(tmp_path)))
    assert outcome.message.startswith("/etc/x.conf: left as it is") and "/var/lib/fairlead/undo/s." in outcome.message
    assert outcome.hint == "make room there" and not (tmp_path / "etc/x.conf").exists()


def test_a_full_run_folder_is_no_question_of_who_runs_it(tmp_path: Path) -> None:
    with (
        mounted(tmp_path / "run/fairlead", "size=8k", fill=True),
        pytest.raises(HostError, match="No space left") as raised,
        applying(Root(str(tmp_path)), "/run/fairlead"),
    ):
        pass
    assert raised.value.hint == "make room there"


@pytest.mark.parametrize(("options", "fill", "hint"), [("size=8k", True, "make room there"), ("ro", False, "mounted read-only")])
def test_the_file_that_cannot_be_written_is_named_and_what_to_do(tmp_path: Path, options: str, fill: bool, hint: str) -> None:
    with mounted(tmp_path / "etc", options, fill) as etc, pytest.raises(OSError, match=r"etc/x\.conf'$") as raised:
        write(str(etc / "x.conf"), b"new\n", 0o644)
    assert hint in next_step(raised.value)


def test_a_check_on_a_fresh_node_runs_where_programs_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many sites mount /tmp noexec, where the release's libraries could not be loaded."""
    release = Release(str(tmp_path / "opt/fairlead"), "1", [])
    with mounted(tmp_path / "tmp", "noexec") as tmp:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp))
        assert release.scratch() != str(tmp)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert release.scratch() == str(tmp_path)
    release.runnable()
    with mounted(tmp_path / "opt", "noexec"), pytest.raises(Stop, match="opt/fairlead: mounted noexec") as raised:
        release.runnable()
    assert raised.value.hint == "mount it without noexec"


def test_what_went_wrong_in_apply_is_said_and_not_that_it_stands_above() -> None:
    err = "Traceback (m):\n  File x\nImportError: y.so: failed to map\nfairlead apply: this is a bug in fairlead; x\n"
    with pytest.raises(Stop, match=r"^fairlead apply: ImportError: y\.so: failed to map$") as raised:
        apply_command.read_report(70, "", err)
    assert "`fairlead apply` on the node" in raised.value.hint


@pytest.mark.parametrize("name", ["proc", "sys"])
def test_an_image_whose_kernel_files_are_those_of_the_builder_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "usr/lib/systemd/system").mkdir(parents=True)
    with mounted(tmp_path / name, "size=1m"):
        assert main(["apply", "--root", str(tmp_path)]) == 64
        assert f"{tmp_path}/{name} is mounted" in capsys.readouterr().err
        assert main(["apply", "--root", str(tmp_path), "--dry-run"]) == 66, "looking is no harm; this one has no document"
