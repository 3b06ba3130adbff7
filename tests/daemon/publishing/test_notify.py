"""Notices to systemd."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fairlead.daemon.publishing.notify import Notify


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
