"""Defines the policy rules of the whole site (``Rules``) and of one check (``CheckPolicy``)."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

from msgspec import Meta, Struct

from fairlead.model.check_definition import Check, CheckParams
from fairlead.model.finding import Mode

#: While the driver and its software are being installed, these checks have findings.
_SOFTWARE_CHECKS = frozenset({"driver_library", "driver_version", "fabric_manager", "gpu_fabric", "imex", "gpu_direct_rdma"})
DRIVER_CHECKS = frozenset({"nvml_responsive", "gpu_count", "gpu_readings"}) | _SOFTWARE_CHECKS
SETTING_PREFIX = "setting."


class Rules(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds the rules of the whole site: the ``policy`` part of the node document."""

    mode: Annotated[Mode, Meta(description="With `observe` no finding drains, whatever the mode of its check is.")] = Mode.ENFORCE
    resume: Annotated[bool, Meta(description="Resume a node that fairlead drained after its findings have gone.")] = True
    return_command: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(
            description="Command that runs on a drained node without findings, before the resume (program and arguments). "
            "Exit code 0 lets the node go back into service. Empty: none."
        ),
    ] = ()
    return_deadline_seconds: Annotated[
        float, Meta(ge=1, le=86400, description="Seconds after which `return_command` is ended and counts as failed.")
    ] = 600.0
    return_retry_seconds: Annotated[int, Meta(ge=1, description="Seconds after which a failed `return_command` runs again.")] = (
        3600
    )
    after_job_max_seconds: Annotated[
        int, Meta(ge=0, description="Longest time in seconds that a drain waits for the end of a job. 0: no limit.")
    ] = 86400
    strikes_max: Annotated[
        int,
        Meta(
            ge=0, description="With this many drains for one device in the window, only a person resumes the node. 0: no limit."
        ),
    ] = 3
    strikes_window_seconds: Annotated[int, Meta(ge=0, description="Window of `strikes_max`, in seconds.")] = 30 * 86400
    ladder_window_seconds: Annotated[
        int,
        Meta(
            ge=0,
            description="If a fault returns on a GPU card within this many seconds after a step, the next step is due. 0: never.",
        ),
    ] = 86400
    ladder_repeats: Annotated[
        int, Meta(ge=1, le=10, description="How many times a step is taken before the next step is due.")
    ] = 1
    reboots_max: Annotated[
        int,
        Meta(
            ge=0,
            description="With this many boots for faults in the window, the action is check_hardware. 0: no limit.",
        ),
    ] = 2
    reboots_window_seconds: Annotated[int, Meta(ge=0, description="Window of `reboots_max`, in seconds.")] = 86400
    budget_percent: Annotated[
        int,
        Meta(ge=0, le=100, description="Percent of a partition's nodes that may be unavailable before fairlead stops draining."),
    ] = 20
    budget_nodes: Annotated[
        int,
        Meta(ge=0, description="`budget_percent` as a number of nodes. 0: no such limit."),
    ] = 0
    budget_group_percent: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="`budget_percent` for the nodes under one leaf switch or in one block of Slurm's topology.",
        ),
    ] = 50
    common_cause_nodes: Annotated[
        int,
        Meta(ge=0, description="With this many drains for one check in the window, the next drain waits. 0: no such rule."),
    ] = 3
    common_cause_window_seconds: Annotated[int, Meta(ge=1, description="Window of `common_cause_nodes`, in seconds.")] = 600
    common_cause_hold_seconds: Annotated[
        int, Meta(ge=0, description="Seconds after which the waiting drain is made, if the budgets allow it. 0: never.")
    ] = 3600
    suspect_job_nodes: Annotated[
        int,
        Meta(ge=0, description="With this many drains that blame one job, the next drain waits. 0: no such rule."),
    ] = 2
    suspect_job_hold_seconds: Annotated[
        int, Meta(ge=0, description="Seconds after which the waiting drain is made, if the budgets allow it. 0: never.")
    ] = 86400
    own_users: Annotated[
        tuple[str, ...], Meta(description="Users who may have written a drain of fairlead: root and SlurmUser.")
    ] = ("root", "slurm")
    foreign_prolog: Annotated[
        bool, Meta(description="The site has a prolog of its own, so fairlead never treats a drain `Prolog error` as its own.")
    ] = False


class Severity(IntEnum):
    """Orders findings by severity for their confirmation: no finding, a warning, a drain after the job's end, a drain at once."""

    NONE = 0
    WARN = 1
    AFTER_JOB = 2
    NOW = 3


class CheckPolicy(Struct, frozen=True, kw_only=True):
    """Describes when the findings of one check count: from ``confirm`` bad sweeps of the last ``confirm_of`` on, until
    ``recover`` clean sweeps in a row.

    confirm_after_job: how many bad sweeps a finding needs whose drain waits for the job's end (0: as many as ``confirm``).
    confirm_warn: how many bad sweeps a warning needs (0: one). A sweep with a severer finding also counts for a milder finding.
    slow: the check is judged on thorough sweeps only (``Check.slow``).
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
        """Return the policy of a check: its defaults, overridden by its parameters."""
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
        """Return the policy of a setting's drift. A setting's value is read exactly, so one sweep is enough to begin and to end a
        finding. ``mode`` is the mode that the site declares for the setting."""
        return CheckPolicy(mode=mode, recover=1, slow=True)


def policy_for(name: str, checks: dict[str, CheckPolicy]) -> CheckPolicy:
    """Return the policy of a check by its name. Without a known policy, drift of a setting is enforced, because its level already
    depends on the setting's mode. Any other check is observed."""
    known = checks.get(name)
    if known is not None:
        return known
    return CheckPolicy(mode=Mode.ENFORCE if name.startswith(SETTING_PREFIX) else Mode.OBSERVE)


def enforced(name: str, policies: dict[str, CheckPolicy], rules: Rules) -> bool:
    """Return whether findings of this check may drain, by the site's mode and the check's mode."""
    return rules.mode is Mode.ENFORCE and policy_for(name, policies).mode is Mode.ENFORCE
