"""Holds what the documentation claims, as data: where fairlead was proved, and what its hooks say and cost.

`fairlead selftest --compare` compares reports with these claims, and docs/explanation/what-was-proved-where.md shows them.
"""

from __future__ import annotations

from typing import NamedTuple

from fairlead import settings


class PlatformClaim(NamedTuple):
    """Names a distribution on which fairlead was run, with the versions that it ran with. ``shown``: what was shown there."""

    distribution: str
    version: str
    python: str
    systemd: str
    slurm: str
    cgroups: tuple[str, ...]
    shown: str


class HookClaim(NamedTuple):
    """Says how a hook ends in the self-test. ``over_empty_milliseconds_max``: the budget of what it takes longer than an empty
    sh script, or 0 for no budget."""

    status: int
    digest: str
    over_empty_milliseconds_max: float
    what: str


#: The versions of VERSION_ID in os-release. Debian testing has none, and is named by its code name.
PLATFORMS = (
    PlatformClaim(
        "debian", "12", "3.11", "252", "22.05", ("hybrid",), "lab node: all settings, hooks, agent, provisioning, boot"
    ),
    PlatformClaim(
        "debian",
        "13",
        "3.13",
        "257",
        "24.11",
        ("hybrid", "2"),
        "lab node: convergence, second run, reboot, hooks; virtual machine with its own kernel: settings, agent, jobs, reboot",
    ),
    PlatformClaim(
        "debian",
        "forky",
        "3.14",
        "262",
        "26.05",
        ("hybrid", "2"),
        "lab node: hooks, agent and drains with real Slurm; virtual machine with its own kernel: settings, agent, jobs, reboot",
    ),
)
#: Linux releases (major.minor) that fairlead has run on. The lab's nodes have the kernel of the machine (6.18). The virtual
#: machines have Debian's own kernels.
KERNELS = ("6.18", "6.12")
HOOKS = {
    "prolog": HookClaim(0, "57ce684da55609ba", 1.0, "a fresh verdict ok"),
    "prolog-drain": HookClaim(1, "29ea89ae78669c39", 0.0, "a verdict drain"),
    "prolog-stale": HookClaim(0, "57ce684da55609ba", 0.0, "no verdict, and the site allows jobs then"),
    "epilog": HookClaim(0, "0f0f652f3ecfb157", 0.0, "a running job"),
    "health-check": HookClaim(0, "e3b0c44298fc1c14", 0.0, "a fresh verdict"),
    "task-prolog": HookClaim(0, "95fd4c733c22427f", 15.0, "the first of two tasks, each on the cores of the other's GPU"),
    "bind-plan": HookClaim(0, "3f11ad6bbc7ecca0", 0.0, "the same task"),
}
#: Parts that need an NVIDIA GPU. On a machine without one, it is no difference that they lack facts.
SOURCES_OF_GPUS = frozenset({"nvml"})
CHECKS_OF_GPUS = frozenset({
    "driver_library", "ecc", "gpu_clocks", "gpu_count", "gpu_fabric", "gpu_identity", "gpu_leftovers", "gpu_power_brake",
    "gpu_power_limit", "gpu_readings", "gpu_temperature", "gpu_throttle", "inforom", "mig_mode", "nvlink", "nvml_responsive",
    "pcie_errors", "pcie_link", "retired_pages", "row_remap",
})  # fmt: skip


def settings_of_gpus() -> frozenset[str]:
    """Return the settings that need NVML or NVIDIA's kernel module."""
    return frozenset({"nvidia_module", *(name for name, setting in settings.load().items() if setting.nvml)})
