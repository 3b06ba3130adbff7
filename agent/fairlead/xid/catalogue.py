"""Holds the Xid catalogue: every code of driver 595.45.04, what it means, what to do, and who is to blame.

``action`` is NVIDIA's immediate action where NVIDIA publishes one. NVIDIA's words map to ours: IGNORE none, RESTART_VM and
RESTART_BM reboot_node, CHECK_MECHANICALS check_hardware, UPDATE_SWFW update_software, the NVLink workflows check_fabric,
WORKFLOW_XID_48 reset_gpu, WORKFLOW_XID_45, XID_154 and CHECK_UVM follow_cause.
"""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.finding import Action, Service
from fairlead.xid import codes_001, codes_063, codes_119
from fairlead.xid.versions import change_of


class XidEntry(Struct, frozen=True):
    """Describes one code. ``name`` is NVIDIA's, ``description`` has a few words for a reason, ``why`` explains the action.

    service: whether and when the node leaves service. blames: application, gpu, node, fabric or driver.
    """

    code: int
    name: str
    description: str
    action: Action
    service: Service
    blames: str
    why: str
    source: str

    @property
    def harmless(self) -> bool:
        """Say whether there is nothing to do and nothing to watch."""
        return self.action is Action.NONE and self.service is Service.KEEP and self.blames == "driver"


ENTRIES: dict[int, XidEntry] = {row[0]: XidEntry(*row) for row in (*codes_001.ROWS, *codes_063.ROWS, *codes_119.ROWS)}

#: What the recovery action numbers mean (Xid 154 and NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; nvml.h nvmlDeviceGpuRecoveryAction_t).
#: The words in the line changed in r610 ("Node Reboot Required" became "OS Reboot"): only the number counts.
RECOVERY: dict[int, tuple[str, Action, Service]] = {
    0: ("no recovery action", Action.NONE, Service.KEEP),
    1: ("driver asks for a GPU reset", Action.RESET_GPU, Service.DRAIN_NOW),
    2: ("driver asks for a node reboot", Action.REBOOT_NODE, Service.DRAIN_NOW),
    3: ("driver asks to drain peer-to-peer traffic", Action.RESET_GPU, Service.DRAIN_AFTER_JOB),
    4: ("driver asks to drain and reset", Action.RESET_GPU, Service.DRAIN_AFTER_JOB),
    5: ("driver asks to recover the IMEX domain", Action.CHECK_FABRIC, Service.DRAIN_NOW),
    6: ("driver asks for a bus reset", Action.RESET_GPU, Service.DRAIN_NOW),
    7: ("driver asks for a system reboot", Action.REBOOT_NODE, Service.DRAIN_NOW),
}


def look_up(code: int, driver: str = "") -> XidEntry:
    """Return the entry of a code. The driver version counts where it is known and the code meant something else to that
    version.

    A code that no header names is not known to be harmless: NVIDIA has to explain it.
    """
    change = change_of(code, driver)
    if change is not None:
        return XidEntry(
            change.code,
            change.name,
            change.description,
            change.action,
            change.service,
            change.blames,
            change.why,
            change.source,
        )
    known = ENTRIES.get(code)
    if known is not None:
        return known
    return XidEntry(
        code,
        f"XID_{code}",
        "a code newer than this catalogue",
        Action.CONTACT_SUPPORT,
        Service.KEEP,
        "driver",
        "Not in the catalogue this version of fairlead carries.",
        "none",
    )


def recovery(number: int) -> tuple[str, Action, Service]:
    """Return what a recovery action number asks for: words, action, service. An unknown number is treated as serious."""
    unknown = (f"driver asks for recovery action {number}", Action.CONTACT_SUPPORT, Service.DRAIN_NOW)
    return RECOVERY.get(number, unknown)
