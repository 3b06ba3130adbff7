"""Decides whose drain it is. Only an exact match counts: a match by prefix would lift other people's drains (mej/nhc issue
134).

A drain is ours when the reason is our exact text plus only what slurmctld itself appends (``set_node_reason`` and, in 22.05,
``set_node_reboot_reason`` of slurmctld/node_mgr.c, with the words below), under our user or SlurmUser.
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
#: These call set_node_reason: ping_nodes.c, controller.c and power_save.c, check_node_timers, validate_node_specs.
SUFFIXES = (
    " : Not responding",
    " : reboot issued",
    " : reboot complete",
    " : reboot timed out",
    " : ResumeTimeout reached",
)
MAINTAIN = "fairlead:maintain:"  # drains by `fairlead maintain` are counted apart
MANUAL = "manual"  # the check name of a drain by `fairlead drain`, which the agent never resumes by itself

# What slurmctld says of a registration with less than slurm.conf has (validate_node_specs in slurmctld/node_mgr.c,
# interfaces/gres.c), comma-separated. Since 23.11 or so it *replaces* the reason of a node that is drained already.
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

    free: nobody drained the node. ours: we did. foreign: somebody else did, and we change nothing. prolog_error: Slurm has
    marked the node because our prolog refused a job; this mark may be replaced. orphan: the reason has fairlead's form, and
    this ledger does not know it (``fairlead resume --adopt``). covered: we drained the node, and slurmctld has replaced the
    reason by its own words about the node's registration. Under these may be our reason, or that of somebody who came in
    between. So the drain is kept, and only a person lifts it.
    """

    FREE = "free"
    OURS = "ours"
    FOREIGN = "foreign"
    PROLOG_ERROR = "prolog_error"
    ORPHAN = "orphan"
    COVERED = "covered"


class Token(Struct, frozen=True):
    """Describes one drain of ours. ``token`` is random and comes from the caller. ``text`` is the exact reason."""

    check: str
    token: str
    summary: str

    @property
    def text(self) -> str:
        return f"fairlead:{self.check}:{self.token} {self.summary}"


def build(check: str, token: str, summary: str, *, job: int | None = None) -> Token:
    """Return a reason that slurmctld, the text output of scontrol and the cap on its length leave unchanged.

    Square brackets, quotes, backslashes and " : " are replaced: scontrol shows `reason [user@time]`, and slurmctld appends " :
    ...". Raises DataError for a check name or token that could not be parsed back.
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
    """Return the reason without what slurmctld appends, however often it did."""
    while True:
        for suffix in SUFFIXES:
            if reason.endswith(suffix):
                reason = reason.removesuffix(suffix)
                break
        else:
            return reason


def parse(reason: str) -> Token | None:
    """Return the token in a reason of fairlead's form, from any node's agent, or None."""
    match = _TOKEN.fullmatch(strip_suffixes(reason))
    return Token(*match.groups()) if match else None


def is_ours(reason: str, user: str, ours: Token, rules: Rules) -> bool:
    """Say whether a reason is exactly our text, plus only slurmctld's suffixes, under a user of ours."""
    return user in rules.own_users and reason.startswith(ours.text) and strip_suffixes(reason) == ours.text


def normalise(states: Iterable[str]) -> frozenset[str]:
    """Return state words in upper case, without the marks of sinfo (``*`` not responding, ``~`` powered down, ``$``
    maintenance, ...)."""
    return frozenset(word for state in states for part in state.split("+") if (word := part.strip().strip("*~#!%$@^-").upper()))


def classify(
    states: Collection[str], reason: str, user: str, ours: Token | None, rules: Rules, *, prolog_refused: bool = False
) -> Owner:
    """Say whose the node's state is. ``ours``: the drain in our ledger. ``prolog_refused``: the ledger shows that our prolog
    refused the job. Anything that is not certain is FOREIGN."""
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
    return Owner.FOREIGN  # also our token with other words: somebody has edited the reason, so the drain is theirs now


def _down(reason: str, user: str, ours: Token | None, rules: Rules) -> Owner:
    """Say whether the node is DOWN without DRAIN. An admin has set it, or slurmctld has, because the node does not answer. We
    never change that."""
    return Owner.OURS if ours is not None and is_ours(reason, user, ours, rules) else Owner.FOREIGN


def keep_off(states: Collection[str]) -> str:
    """Say why nothing may be written about a node in these states ("powering up"), or "" when it may."""
    words = normalise(states)
    for word in sorted(words):
        if word in _KEEP_OFF:
            return _KEEP_OFF[word]
    if words & _ADMIN:
        return "set to fail by an admin"
    if "DOWN" in words and not words & _DRAINED:
        return "down"
    return ""


def rebooting(states: Collection[str]) -> bool:
    """Say whether slurmctld is to reboot the node, or waits for it to come back."""
    return bool(normalise(states) & _REBOOTING)


def reboot_mark(reason: str) -> bool:
    """Say whether slurmctld has written into this reason that it reboots the node (``set_node_reason``,
    ``_slurm_rpc_reboot_nodes``)."""
    return _REBOOT_MARK.search(reason) is not None


def in_maintenance(states: Collection[str]) -> bool:
    """Say whether a maintenance reservation is running. During one, drift and findings of the driver do not drain
    (``outcome.in_the_way``)."""
    return bool(normalise(states) & {"MAINT", "MAINTENANCE"})
