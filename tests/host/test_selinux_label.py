"""SELinux labels: which program is asked for which files. The program is a stand-in for restorecon that writes down its words;
what a policy then says, only a host with SELinux shows (docs/explanation/what-was-proved-where.md)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.host import atomic_file, selinux_label
from fairlead.on_node import managed_files, selinux_labels


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The words that restorecon gets, a line for each call. The file is there before, as on a node with SELinux."""
    program = tmp_path / "bin/restorecon"
    program.parent.mkdir()
    words = tmp_path / "words"
    program.write_text(f'#!/bin/sh\nfor last; do :; done\ntest -e "$last" || exit 9\necho "$@" >> {words}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    enforce = tmp_path / "enforce"
    enforce.write_text("1")
    monkeypatch.setattr(selinux_label, "ENFORCE", str(enforce))
    monkeypatch.setattr(selinux_labels, "ENFORCE", str(enforce))
    monkeypatch.setattr(selinux_label, "RELABELLED", (f"{tmp_path}/etc/",))
    words.touch()
    return words


def test_a_file_in_its_place_is_labelled_after_it_is_whole(asked: Path, tmp_path: Path) -> None:
    for place in ("etc/systemd/system/a.service", "run/verdict"):
        atomic_file.write_file(str(tmp_path / place), b"x")
    atomic_file.write_file(str(tmp_path / "etc/systemd/system/a.service"), None)
    atomic_file.write_atomic(str(tmp_path / "etc/b"), b"x")
    assert asked.read_text() == f"-- {tmp_path}/etc/systemd/system/a.service\n"


def test_what_provisioning_writes_is_labelled(asked: Path, tmp_path: Path) -> None:
    managed_files.write(str(tmp_path / "opt/x"), b"x", 0o644)
    assert asked.read_text() == f"-R -- {tmp_path}/opt/x\n"


def test_without_selinux_or_its_program_the_file_is_written_all_the_same(
    asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.unlink(tmp_path / "enforce")
    atomic_file.write_file(str(tmp_path / "etc/a"), b"x")
    assert asked.read_text() == "" and not os.path.exists(selinux_label.ENFORCE)
    (tmp_path / "enforce").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    atomic_file.write_file(str(tmp_path / "etc/a"), b"y")
    managed_files.write(str(tmp_path / "etc/b"), b"y", 0o644)
    assert (tmp_path / "etc/a").read_bytes() == (tmp_path / "etc/b").read_bytes() == b"y" and asked.read_text() == ""


def test_a_temporary_file_is_in_the_folder_where_the_file_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was made in /tmp and moved would keep the label of /tmp."""
    made = []
    real = os.rename

    def rename(old: str, new: str) -> None:
        made.append((os.path.dirname(old), os.path.dirname(new)))
        real(old, new)

    monkeypatch.setattr(os, "rename", rename)
    atomic_file.write_file(str(tmp_path / "a"), b"x")
    atomic_file.write_atomic(str(tmp_path / "b"), b"x")
    managed_files.write(str(tmp_path / "c"), b"x", 0o600)
    assert made == [(str(tmp_path), str(tmp_path))] * 3
