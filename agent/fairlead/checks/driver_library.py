"""Checks that the NVIDIA kernel module and the driver's library have the same version.

The version of the module is in /sys/module/nvidia/version. If the library has another version, nvmlInit fails with
NVML_ERROR_LIB_RM_VERSION_MISMATCH (18, nvml.h). CUDA and nvidia-smi fail as well ("Failed to initialize NVML: Driver/library
version mismatch"). A running process continues to use the library that it has loaded. This agent does so, too. The check
therefore also reads the name of the file that libnvidia-ml.so.1 links to. The name ends in the version that the next job will
load. If that file is in none of the usual folders, the check judges only the version that NVML gives.

Such a mismatch arises when the driver's packages are upgraded without a reboot or a reload of the module. While a driver is being
installed (`apply`, maintenance) this check does not drain. The agent finds that file on thorough sweeps only, so the check runs
on thorough sweeps only.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, with_action
from fairlead.model.unread import unread

MISMATCH = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH


class Params(CheckParams, frozen=True, kw_only=True):
    pass


def _drain(summary: str, *evidence: str, evidence_id: str) -> Finding:
    return with_action(Level.DRAIN, summary, Action.REBOOT_NODE, *evidence, evidence_id=evidence_id)


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    driver = node.driver
    module, loaded, file = driver.module_version, driver.library_version, driver.software.library_file
    if isinstance(module, Missing):
        yield unread("the version of the NVIDIA kernel module", module)
        return
    if isinstance(loaded, str) and loaded != module:
        yield _drain(f"NVIDIA module {module} is loaded, but its library is {loaded}", evidence_id=loaded)
    elif isinstance(file, str) and file != module:
        yield _drain(
            f"NVIDIA module {module} is loaded, but the library on disk is {file}",
            "upgraded without a reboot: what starts now cannot use the GPUs",
            evidence_id=file,
        )
    elif driver.init_code == MISMATCH:
        yield _drain(f"NVML does not fit the NVIDIA module {module} (18)", evidence_id="18")
    elif isinstance(loaded, Missing) and (not isinstance(file, str) or not isinstance(node.gpus, Missing)):
        yield unread("the version of the NVIDIA library", loaded)
    if not isinstance(node.gpus, Missing):
        for name, version in (("NVML", driver.nvml_version), ("CUDA", driver.cuda_version)):
            if isinstance(version, Missing):
                yield Finding(level=Level.UNKNOWN, summary=f"NVML does not say {name}'s version", evidence=(version.detail,))


check = Check(
    summary="The NVIDIA kernel module and the library, loaded and on disk, are of one version",
    params=Params,
    judge=judge,
    mode=Mode.ENFORCE,
    confirm=2,
    confirm_of=2,
    recover=1,
    boot_grace_seconds=60,
    slow=True,
)
