"""Other health checkers on the same node: run as they are, from their own paths, where this machine has them.

Each is asked on the healthy node first: what is not clean there is not scored. A peer is a command that is run when
somebody runs it, so its time is that of one run; how often it runs is the site's choice and comes on top. What a row cannot
show a peer is said: the kernel log is a FIFO here, which only fairlead can be told to read, and there is no nvidia-smi.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.roots import LabError
from tests.scorecard.entry import Call, Document, Fault, File, Nvml, Run
from tests.scorecard.score_node import ScoreNode

RUN_SECONDS = 20.0
LATE = "did not end"  # neither a word of warning nor health
#: gcm's checks that are clean on this node, and the beginnings of the signals that each of them reads.
_GCM = {
    "check-nvidia-smi lab nagios --log-folder /tmp/gcm -c gpu_num -c clock_freq -c gpu_temperature -c running_procs"
    " -c gpu_mem_usage -c ecc_uncorrected_volatile_total -c ecc_corrected_volatile_total -c row_remap --gpu_num 8"
    " --gpu_temperature_threshold 85 --gpu_mem_usage_threshold 1500 --ecc_uncorrected_volatile_threshold 0"
    " --ecc_corrected_volatile_threshold 50000000 --gpu_app_freq 1980 --gpu_app_mem_freq 2619": ("nvml", "call", "run library"),
    "check-processor cpufreq-governor lab nagios --log-folder /tmp/gcm --governor performance": ("file /sys/devices/system/cpu",),
    "check-storage disk-usage lab nagios --log-folder /tmp/gcm -v /": ("run file system",),
}


@dataclass
class Peer:
    """One peer. program: found by $VARIABLE or in PATH, None: not installed. commands: run in turn, 0 is healthy.

    note: what is to be known of it here. dirty: commands that are not clean on the healthy node, with what they said. reads:
    beginnings of the signals that a command reads, where that is known and it is not all.
    """

    name: str
    program: str | None
    version: str
    commands: tuple[str, ...]
    note: str = ""
    prepare: Callable[[ScoreNode], str] | None = None
    dirty: dict[str, str] = field(default_factory=dict)
    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def settle(self, node: ScoreNode) -> None:
        """Its own set-up in the healthy node, and what of it is clean there."""
        if self.prepare is not None:
            self.note = self.prepare(node) or self.note
        for command in self.commands:
            code, said, _ = run(node, command)
            if code:
                self.dirty[command] = said
        self.commands = tuple(c for c in self.commands if c not in self.dirty)

    def sees(self, signals: frozenset[str]) -> tuple[str, ...]:
        """The commands that read one of these signals."""
        return tuple(c for c in self.commands if c not in self.reads or any(s.startswith(self.reads[c]) for s in signals))

    def ask(self, node: ScoreNode, signals: frozenset[str]) -> tuple[bool, str, float]:
        """Whether it complains now, with what words, and after how many seconds."""
        spent = 0.0
        for command in self.sees(signals):
            code, said, seconds = run(node, command)
            spent += seconds
            if code:
                return said != LATE, said, spent
        return False, "", spent


@dataclass
class PeerSeen:
    """What a peer made of a row. shown "": nothing of the row can be seen by it here, ``why`` says why."""

    name: str
    shown: bool
    why: str = ""
    found: bool = False
    said: str = ""
    seconds: float = 0.0
    twin_found: bool = False
    twin_said: str = ""


def run(node: ScoreNode, command: str) -> tuple[int, str, float]:
    """A command in the node: exit code (124: it did not end), its last line, seconds."""
    start = time.monotonic()
    done = node.command(f"timeout -k 1 {RUN_SECONDS:g} {command}", check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    said = lines[-1][:200] if lines else f"exit code {done.returncode}"
    return done.returncode, LATE if done.returncode in (124, 137) else said, time.monotonic() - start


def installed() -> list[Peer]:
    """Every peer that is known, installed or not."""
    return [_nhc(), _gcm(), _other("gpud", "GPUD", "scan"), _other("dcgmi", "DCGMI", "health -c")]


def _program(variable: str, name: str) -> str | None:
    given = os.environ.get(variable, "")
    if given and Path(given).is_dir():
        given = str(Path(given, name))
    found = given if given and Path(given).is_file() else shutil.which(name)
    return str(Path(found).absolute()) if found else None


def _version(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "version unknown"
    found = re.search(r"\d+\.\d[\w.+-]*", done.stdout + done.stderr)
    return found[0] if found else "version unknown"


def _nhc() -> Peer:
    program = _program("NHC", "nhc")
    if program is None:
        return Peer("mej/nhc", None, "", ())
    home = Path(program).parent
    scripts = next((p for p in (home / "scripts", Path("/etc/nhc/scripts")) if p.is_dir()), home)
    helpers = next((p for p in (home / "helpers", Path("/usr/libexec/nhc")) if p.is_dir()), home)
    generator = next((p for p in (home / "nhc-genconf", Path("/usr/sbin/nhc-genconf")) if p.is_file()), None)
    place = f"CONFDIR=/etc/nhc HELPERDIR={helpers} "

    def prepare(node: ScoreNode) -> str:
        if generator is None:
            return "its nhc-genconf was not found"
        node.command(
            "mkdir -p /etc/nhc /sys/class/infiniband_mad; echo 5 > /sys/class/infiniband_mad/abi_version;"
            f" ln -sfn {scripts} /etc/nhc/scripts;"
            f" {place} bash {generator} -c /etc/nhc/all.conf >/dev/null || [ -s /etc/nhc/all.conf ];"
            " sed /check_ps_loadavg/d /etc/nhc/all.conf > /etc/nhc/nhc.conf"
        )
        return (
            "configured by its own nhc-genconf on the healthy node, without check_ps_loadavg (the load is this machine's);"
            " its GPU checks need nvidia-smi or nvidia-healthmon, which the node has not"
        )

    version = _version("grep", "-m1", "nhc_version", str(home / "configure.ac"))
    command = f"env {place} bash {program} -c /etc/nhc/nhc.conf -l - MARK_OFFLINE=0 DETACHED_MODE=0"
    return Peer("mej/nhc", program, version, (command,), prepare=prepare)


def _gcm() -> Peer:
    program = _program("GCM", "health_checks")
    if program is None:
        return Peer("facebookresearch/gcm", None, "", ())
    note = "its Xid check greps dmesg, which in the node is this machine's own log"
    return Peer(
        "facebookresearch/gcm",
        program,
        os.environ.get("GCM_VERSION") or _version(program, "--version"),
        tuple(f"{program} {c}" for c in _GCM),
        note,
    )


def _other(name: str, variable: str, words: str) -> Peer:
    program = _program(variable, name)
    if program is None:
        return Peer(name, None, "", ())
    return Peer(name, program, _version(program, "--version"), (f"{program} {words}",))


def play_all(peer: Peer, node: ScoreNode, faults: Sequence[Fault], tell: Callable[[str], None]) -> dict[str, PeerSeen]:
    """Every row before one peer, on a node of its own."""
    found: dict[str, PeerSeen] = {}
    try:
        peer.settle(node)
    except LabError as error:  # one that cannot be set up takes nobody's results with it
        why = f"could not be set up in the node, whose /tmp is its own: {str(error)[-200:]}"
        peer.commands, peer.dirty = (), {"set-up": why}
        tell(f"{peer.name}: {why}")
    for fault in faults if peer.commands else ():
        found[fault.name] = seen = play(peer, node, fault)
        if seen.shown:
            tell(f"{peer.name}: {fault.title}: {'found' if seen.found else 'missed'}{', twin too' if seen.twin_found else ''}")
    return found


def play(peer: Peer, node: ScoreNode, fault: Fault) -> PeerSeen:
    """One row before one peer: fault and twin, as far as they are of the hardware."""
    seen = PeerSeen(peer.name, shown=True)
    steps = [s for s in fault.steps if isinstance(s, Nvml | Call | File | Run)]
    if not steps:
        return PeerSeen(
            peer.name, shown=False, why="kernel log" if any(s.signal.startswith("kernel") for s in fault.steps) else "document"
        )
    try:
        for step in steps:
            node.take(step)
        seen.found, seen.said, seen.seconds = peer.ask(node, fault.signals() | fault.twin_signals())
        node.restore()
        if any(isinstance(s, Document) for s in fault.twin):
            return seen  # the twin is what another site declares, which a peer was not told
        for step in fault.twin:
            if isinstance(step, Nvml | Call | File | Run):
                node.take(step)
        seen.twin_found, seen.twin_said, _ = peer.ask(node, fault.signals() | fault.twin_signals())
    finally:
        node.restore()
    return seen
