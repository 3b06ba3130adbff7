"""A person's hold of the node, whatever is in its file."""

from __future__ import annotations

from pathlib import Path

from fairlead.drains.admin_hold import read_hold


def test_a_hold_that_cannot_be_read_is_one(tmp_path: Path) -> None:
    assert read_hold(str(tmp_path), str(tmp_path / "run")) is None
    (tmp_path / "hold").write_text("damaged")
    assert read_hold(str(tmp_path), str(tmp_path / "run")) == {"reason": "unreadable"}
