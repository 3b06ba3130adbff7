"""Reads and changes the state of systemd units."""

from __future__ import annotations

import glob
import os
import subprocess
from typing import NamedTuple

from .stop import Stop

SYSTEMCTL_SECONDS = 60


class SystemdUnit(NamedTuple):
    """Describes the state of one unit. stale: systemd has not read the unit's file since it was changed."""

    enabled: bool = False
    active: bool = False
    stale: bool = False


def systemctl(*arguments: str) -> tuple[int, str, str]:
    """Run systemctl, and return (exit status, output, errors). Raises Stop if systemctl is not installed or does not answer."""
    try:
        done = subprocess.run(
            ["systemctl", "--no-ask-password", *list(arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SYSTEMCTL_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise Stop("systemctl: not installed", "fairlead needs a node that runs systemd") from None
    except subprocess.TimeoutExpired:
        raise Stop("systemctl {}: no answer within {} s".format(" ".join(arguments), SYSTEMCTL_SECONDS)) from None
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace").strip()


def systemctl_or_stop(*arguments: str) -> None:
    """Run systemctl. Raises Stop if it is not installed, does not answer, or fails."""
    code, _, words = systemctl(*arguments)
    if code:
        raise Stop("systemctl {}: {}".format(" ".join(arguments), (words.splitlines() or [f"exit code {code}"])[0]))


def enabled_scratch_units() -> list[str]:
    """Return the enabled fairlead-scratch@ units, one for each local disk for jobs, including units no longer declared."""
    found = glob.glob("/etc/systemd/system/*.wants/fairlead-scratch@*")
    return sorted(os.path.basename(path) for path in found)


def unit_states(names: list[str]) -> dict[str, SystemdUnit]:
    """Return the states of units by name. systemctl is called once."""
    _, text, _ = systemctl("show", "--property=Id,UnitFileState,ActiveState,NeedDaemonReload", *names)
    states = {}
    for block in text.split("\n\n"):
        fields = dict(line.partition("=")[::2] for line in block.splitlines())
        if fields.get("Id"):
            states[fields["Id"]] = SystemdUnit(
                enabled=fields.get("UnitFileState") == "enabled",
                active=fields.get("ActiveState") in ("active", "activating", "reloading"),
                stale=fields.get("NeedDaemonReload") == "yes",
            )
    return states
