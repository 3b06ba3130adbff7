"""Defines the report of `fairlead selftest` (``selftest-report/1``), which a site sends back.

The report has no free text except reasons. A reason says in one redacted line why something could not be read or run. ``SCHEMA``
grows when a key gets another meaning or disappears. A new key does not change it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

SCHEMA = 1
REASON_MAX = 240  # characters of one reason
REASONS_MAX = 5  # reasons of one row; further ones are counted
NAMES_MAX = 400  # rows of one list
REPORT_MAX_BYTES = 1 << 20

Milliseconds = Annotated[float, Meta(ge=0, le=1e7)]
Count = Annotated[int, Meta(ge=0, le=10_000_000)]
Word = Annotated[str, Meta(max_length=80)]
Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,60}$")]
Reason = Annotated[str, Meta(max_length=REASON_MAX)]
Reasons = Annotated[tuple[Reason, ...], Meta(max_length=REASONS_MAX)]
_NO_TIME: Milliseconds = 0.0


class Row(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds what all rows have."""

    name: Name
    milliseconds: Annotated[Milliseconds, Meta(description="How long the part took.")] = _NO_TIME
    reasons: Annotated[Reasons, Meta(description="Why the state is not the best one, each in one redacted line.")] = ()


class SourceRow(Row, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says whether one source of facts could be read."""

    state: Annotated[
        Literal["read", "partly", "missing", "hung", "crashed", "not_run"],
        Meta(description="partly: some values are missing. hung: the reader did not end in time, and was killed."),
    ]
    count: Annotated[Count, Meta(description="How many values or devices were read.")] = 0
    missing: Annotated[Count, Meta(description="How many values could not be read.")] = 0


class CheckRow(Row, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says what one check made of the facts. The texts of findings are not in the report, because they describe the site."""

    state: Annotated[
        Literal["judged", "lacks", "failed", "off", "not_run"],
        Meta(description="lacks: the check lacks a fact. failed: the check has a bug. off: the document switches it off."),
    ]
    ok: Annotated[Count, Meta(description="Number of findings of the level ok.")] = 0
    warn: Annotated[Count, Meta(description="Number of findings of the level warn.")] = 0
    drain: Annotated[Count, Meta(description="Number of findings of the level drain.")] = 0
    unknown: Annotated[Count, Meta(description="Number of findings of the level unknown.")] = 0


class SettingRow(Row, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says whether one setting could be observed and planned. Nothing was applied."""

    state: Annotated[
        Literal["planned", "missing", "absent", "refused", "failed", "not_run"],
        Meta(description="missing: it could not be observed. absent: no hardware for it. refused: the wanted value cannot be."),
    ]
    declared: Annotated[bool, Meta(description="The node's document declares it. Otherwise its default was planned.")] = False
    changes: Annotated[Count, Meta(description="How many changes the plan has.")] = 0


class HookRow(Row, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says how one hook ended in a private mount namespace, with made-up variables."""

    state: Annotated[Literal["run", "hung", "not_run"], Meta(description="hung: the hook did not end in time, and was killed.")]
    status: Annotated[int, Meta(ge=-64, le=255, description="Its exit status. A negative number is a signal.")] = 0
    runs: Annotated[Count, Meta(description="How often it was run.")] = 0
    over_empty_milliseconds: Annotated[
        float, Meta(ge=-1e6, le=1e7, description="The median of its time less that of an empty sh script, pair by pair.")
    ] = 0.0
    digest: Annotated[
        str, Meta(pattern=r"^([0-9a-f]{16})?$", description="The first 16 digits of the SHA-256 of what it said and wrote.")
    ] = ""


class MachineSoftware(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes the machine by names of software, never by names of the site. "" means that it was not found."""

    distribution: Annotated[Word, Meta(description="ID of os-release, or other if the distribution is not known.")] = ""
    version: Annotated[Word, Meta(description="VERSION_ID of os-release. A distribution without one has its code name.")] = ""
    kernel: Annotated[Word, Meta(description="The kernel's release, without the name that a builder added.")] = ""
    architecture: Annotated[Word, Meta(description="The name of the processor architecture in uname.")] = ""
    python: Annotated[Word, Meta(description="The Python that runs fairlead.")] = ""
    libc: Annotated[Word, Meta(description="The C library and its version.")] = ""
    init: Annotated[Word, Meta(description="The program of process 1, or other.")] = ""
    systemd: Annotated[Word, Meta(description="The version of systemctl.")] = ""
    cgroup: Annotated[Word, Meta(description="1, 2 or hybrid.")] = ""
    selinux: Annotated[Word, Meta(description="enforcing, permissive or off.")] = ""
    slurm: Annotated[Word, Meta(description="The release of slurmd or scontrol.")] = ""
    driver: Annotated[Word, Meta(description="The version of the loaded NVIDIA module.")] = ""
    library: Annotated[Word, Meta(description="The version of the NVML library on disk.")] = ""
    gpus_on_bus: Annotated[Count, Meta(description="NVIDIA GPUs on the PCI bus.")] = 0
    gpus_of_nvml: Annotated[Count, Meta(description="GPUs that NVML lists.")] = 0


class Untouched(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Compares the machine before the run and after it."""

    files: Annotated[Count, Meta(description="How many files were compared by size, time, mode and number.")] = 0
    changed: Annotated[Reasons, Meta(description="What differs afterwards. The files of a running agent do not count.")] = ()
    processes_left: Annotated[Reasons, Meta(description="Processes of the run that could not be ended.")] = ()


class SelftestReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds a whole report."""

    schema: Annotated[int, Meta(ge=SCHEMA, le=SCHEMA, description="1")] = SCHEMA
    fairlead: Annotated[Word, Meta(description="The version of fairlead.")] = ""
    root: Annotated[bool, Meta(description="The command ran as root.")] = False
    document: Annotated[Literal["", "read", "refused"], Meta(description='The node\'s document. "": there is none.')] = ""
    seconds: Annotated[float, Meta(ge=0, le=1e5, description="How long the run took.")] = 0.0
    machine: Annotated[MachineSoftware, Meta(description="Names and versions of software.")] = MachineSoftware()
    sources: Annotated[tuple[SourceRow, ...], Meta(max_length=NAMES_MAX, description="Where facts come from.")] = ()
    checks: Annotated[tuple[CheckRow, ...], Meta(max_length=NAMES_MAX, description="What the checks made of the facts.")] = ()
    settings: Annotated[tuple[SettingRow, ...], Meta(max_length=NAMES_MAX, description="What was planned.")] = ()
    hooks: Annotated[tuple[HookRow, ...], Meta(max_length=NAMES_MAX, description="How the hooks ended.")] = ()
    untouched: Annotated[Untouched, Meta(description="What the run changed.")] = Untouched()
