"""Holds the Xid catalogue: for every code of driver 595.45.04 its meaning, the action, and who is to blame.

If NVIDIA publishes an immediate action for a code, ``action`` is that action. NVIDIA's words are translated as follows: IGNORE
to none, RESTART_VM and RESTART_BM to reboot_node, CHECK_MECHANICALS to check_hardware, UPDATE_SWFW to update_software, the NVLink
workflows to check_fabric, WORKFLOW_XID_48 to reset_gpu, and WORKFLOW_XID_45, XID_154 and CHECK_UVM to follow_cause.
"""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.finding import Action, Service
from fairlead.xid import codes_001, codes_063, codes_119
from fairlead.xid.versions import change_of


class XidEntry(Struct, frozen=True):
    """Describes one code.

    name: NVIDIA's name. description: the meaning in a few words, for a drain's reason. service: whether and when the node leaves
    service. blames: application, gpu, node, fabric or driver. why: the reason of the action.
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
        """Return whether nobody has to do or to watch anything after this code."""
        return self.action is Action.NONE and self.service is Service.KEEP and self.blames == "driver"


ENTRIES: dict[int, XidEntry] = {row[0]: XidEntry(*row) for row in (*codes_001.ROWS, *codes_063.ROWS, *codes_119.ROWS)}

#: What the recovery action numbers mean (Xid 154 and NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; nvml.h nvmlDeviceGpuRecoveryAction_t).
#: The words in the line changed in r610 ("Node Reboot Required" became "OS Reboot"), so only the number counts.
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
    """Return the entry of a code. If the code had another meaning in the given driver version, return that meaning.

    A code that is not in the catalogue may be harmful, so its action is to contact NVIDIA's support.
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
    """Return the meaning of a recovery action number, as (words, action, service). An unknown number drains the node at once."""
    unknown = (f"driver asks for recovery action {number}", Action.CONTACT_SUPPORT, Service.DRAIN_NOW)
    return RECOVERY.get(number, unknown)
