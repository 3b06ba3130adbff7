"""Decides by the reason and its user who drained a node.

A drain is fairlead's if its reason is exactly fairlead's text plus only texts that slurmctld itself appends, and if its user is
in ``own_users`` (such as root or SlurmUser). slurmctld appends texts in ``set_node_reason`` and, in 22.05, in
``set_node_reboot_reason`` (slurmctld/node_mgr.c). A match by prefix would also lift other people's drains (mej/nhc issue 134).
In this file, "ours" means a drain by the agent of this node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from enum import StrEnum

from msgspec import Struct

from fairlead.errors import DataError
from fairlead.model.verdict import one_line
from fairlead.policy.decision_rules import Rules

REASON_MAX = 240
PROLOG_ERROR = "Prolog error"
#: The texts that slurmctld appends to a reason. It does so in ping_nodes.c, controller.c and power_save.c, check_node_timers and
#: validate_node_specs, which call set_node_reason.
SUFFIXES = (
    " : Not responding",
    " : reboot issued",
    " : reboot complete",
    " : reboot timed out",
    " : ResumeTimeout reached",
)
MAINTAIN = "fairlead:maintain:"  # begins the reason of a drain by `fairlead maintain`
MANUAL = "manual"  # the check name of a drain by `fairlead drain`, which the agent never resumes by itself

# Matches the reason that slurmctld sets if a node registers with less than slurm.conf declares: one or more of these texts,
# comma-separated (validate_node_specs in slurmctld/node_mgr.c, interfaces/gres.c). Since about 23.11 this text *replaces* the
# reason of a node that is already drained.
_REGISTRATION = re.compile(
    r"(?:(?:[\w:./-]+ (?:count (?:reported lower than configured|too low|changed and jobs are using them) \(\d+ (?:<|!=) \d+\)"
    r"|type \([\w.-]+\) reported but not configured|type changed and jobs are using them)"
    r"|Could not unpack gres data|Low socket\*core\*thread count|Low CPUs|Low TmpDisk|CoreSpec differ"
    r"|Low RealMemory \(reported:\d+ < [\d.]+% of configured:\d+\))(?:, )?)+"
)
_TOKEN = re.compile(r"fairlead:([a-z0-9_.]{1,64}):([0-9a-z]{6,32}) ([ -~]*)")
_DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING"})
_ADMIN = frozenset({"FAIL", "FAILING"})
_KEEP_OFF = {
    "POWER_UP": "powering up",
    "POWERING_UP": "powering up",
    "POWER_DOWN": "powering down",
    "POWERING_DOWN": "powering down",
    "POWER_DRAIN": "powering down",
    "POWERED_DOWN": "powered down",
    "POW_UP": "powering up",
    "POW_DN": "powering down",
    "REBOOT": "rebooting",
    "REBOOT_REQUESTED": "rebooting",
    "REBOOT_ISSUED": "rebooting",
    "BOOT": "rebooting",
    "FUTURE": "a future node",
    "FUTR": "a future node",
    "UNKNOWN": "not registered yet",
    "UNK": "not registered yet",
    "ERROR": "in error",
}


_REBOOTING = frozenset(word for word, why in _KEEP_OFF.items() if why == "rebooting")
_REBOOT_MARK = re.compile(r" : reboot (issued|complete|timed out)|^reboot issued|^Reboot ASAP|^reboot requested", re.I)


class Owner(StrEnum):
    """Names the owner of a node's state.

    free: nobody drained the node. ours: this agent drained it. foreign: somebody else drained it, and fairlead changes nothing.
    prolog_error: Slurm drained the node because fairlead's prolog refused a job. fairlead may replace this reason. orphan: the
    reason has fairlead's form, but this node's ledger does not have the drain (``fairlead resume --adopt``). covered: this
    agent drained the node, and slurmctld has replaced the reason by its own text about the node's registration. The replaced
    reason was fairlead's, or somebody else has changed it before. So fairlead keeps the drain, and only a person lifts it.
    """

    FREE = "free"
    OURS = "ours"
    FOREIGN = "foreign"
    PROLOG_ERROR = "prolog_error"
    ORPHAN = "orphan"
    COVERED = "covered"


class Token(Struct, frozen=True):
    """Describes one drain by fairlead. ``token`` is random and comes from the caller. ``text`` is the exact reason."""

    check: str
    token: str
    summary: str

    @property
    def text(self) -> str:
        return f"fairlead:{self.check}:{self.token} {self.summary}"


def build(check: str, token: str, summary: str, *, job: int | None = None) -> Token:
    """Return a reason that slurmctld and the text output of scontrol show unchanged, with at most ``REASON_MAX`` characters.

    Square brackets, quotes, backslashes and " : " are replaced, because scontrol shows `reason [user@time]` and slurmctld
    appends " : ...". Raise DataError for a check name or token that ``parse`` could not read from the reason.
    """
    clean = one_line(summary).encode("ascii", "replace").decode()
    for char, instead in (("[", "("), ("]", ")"), ('"', "'"), ("\\", "/"), ("`", "'"), ("|", "/")):
        clean = clean.replace(char, instead)
    while " : " in clean:
        clean = clean.replace(" : ", ": ")
    tail = f" job={job}" if job is not None else ""
    head = f"fairlead:{check}:{token} "
    made = Token(check, token, (clean[: REASON_MAX - len(head) - len(tail)].strip() + tail).strip() or "-")
    if parse(made.text) != made:
        raise DataError(f"reason: check {check!r} or token {token!r} is malformed")
    return made


def strip_suffixes(reason: str) -> str:
    """Return the reason without the texts that slurmctld has appended, even if it has appended several."""
    while True:
        for suffix in SUFFIXES:
            if reason.endswith(suffix):
                reason = reason.removesuffix(suffix)
                break
        else:
            return reason


def parse(reason: str) -> Token | None:
    """Return the parts of a reason of fairlead's form, from the agent of any node, or None for any other reason."""
    match = _TOKEN.fullmatch(strip_suffixes(reason))
    return Token(*match.groups()) if match else None


