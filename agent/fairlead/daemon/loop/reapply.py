"""Applies settings again that the reset of a PCIe device has lost, as soon as the agent sees it.

A reset (of a GPU, of a link by the kernel's error recovery, by a person) sets config space back to its power-on values (PCI
Express Base Specification, Conventional Reset). Where the kernel restores what it had saved, it enables ACS again
(drivers/pci/pci.c, pci_restore_state calls pci_enable_acs). Settings that are lost in this way are marked ``lost_by_reset``.
The thorough sweep finds the drift. Then the agent runs `fairlead apply --only NAMES` as a transient unit (systemd-run(1)),
outside the agent's sandbox, with the code of the boot unit.

Only bits that an earlier apply has set are set again, because their undo record exists. What was never applied, or was undone,
stays as it is. A device that does not take its bits is not tried again before a sweep has found it as declared, because only a
reset after that is a new one. There is no run while a job runs, under a person's hold, where fairlead is disabled, or beside
another apply.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from fairlead import settings
from fairlead.config import AgentOptions
from fairlead.daemon.loop.apply_marks import applying
from fairlead.drains.admin_hold import DISABLED, AdminHold, barred
from fairlead.errors import ExitCode, HostError
from fairlead.history.memory import History
from fairlead.host import log
from fairlead.host.bounded_disk import Disk
from fairlead.host.root import Root
from fairlead.model.change import PciBits
from fairlead.model.finding import Finding, Level
from fairlead.policy.decision_rules import SETTING_PREFIX

PROGRAM = "/opt/fairlead/current/bin/fairlead"
UNIT = "fairlead-reapply"
FIRST_WAIT_SECONDS = 60.0
LAST_WAIT_SECONDS = 3600.0
RUN_SECONDS = 240.0  # after this time systemd does not answer, and drift counts again
#: `apply` waits up to 90 s for another apply. systemd ends a run that takes longer than RuntimeMaxSec.
RUN = ("systemd-run", "--quiet", "--collect", "--wait", f"--unit={UNIT}", "-p", "RuntimeMaxSec=180", "-p", "NoNewPrivileges=yes",
       "-p", "ProtectHome=yes", "-p", "PrivateTmp=yes")  # fmt: skip


class Reapply:
    """Runs `fairlead apply` for the settings that a reset has lost. ``disk``: the disk with the records of earlier changes.

    ``under_way``: a run goes on now. As beside every apply, drift of a setting does not drain the node until it has ended.
    """

    def __init__(self, document_path: str, root: Root, disk: Disk, history: History) -> None:
        self._document_path = document_path
        self._root = root
        self._disk = disk
        self._history = history
        self._hold = AdminHold(disk)
        self._process: subprocess.Popen[bytes] | None = None
        self._wait_seconds = FIRST_WAIT_SECONDS
        self._next = self._until = 0.0
        self._drifted: dict[str, set[str]] = {}  # the drift that the run is for
        self._refusals = Refusals()

    @property
    def under_way(self) -> bool:
        return self._process is not None and time.monotonic() < self._until

    def restore(self, found: Sequence[Finding], agent: AgentOptions, *, job_running: bool) -> None:
        """Start a run where one is needed and allowed now. ``found``: the findings of a sweep that judged the settings too. An
        error of the disk is ignored here."""
        drifted = self._refusals.without(lost(found))
        if not drifted:
            self._wait_seconds, self._next = FIRST_WAIT_SECONDS, 0.0
        elif self._process is None and time.monotonic() >= self._next and self._may_run(agent, job_running):
            # without records there is no run; `fairlead apply` reports what is wrong with them
            with suppress(OSError, HostError):
                if names := self._disk.do(partial(made_before, self._root, drifted)):
                    self._drifted = drifted
                    self._start(names)

    def _may_run(self, agent: AgentOptions, job_running: bool) -> bool:
        """Return whether a run may begin: the site wants it, this is not a machine tree, and no job, other apply, person's
        hold or disabling prevents it."""
        if not agent.reapply or not self._root.is_live or job_running or applying(agent.run_dir):
            return False
        return not barred(self._hold, agent.state_dir, agent.run_dir, self._root.join(DISABLED))

    def _start(self, names: Sequence[str]) -> None:
        now = time.monotonic()
        self._next, self._until = now + self._wait_seconds, now + RUN_SECONDS
        self._wait_seconds = min(2 * self._wait_seconds, LAST_WAIT_SECONDS)
        words = ",".join(names)
        command = [*RUN, PROGRAM, "apply", "--document", self._document_path, "--only", words]
        try:
            self._process = self._disk.do(lambda: subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
        except OSError as e:
            log.line(log.ERROR, "cannot apply settings again after a reset", settings=words, error=f"{command[0]}: {e.strerror}")
            return
        log.line(log.NOTICE, "applying settings again after a reset", settings=words, journal=f"journalctl -u {UNIT}")
        self._history.event("applied again after a reset", words)

    def ended(self) -> bool:
        """Return whether a run has ended since the last call. It never waits."""
        if self._process is None or (code := self._process.poll()) is None:
            return False
        self._process = None
        if code:
            log.line(log.WARNING, "apply after a reset failed", exit=code, journal=f"journalctl -u {UNIT}")
        if code == ExitCode.UNAVAILABLE:
            self._refusals.add(self._drifted)
        return True


class Refusals:
    """Keeps the devices, by setting, that did not take their bits in a run that failed. Such a device is not tried again until
    a sweep finds it as declared. Only drift after that comes from another reset."""

    def __init__(self) -> None:
        self._refused: set[tuple[str, str]] = set()

    def add(self, drifted: Mapping[str, Collection[str]]) -> None:
        """Record that a run for these devices has failed. The next sweep shows for which of them."""
        self._refused |= {(name, device) for name, devices in drifted.items() for device in devices}

    def without(self, drifted: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
        """Return the drift that a sweep found, without the devices that did not take their bits."""
        self._refused &= {(name, device) for name, devices in drifted.items() for device in devices}
        new = {name: {d for d in devices if (name, d) not in self._refused} for name, devices in drifted.items()}
        return {name: devices for name, devices in new.items() if devices}


def lost(found: Sequence[Finding]) -> dict[str, set[str]]:
    """Return the devices, by setting, whose bits are not as declared and may have been lost by a reset."""
    known = settings.load()
    drifted: dict[str, set[str]] = {}
    for f in found:
        name = f.check.removeprefix(SETTING_PREFIX) if f.check.startswith(SETTING_PREFIX) else ""
        if name and known[name].lost_by_reset and f.device and f.level in (Level.WARN, Level.DRAIN):
            drifted.setdefault(name, set()).add(f.device)
    return drifted


def made_before(root: Root, drifted: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """Return the settings for which fairlead has changed such bits before. Raises HostError for a record that cannot be read."""
    from fairlead.host.change import undo_changes  # imported here, to save memory in an agent that never needs it

    changed = [change for _, change in undo_changes(root)]
    return tuple(sorted({c.setting for c in changed if isinstance(c, PciBits) and c.address in drifted.get(c.setting, ())}))
