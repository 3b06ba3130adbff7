"""Applies settings again that were lost by the reset of a PCIe device, as soon as the agent sees that they are lost.

A GPU reset, the kernel's error recovery of a link, or a person may reset a device. The reset sets config space back to its
power-on values (PCI Express Base Specification, Conventional Reset). If the kernel restores its saved values, it enables ACS
again (drivers/pci/pci.c, pci_restore_state calls pci_enable_acs). The settings that such a reset can lose are declared with
``lost_by_reset``. The thorough sweep finds the drift. Then the agent runs `fairlead apply --only NAMES` as a transient unit
(systemd-run(1)), outside the agent's sandbox, with the installed fairlead that the boot unit runs.

A run sets only bits that an earlier apply has set, because those have an undo record. Bits that were never applied, or were
undone, stay as they are. If a run fails to set the bits of a device, the agent tries that device again only after a sweep has
found the bits as declared. Only drift after that sweep comes from a new reset. No run starts while a job or another apply runs,
during an admin hold, or while fairlead is disabled.
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
RUN_SECONDS = 240.0  # a run without an end after this time does not suppress drift any more, because systemd does not answer
#: `apply` waits up to 90 s for another apply. systemd ends a run that takes longer than RuntimeMaxSec.
RUN = ("systemd-run", "--quiet", "--collect", "--wait", f"--unit={UNIT}", "-p", "RuntimeMaxSec=180", "-p", "NoNewPrivileges=yes",
       "-p", "ProtectHome=yes", "-p", "PrivateTmp=yes")  # fmt: skip


class Reapply:
    """Runs `fairlead apply` for the settings that a reset has lost. ``disk``: the disk with the undo records of earlier changes.

    ``under_way``: whether a run goes on now. During a run, as during every apply, drift of a setting does not drain the node.
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
        self._drifted: dict[str, set[str]] = {}  # the drifted devices of each setting that the last run was started for
        self._refusals = Refusals()

    @property
    def under_way(self) -> bool:
        return self._process is not None and time.monotonic() < self._until

    def restore(self, found: Sequence[Finding], agent: AgentOptions, *, job_running: bool) -> None:
        """Start a run if one is needed and allowed now. ``found``: the findings of a sweep that judged the settings too. If the
        disk returns an error, no run starts."""
        drifted = self._refusals.without(lost(found))
        if not drifted:
            self._wait_seconds, self._next = FIRST_WAIT_SECONDS, 0.0
        elif self._process is None and time.monotonic() >= self._next and self._may_run(agent, job_running):
            # if the undo records cannot be read, no run starts; `fairlead apply` reports the error
            with suppress(OSError, HostError):
                if names := self._disk.do(partial(made_before, self._root, drifted)):
                    self._drifted = drifted
                    self._start(names)

    def _may_run(self, agent: AgentOptions, job_running: bool) -> bool:
        """Return whether a run may begin. The site must allow it, and this must not be a machine tree. No job and no other apply
        may run, there must be no admin hold, and fairlead must not be disabled."""
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
    """Remembers the devices, by setting, whose bits a failed run could not set. Such a device is not tried again until a sweep
    finds its bits as declared. Only drift after that sweep comes from a new reset."""

    def __init__(self) -> None:
        self._refused: set[tuple[str, str]] = set()

    def add(self, drifted: Mapping[str, Collection[str]]) -> None:
        """Record that a run for these devices has failed. The next sweep shows which of them still drift."""
        self._refused |= {(name, device) for name, devices in drifted.items() for device in devices}

    def without(self, drifted: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
        """Return the drift that a sweep found, without the devices whose bits a failed run could not set."""
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
    """Return the settings for which fairlead has changed bits of the drifted devices before. Raises HostError for an undo record
    that cannot be read."""
    from fairlead.host.change import undo_changes  # imported here, to save memory in an agent that never needs it

    changed = [change for _, change in undo_changes(root)]
    return tuple(sorted({c.setting for c in changed if isinstance(c, PciBits) and c.address in drifted.get(c.setting, ())}))
