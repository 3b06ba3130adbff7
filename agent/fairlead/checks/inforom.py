"""Checks that the InfoROM of each GPU is valid. The card keeps its serial number, ECC history and remapped rows there.

nvmlDeviceValidateInforom reads the InfoROM from flash and verifies its checksums. NVML_ERROR_CORRUPTED_INFOROM (14) is what
nvidia-smi prints as "WARNING: infoROM is corrupted at gpu ...". DCGM's diagnostic fails such a GPU (DCGM_FR_CORRUPT_INFOROM). The
GPU still works, but it may lose its lists of remapped rows and retired pages, so the vendor must look at it. Reading the flash is
expensive, so fairlead does it once an hour.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import readable_gpus
from fairlead.model.facts import Missing, Node, Why
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.unread import unlisted


class Params(CheckParams, frozen=True, kw_only=True):
    pass


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    for gpu in readable_gpus(node):
        valid = gpu.inforom_valid
        if valid is False:
            yield with_action(
                Level.DRAIN,
                f"InfoROM of GPU {gpu.pci} is corrupted",
                Action.CONTACT_SUPPORT,
                "nvmlDeviceValidateInforom: CORRUPTED_INFOROM (14)",
                device=gpu.pci,
                service=Service.DRAIN_AFTER_JOB,
            )
        elif isinstance(valid, Missing) and valid.why is Why.UNREADABLE:
            yield Finding(
                level=Level.UNKNOWN,
                device=gpu.pci,
                summary=f"InfoROM of GPU {gpu.pci} cannot be validated",
                evidence=(valid.detail,) if valid.detail else (),
            )


check = Check(
    summary="InfoROM of each GPU: not corrupted",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    slow=True,
)
