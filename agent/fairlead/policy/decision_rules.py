"""Holds the site's rules for deciding, and the part of them that belongs to one check."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

from msgspec import Meta, Struct

from fairlead.model.check import Check, CheckParams
from fairlead.model.finding import Mode

#: While the driver and its software are being installed, these checks have findings.
_SOFTWARE_CHECKS = frozenset({"driver_library", "driver_version", "fabric_manager", "gpu_fabric", "imex", "gpu_direct_rdma"})
DRIVER_CHECKS = frozenset({"nvml_responsive", "gpu_count", "gpu_readings"}) | _SOFTWARE_CHECKS
SETTING_PREFIX = "setting."


class Rules(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds the rules of the whole site: the ``policy`` part of the node document."""

    mode: Annotated[Mode, Meta(description="observe: nothing drains, whatever the checks' own modes say.")] = Mode.ENFORCE
    resume: Annotated[bool, Meta(description="Resume what fairlead drained once it is well again.")] = True
    return_command: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(
            description="Run on a drained node that is well again, before the resume (program and arguments, no shell): "
            "exit 0 lets it go back into service; empty: none."
        ),
    ] = ()
    return_deadline_seconds: Annotated[
        float, Meta(ge=1, le=86400, description="`return_command` is ended after so long, and has failed.")
    ] = 600.0
    return_retry_seconds: Annotated[
        int, Meta(ge=1, description="After so long a `return_command` that has failed is tried again.")
    ] = 3600
    after_job_max_seconds: Annotated[
        int, Meta(ge=0, description="A drain that waits for the job's end waits at most this long; 0: for ever.")
    ] = 86400
    strikes_max: Annotated[
        int,
        Meta(ge=0, description="After so many drains of one device in the window, only a person resumes the node; 0: no limit."),
    ] = 3
    strikes_window_seconds: Annotated[int, Meta(ge=0, description="Window of `strikes_max`.")] = 30 * 86400
    ladder_window_seconds: Annotated[
        int,
        Meta(
            ge=0,
            description="A fault that comes back on its GPU card so soon after a step wants the next step; 0: never.",
        ),
    ] = 86400
    ladder_repeats: Annotated[int, Meta(ge=1, le=10, description="So often is a step taken before the next one is due.")] = 1
    reboots_max: Annotated[
        int,
        Meta(
            ge=0,
            description="After so many boots for faults in the window the action is check_hardware; 0: no limit.",
        ),
    ] = 2
    reboots_window_seconds: Annotated[int, Meta(ge=0, description="Window of `reboots_max`.")] = 86400
    budget_percent: Annotated[
        int, Meta(ge=0, le=100, description="Nodes of a partition that may be unavailable before fairlead stops draining.")
    ] = 20
    budget_nodes: Annotated[int, Meta(ge=0, description="The same as a number of nodes; 0: no such limit.")] = 0
    budget_group_percent: Annotated[
        int,
        Meta(ge=0, le=100, description="The same for the nodes under one leaf switch or in one block of Slurm's topology."),
    ] = 50
    common_cause_nodes: Annotated[
        int,
        Meta(ge=0, description="After so many drains for one check in the window, the next drain waits; 0: no such rule."),
    ] = 3
    common_cause_window_seconds: Annotated[int, Meta(ge=1, description="Window of `common_cause_nodes`.")] = 600
    common_cause_hold_seconds: Annotated[
        int, Meta(ge=0, description="After so long a drain that waits is made all the same, within the budgets; 0: never.")
    ] = 3600
    suspect_job_nodes: Annotated[
        int,
        Meta(ge=0, description="After so many drains that blame one job, the next drain waits; 0: no such rule."),
    ] = 2
    suspect_job_hold_seconds: Annotated[
        int, Meta(ge=0, description="After so long a drain that waits is made all the same, within the budgets; 0: never.")
    ] = 86400
    own_users: Annotated[
        tuple[str, ...], Meta(description="Users whose name on our exact reason still means ours (root and SlurmUser).")
    ] = ("root", "slurm")
    foreign_prolog: Annotated[
        bool, Meta(description="The site has a prolog of its own: a reason `Prolog error` is never taken for ours.")
    ] = False


class Severity(IntEnum):
    """Orders findings by severity for confirmation: a warning, a drain that waits for the job's end, a drain at once."""

    NONE = 0
    WARN = 1
    AFTER_JOB = 2
    NOW = 3


class CheckPolicy(Struct, frozen=True, kw_only=True):
    """Says how the findings of one check count: after ``confirm`` bad sweeps of the last ``confirm_of``, until ``recover``
    clean sweeps in a row.

    confirm_after_job, confirm_warn: how many bad sweeps milder findings need. 0 means as many as ``confirm`` for the former,
    and 1 for the latter. A sweep with a severer finding counts for a milder one too. slow: the check's readings come with
    thorough sweeps only (``Check.slow``).
    """

    mode: Mode = Mode.OBSERVE
    confirm: int = 1
    confirm_after_job: int = 0
    confirm_warn: int = 0
    confirm_of: int = 1
    recover: int = 3
    boot_grace_seconds: int = 0
    slow: bool = False

    def needed(self, severity: Severity) -> int:
        """Return how many of the last ``confirm_of`` sweeps must be at least this severe before a finding counts."""
        if severity is Severity.WARN:
            return self.confirm_warn or 1
        return (self.confirm_after_job or self.confirm) if severity is Severity.AFTER_JOB else self.confirm

    @staticmethod
    def of(check: Check, params: CheckParams) -> CheckPolicy:
        """Return a check's defaults, overridden by its parameters."""
        confirm = params.confirm if params.confirm is not None else check.confirm
        window = params.confirm_of if params.confirm_of is not None else check.confirm_of
        after_job, warn = params.confirm_after_job or 0, params.confirm_warn or 0
        grace = params.boot_grace_seconds
        return CheckPolicy(
            mode=params.mode if params.mode is not None else check.mode,
            confirm=confirm,
            confirm_after_job=after_job,
            confirm_warn=warn,
            confirm_of=max(confirm, after_job, warn, window),
            recover=params.recover if params.recover is not None else check.recover,
            boot_grace_seconds=check.boot_grace_seconds if grace is None else grace,
            slow=check.slow,
        )

    @staticmethod
    def of_setting(mode: Mode) -> CheckPolicy:
        """Return the policy of a setting's drift. A value that was read back is certain, so one sweep is enough both ways.
        ``mode``: the mode of the declaration."""
        return CheckPolicy(mode=mode, recover=1, slow=True)


def policy_for(name: str, checks: dict[str, CheckPolicy]) -> CheckPolicy:
    """Return the policy of a check by its name. Drift of a setting already carries its mode in its level."""
    known = checks.get(name)
    if known is not None:
        return known
    return CheckPolicy(mode=Mode.ENFORCE if name.startswith(SETTING_PREFIX) else Mode.OBSERVE)


def enforced(name: str, policies: dict[str, CheckPolicy], rules: Rules) -> bool:
    """Say whether findings of this check may drain, by the site's mode and the check's own."""
    return rules.mode is Mode.ENFORCE and policy_for(name, policies).mode is Mode.ENFORCE
