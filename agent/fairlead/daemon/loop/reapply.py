"""Applies settings again that the reset of a PCIe device has taken away, as soon as the agent sees it.

A reset (of a GPU, of a link by the kernel's error recovery, by a person) brings config space back to its power-on values (PCI
Express Base Specification, Conventional Reset), and where the kernel restores what it had saved, it turns ACS on anew
(drivers/pci/pci.c, pci_restore_state calls pci_enable_acs). So it is with the settings that are ``lost_by_reset``. The drift is
found by the thorough sweep; then `fairlead apply --only NAMES` is run as a transient unit (systemd-run(1)), outside the agent's
sandbox, by the code of the boot unit.

Only bits that an apply has made before: their undo record is there, so what nobody has applied yet, or what was undone, stays as
it is. A device that does not take its bits is not asked again: not before it was once seen as declared, since only a reset after
that is a new one. Never while a job runs, while somebody holds the node or has disabled fairlead, or beside another apply.
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
RUN_SECONDS = 240.0  # at most: beyond it systemd does not answer, and drift counts again
#: `apply` waits up to 90 s for another one; what does not end by itself is ended by systemd.
RUN = ("systemd-run", "--quiet", "--collect", "--wait", f"--unit={UNIT}", "-p", "RuntimeMaxSec=180", "-p", "NoNewPrivileges=yes",
       "-p", "ProtectHome=yes", "-p", "PrivateTmp=yes")  # fmt: skip


class Reapply:
    """Runs `fairlead apply` for what a reset took away. ``disk``: where the records of earlier changes lie.

    ``under_way``: it runs now; as beside every apply, drift of a setting drains nothing until it has ended.
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
        self._drifted: dict[str, set[str]] = {}  # what the run is for
        self._refusals = Refusals()

    @property
    def under_way(self) -> bool:
        return self._process is not None and time.monotonic() < self._until

    def restore(self, found: Sequence[Finding], agent: AgentOptions, *, job_running: bool) -> None:
        """Start a run where one is needed and may be made now. ``found``: the findings of a sweep that judged the settings too.
        A disk that does not answer ends nothing here."""
        drifted = self._refusals.without(lost(found))
        if not drifted:
            self._wait_seconds, self._next = FIRST_WAIT_SECONDS, 0.0
        elif self._process is None and time.monotonic() >= self._next and self._may_run(agent, job_running):
            with suppress(OSError, HostError):  # no record, no run: what is wrong with the records, `fairlead apply` says
                if names := self._disk.do(partial(made_before, self._root, drifted)):
                    self._drifted = drifted
                    self._start(names)

    def _may_run(self, agent: AgentOptions, job_running: bool) -> bool:
        """Return whether a run may begin: the site wants it, this is no machine tree, and no job, other apply, person's hold
        or disabling is in the way."""
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
    """Remembers the devices, by setting, that did not take their bits in a run that failed. Such a device is not asked again
    until a sweep finds it as declared: only what drifts after that was lost by another reset."""

    def __init__(self) -> None:
        self._refused: set[tuple[str, str]] = set()

    def add(self, drifted: Mapping[str, Collection[str]]) -> None:
        """Note that a run for these has failed; the next sweep shows which of them it did not help."""
        self._refused |= {(name, device) for name, devices in drifted.items() for device in devices}

    def without(self, drifted: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
        """Return what a sweep found to have drifted, without the devices that have refused."""
        self._refused &= {(name, device) for name, devices in drifted.items() for device in devices}
        new = {name: {d for d in devices if (name, d) not in self._refused} for name, devices in drifted.items()}
        return {name: devices for name, devices in new.items() if devices}


def lost(found: Sequence[Finding]) -> dict[str, set[str]]:
    """Return the devices, by setting, whose bits are not as declared and may have gone with a reset."""
    known = settings.load()
    drifted: dict[str, set[str]] = {}
    for f in found:
        name = f.check.removeprefix(SETTING_PREFIX) if f.check.startswith(SETTING_PREFIX) else ""
        if name and known[name].lost_by_reset and f.device and f.level in (Level.WARN, Level.DRAIN):
            drifted.setdefault(name, set()).add(f.device)
    return drifted


def made_before(root: Root, drifted: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """Return the settings of which fairlead had changed such bits before. Raises HostError for a record that is none."""
    from fairlead.host.change import undo_changes  # not in the memory of an agent that never needs it

    changed = [change for _, change in undo_changes(root)]
    return tuple(sorted({c.setting for c in changed if isinstance(c, PciBits) and c.address in drifted.get(c.setting, ())}))
