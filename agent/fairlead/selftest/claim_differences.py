"""Compares a report with the claims of the documentation. A report goes in, differences come out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypedDict

from msgspec import Struct

from fairlead import __version__, checks, settings
from fairlead.selftest import claims
from fairlead.selftest.claims import PLATFORMS, PlatformClaim
from fairlead.selftest.fact_sources import FILES, NVML, SOURCES
from fairlead.selftest.selftest_report import HookRow, MachineSoftware, Row, SelftestReport

_BAD_SOURCE, _BAD_CHECK = ("missing", "hung", "crashed", "not_run"), ("lacks", "failed", "not_run")
_BAD_SETTING = ("missing", "failed", "not_run")


class ClaimDifference(Struct, frozen=True, kw_only=True):
    """Holds one difference. ``part``: what it is about. ``claimed``, ``found``: in words. ``next``: what to do, or ""."""

    part: str
    claimed: str
    found: str
    next: str = ""


class ComparedReport(TypedDict):
    """A report, and in what it differs from what the documentation claims."""

    file: str
    machine: MachineSoftware
    differences: list[ClaimDifference]


class ComparedReports(TypedDict):
    """The reports that --compare names."""

    schema: int
    reports: list[ComparedReport]


def differences(report: SelftestReport) -> tuple[ClaimDifference, ...]:
    """Return everything in which the report differs from what the documentation claims."""
    found = [*_version(report), *_platform(report.machine), *_parts(report)]
    for claimed_name, claim in claims.HOOKS.items():
        row = next((r for r in report.hooks if r.name == claimed_name), None)
        found += _hook(claimed_name, claim, row)
    found += [ClaimDifference(part="machine", claimed="nothing is changed", found=text) for text in report.untouched.changed]
    found += [
        ClaimDifference(part="machine", claimed="no process is left", found=text) for text in report.untouched.processes_left
    ]
    return tuple(found)


def _version(report: SelftestReport) -> Iterator[ClaimDifference]:
    if report.fairlead != __version__:
        yield ClaimDifference(
            part="fairlead",
            claimed=f"version {__version__}",
            found=f"version {report.fairlead}",
            next="compare the report with the fairlead that wrote it",
        )
    if report.document == "refused":
        step = "`fairlead config check /etc/fairlead/node.json` prints every mistake"
        yield ClaimDifference(part="document", claimed="the node's document can be read", found="it was refused", next=step)


def _platform(machine: MachineSoftware) -> Iterator[ClaimDifference]:
    name = " ".join(filter(None, (machine.distribution, machine.version))) or "unknown"
    known = ", ".join(f"{p.distribution} {p.version}" for p in PLATFORMS)
    claim = next((p for p in PLATFORMS if (p.distribution, p.version) == (machine.distribution, machine.version)), None)
    if claim is None:
        yield ClaimDifference(part="distribution", claimed=f"proved on {known}", found=name)
    else:
        yield from _versions(claim, machine)
    kernel = _two_numbers(machine.kernel)
    if kernel not in claims.KERNELS:
        yield ClaimDifference(part="kernel", claimed=f"proved on {', '.join(claims.KERNELS)}", found=machine.kernel or "unknown")
    if machine.gpus_on_bus != machine.gpus_of_nvml:
        found = f"{machine.gpus_on_bus} on the bus, {machine.gpus_of_nvml} of NVML"
        yield ClaimDifference(part="GPUs", claimed="NVML lists the NVIDIA GPUs that are on the PCI bus", found=found)


def _versions(claim: PlatformClaim, machine: MachineSoftware) -> Iterator[ClaimDifference]:
    of = f"{claim.distribution} {claim.version} was proved with"
    found = {
        "Python": (claim.python, _two_numbers(machine.python)),
        "systemd": (claim.systemd, machine.systemd),
        "Slurm": (claim.slurm, _two_numbers(machine.slurm) or claim.slurm),  # a node without Slurm is no difference
    }
    for part, (claimed, version) in found.items():
        if claimed != version:
            yield ClaimDifference(part=part, claimed=f"{of} {claimed}", found=version or "none")
    if machine.init != "systemd":
        yield ClaimDifference(part="init", claimed="process 1 is systemd", found=machine.init or "unknown")
    if machine.cgroup not in claim.cgroups:
        yield ClaimDifference(part="cgroup", claimed=f"{of} {', '.join(claim.cgroups)}", found=machine.cgroup or "none")


def _parts(report: SelftestReport) -> Iterator[ClaimDifference]:
    """Yield the sources, checks and settings that could not do their work."""
    no_gpu = not report.machine.gpus_on_bus and not report.machine.gpus_of_nvml
    lists: tuple[tuple[str, tuple[Row, ...], set[str], frozenset[str], tuple[str, ...], str], ...] = (
        (
            "source",
            report.sources,
            {s.name for s in (*SOURCES, FILES, NVML)},
            claims.SOURCES_OF_GPUS,
            _BAD_SOURCE,
            "it can be read",
        ),
        ("check", report.checks, {*checks.load()}, claims.CHECKS_OF_GPUS, _BAD_CHECK, "it judges"),
        ("setting", report.settings, {*settings.load()}, claims.settings_of_gpus(), _BAD_SETTING, "it can be observed"),
    )
    for kind, rows, names, of_gpus, bad, claimed in lists:
        for row in rows:
            state = row.state  # type: ignore[attr-defined]
            if state in bad and not (no_gpu and row.name in of_gpus and state in ("missing", "lacks")):
                found = ": ".join(filter(None, (state.replace("_", " "), "; ".join(row.reasons))))
                yield ClaimDifference(part=f"{kind} {row.name}", claimed=claimed, found=found, next=_next(row, state))
        for name in sorted(names - {row.name for row in rows}):
            yield ClaimDifference(part=f"{kind} {name}", claimed=claimed, found="not in the report")


def _next(row: Row, state: str) -> str:
    if row.name == "nvml" and state in ("hung", "crashed", "missing"):
        return "run `nvidia-smi`: if it fails or hangs too, the driver has the fault"
    if state == "not_run" and any("root" in reason for reason in row.reasons):
        return "run the command as root"
    return ""


def _hook(name: str, claim: claims.HookClaim, row: HookRow | None) -> Iterator[ClaimDifference]:
    part = f"hook {name}"
    if row is None or row.state != "run":
        found = "not in the report" if row is None else ": ".join((row.state.replace("_", " "), *row.reasons))
        step = _next(row, row.state) if row is not None else ""
        yield ClaimDifference(part=part, claimed="it runs", found=found, next=step)
        return
    if row.status != claim.status:
        found = ": ".join((f"status {row.status}", *row.reasons))
        yield ClaimDifference(part=part, claimed=f"status {claim.status}", found=found)
    elif row.digest != claim.digest:
        yield ClaimDifference(part=part, claimed=f"digest {claim.digest} of what it says", found=f"{row.digest or 'none'}")
    budget = claim.over_empty_milliseconds_max
    if budget and row.over_empty_milliseconds > budget:
        found = f"{row.over_empty_milliseconds:.1f} ms"
        yield ClaimDifference(part=part, claimed=f"at most {budget:g} ms more than an empty script", found=found)


def _two_numbers(version: str) -> str:
    match = re.match(r"\d+\.\d+", version)
    return match[0] if match else ""
