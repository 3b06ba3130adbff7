"""Files that others read are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.host.atomic_file import write_atomic, write_if_changed


def test_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "verdict"
    write_atomic(str(path), b"one\n", mode=0o600, sync=True)
    assert path.read_bytes() == b"one\n" and path.stat().st_mode & 0o777 == 0o600
    assert not write_if_changed(str(path), b"one\n") and write_if_changed(str(path), b"two\n")
    with pytest.raises(OSError):
        write_atomic(str(tmp_path / "no" / "x"), b"")
    assert [p.name for p in tmp_path.iterdir()] == ["verdict"]
