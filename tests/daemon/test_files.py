"""Notices to systemd, and the marks that `fairlead apply` leaves for the agent."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from fairlead.daemon.notify import Notify
from fairlead.daemon.rules import applying


def test_notices_reach_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "10000000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        notify = Notify()
        notify.send("READY=1")
        assert server.recv(100) == b"READY=1" and notify.watchdog_seconds == 5.0
    notify.send("READY=1")  # nobody listens any more
    monkeypatch.delenv("NOTIFY_SOCKET")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert Notify().watchdog_seconds == 0.0


def test_the_mark_of_a_running_apply(tmp_path: Path) -> None:
    assert not applying(str(tmp_path))
    soon = int(time.clock_gettime(time.CLOCK_BOOTTIME)) + 60
    (tmp_path / "applying").write_text(f"1\t{os.getpid()}\t{soon}\n")
    assert applying(str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / "applying").write_text(f"1\t{gone.pid}\t{soon}\n")
    assert not applying(str(tmp_path)), "it was killed"
    (tmp_path / "applying").write_text("1\t7\t0\n")
    assert not applying(str(tmp_path))