def is_ours(reason: str, user: str, ours: Token, rules: Rules) -> bool:
    """Return whether a reason is exactly the text of our drain, plus only texts that slurmctld appends, and its user is in
    ``own_users``."""
    return user in rules.own_users and reason.startswith(ours.text) and strip_suffixes(reason) == ours.text


def normalise(states: Iterable[str]) -> frozenset[str]:
    """Return state words in upper case, without the marks of sinfo (``*`` not responding, ``~`` powered down, ``$``
    maintenance, ...)."""
    return frozenset(word for state in states for part in state.split("+") if (word := part.strip().strip("*~#!%$@^-").upper()))


def classify(
    states: Collection[str], reason: str, user: str, ours: Token | None, rules: Rules, *, prolog_refused: bool = False
) -> Owner:
    """Return the owner of the node's state. ``ours`` is the drain in this node's ledger, or None. ``prolog_refused`` says that by
    the ledger fairlead's prolog refused a job. If the owner is not certain, it is FOREIGN."""
    words = normalise(states)
    if words & _ADMIN:
        return Owner.FOREIGN
    if not words & _DRAINED:
        return Owner.FREE if "DOWN" not in words else _down(reason, user, ours, rules)
    if ours is not None and is_ours(reason, user, ours, rules):
        return Owner.OURS
    if prolog_refused and not rules.foreign_prolog and user in rules.own_users and strip_suffixes(reason) == PROLOG_ERROR:
        return Owner.PROLOG_ERROR
    if ours is not None and user in rules.own_users and _REGISTRATION.fullmatch(strip_suffixes(reason)):
        return Owner.COVERED
    known = parse(reason)
    if user in rules.own_users and known is not None and (ours is None or known.token != ours.token):
        return Owner.ORPHAN
    return Owner.FOREIGN  # also our token with another text: somebody has edited the reason, so the drain is no longer ours


def _down(reason: str, user: str, ours: Token | None, rules: Rules) -> Owner:
    """Return the owner of a node that is DOWN without DRAIN. An admin has set it down, or slurmctld has because the node does not
    answer. fairlead never changes the state DOWN."""
    return Owner.OURS if ours is not None and is_ours(reason, user, ours, rules) else Owner.FOREIGN


def keep_off(states: Collection[str]) -> str:
    """Return why fairlead must not change a node in these states (such as "powering up"), or "" if it may."""
    words = normalise(states)
    for word in sorted(words):
        if word in _KEEP_OFF:
            return _KEEP_OFF[word]
    if words & _ADMIN:
        return "set to fail by an admin"
    if "DOWN" in words and not words & _DRAINED:
        return "down"
    return ""


def keep_off_drain(states: Collection[str]) -> str:
    """Return why fairlead must not drain a node in these states, or "" if it may.

    A node that slurmctld is switching on may be drained: its agent runs, and the job that it is switched on for starts as soon as
    slurmd registers. Only a drain lets the prolog refuse that job. slurmctld keeps the drain when the node registers.
    """
    why = keep_off(states)
    return "" if why == "powering up" else why


def rebooting(states: Collection[str]) -> bool:
    """Return whether slurmctld is going to reboot the node, or waits until the node has rebooted."""
    return bool(normalise(states) & _REBOOTING)


def reboot_mark(reason: str) -> bool:
    """Return whether slurmctld has written into this reason that it reboots the node (``set_node_reason``,
    ``_slurm_rpc_reboot_nodes``)."""
    return _REBOOT_MARK.search(reason) is not None


def in_maintenance(states: Collection[str]) -> bool:
    """Return whether a maintenance reservation is running. During a maintenance reservation, drift and findings of the driver do
    not drain (``outcome.in_the_way``)."""
    return bool(normalise(states) & {"MAINT", "MAINTENANCE"})
