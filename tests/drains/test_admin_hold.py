"""A person's hold of the node, whatever is in its file."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.drains import admin_hold
from fairlead.drains.admin_hold import read_hold
from fairlead.host import boot_clock
from tests import printed_json


def test_a_hold_that_cannot_be_read_is_one(tmp_path: Path) -> None:
    assert read_hold(str(tmp_path), str(tmp_path / "run")) is None
    (tmp_path / "hold").write_text("damaged")
    assert read_hold(str(tmp_path), str(tmp_path / "run")) == {"reason": "unreadable"}


@pytest.mark.parametrize(
    "wrong", [0.0, -3600.0, -365 * 86400.0, 365 * 86400.0], ids=["right", "an hour back", "a year back", "a year ahead"]
)
def test_no_step_of_the_clock_ends_a_hold_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    """Within one boot its span passes by CLOCK_BOOTTIME, and the time of day must have come too: a person may have given one. A
    clock that went back a year makes no hold of a year. After a reboot only the time of day counts."""
    assert main(["hold", "--reason", "riser", "--until", "4h", "--state-dir", str(tmp_path), "--run-dir", str(tmp_path)]) == 0
    true, boot = time.time, boot_clock.boottime
    monkeypatch.setattr(time, "time", lambda: true() + wrong)
    hold = read_hold(str(tmp_path), str(tmp_path))
    assert hold is not None and hold["reason"] == "riser" and not {"until_boot_seconds", "boot_id"} & set(hold)
    monkeypatch.setattr(admin_hold, "boottime", lambda: boot() + 4 * 3600 - 60)
    assert read_hold(str(tmp_path), str(tmp_path)) is not None
    monkeypatch.setattr(admin_hold, "boottime", lambda: boot() + 4 * 3600)
    monkeypatch.setattr(time, "time", lambda: true() + wrong + 4 * 3600)
    assert (read_hold(str(tmp_path), str(tmp_path)) is None) is (wrong != -3600.0)
    monkeypatch.setattr(time, "time", lambda: true() + wrong)
    monkeypatch.setattr(admin_hold, "boot_id", lambda root: "another")
    assert (read_hold(str(tmp_path), str(tmp_path)) is None) is (wrong > 0)


def test_the_end_of_a_hold_is_shown_as_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--state-dir", str(tmp_path), "--run-dir", str(tmp_path)]
    main(["hold", "--reason", "riser", "--until", "4h", *where])
    capsys.readouterr()
    assert main(["hold", "--show", "--json", *where]) == 0
    shown = printed_json.hold("hold", capsys.readouterr().out)
    assert shown["held"] is True and abs(shown["until_unix"] - time.time() - 4 * 3600) < 60
    (tmp_path / "hold").write_text('{"reason": "riser", "until_unix": "soon"}')
    assert main(["hold", "--show", "--json", *where]) == 0
    assert printed_json.hold("hold", capsys.readouterr().out) == {"held": True, "reason": "riser"}
