"""Checks that the fabric manager runs on nodes whose GPUs are connected by NVSwitches in the node.

Without the fabric manager no CUDA program starts on such a node (cudaErrorSystemNotReady, 802). By default, running programs are
aborted when the fabric manager exits (ABORT_CUDA_JOBS_ON_FM_EXIT; NVIDIA Fabric Manager user guide, "Fabric Manager Config
Options"). The check finds the process by its name, nv-fabricmanager. /proc/PID/comm has only the first 15 characters of this name
(proc_pid_comm(5)). A zombie (state Z in proc_pid_stat(5)) does not count as running. The process must belong to root: either it
is in the unit nvidia-fabricmanager.service, or root started it in another way (in a container, by hand). A user's process with
this name does not count.

`gpu_fabric` judges whether the fabric itself works. On one fleet nobody noticed a dead fabric manager for 20 days (NVSentinel
pull request 891). The fabric manager sometimes needs minutes to start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.finding import Action, Finding, Level, Mode, with_action
from fairlead.model.unread import unread

STAT = "/proc/@nv-fabricmanage/stat"  # "@" means that fairlead finds the process by this name


class Params(CheckParams, frozen=True, kw_only=True):
    required: Annotated[bool, Meta(description="The node has NVSwitches that a fabric manager on this node manages.")] = False


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    if not params.required:
        return
    stat = node.text(STAT)
    state = (stat or "").rpartition(")")[2].split()[:1] if not isinstance(stat, Missing) else []
    if isinstance(stat, Missing) or len("".join(state)) > 1:
        why = stat if isinstance(stat, Missing) else unreadable(f"{STAT} holds no state")
        yield unread("whether the fabric manager runs", why)
        return
    if state and state[0] not in "ZX":
        return
    yield with_action(
        Level.DRAIN,
        f"the NVIDIA fabric manager {'is a zombie' if state else 'does not run'}",
        Action.CHECK_FABRIC,
        "systemctl status nvidia-fabricmanager; /var/log/fabricmanager.log",
    )


check = Check(
    summary="The NVIDIA fabric manager runs where the node has NVSwitches",
    params=Params,
    another_gpu={"required": False},
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=2,
    recover=2,
    boot_grace_seconds=300,
    reads=(STAT,),
    slow=True,
    judges=lambda params: bool(params.required),
)
