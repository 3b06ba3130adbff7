"""The agent's systemd unit: its sandbox must leave it what it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parents[2] / "templates/etc/systemd/system/fairlead-agent.service"


@pytest.mark.parametrize("key", ["ProtectClock", "PrivateDevices", "DeviceAllow", "DevicePolicy", "ProtectKernelLogs"])
def test_the_sandbox_leaves_the_devices(key: str) -> None:
    """Each of them takes /dev/kmsg or /dev/nvidia* away, ProtectClock by the way (systemd issue 18142)."""
    keys = [line.partition("=")[0] for line in UNIT.read_text().splitlines() if not line.startswith("#")]
    assert key not in keys


def test_it_cannot_set_the_clock_all_the_same() -> None:
    (line,) = [line for line in UNIT.read_text().splitlines() if line.startswith("CapabilityBoundingSet=")]
    assert "CAP_SYS_TIME" not in line and "CAP_SYSLOG" in line and "~" not in line
