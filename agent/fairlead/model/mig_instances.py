"""Names the GPU instances of a GPU in MIG mode, for findings."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.model.gpu_state import MigDevice
from fairlead.model.missing import Missing


def name_of(devices: Sequence[MigDevice]) -> str:
    """Return the GPU instance of these MIG devices as text: "MIG instance 9 (1g.10gb)". 9 is NVML's id of the instance.

    ``devices``: the MIG devices of one GPU instance, at least one.
    """
    profile = devices[0].profile
    known = "" if isinstance(profile, Missing) else f" ({profile.rpartition('c.')[2]})"
    return f"MIG instance {devices[0].gi}{known}"
