"""What one guest said about itself before and after a reboot."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tests.vm.guest_node import FAIRLEAD, XID, Node, wait
from tests.vm.stages import applied, drift, shows

#: The time of a unit's start, in microseconds since boot.
STARTED = "systemctl show -p {property} --value {unit}"
UNITS = {"fairlead-apply": "ExecMainStartTimestampMonotonic", "fairlead-agent": "ActiveEnterTimestampMonotonic"}


class Rebooted(Struct, frozen=True):
    """``before`` and ``after`` are Slurm's state and reason. ``seconds`` is the time from the order to ssh. The others were seen
    after the boot: the agent's verdict, the values by other programs, apply's items, the agent's drift, and the start of units in
    microseconds since boot."""

    before: dict[str, str]
    after: dict[str, str]
    seconds: float
    verdict: str
    shown: dict[str, str]
    items: dict[str, Any]
    found: set[str]
    started: dict[str, int]


def reboot(node: Node) -> Rebooted:
    """Reboot the guest while it is drained for an Xid and a person holds it. Wait until its agent and Slurm answer."""
    if node.slurm()["state"] == "idle":
        node.kernel_says(XID.format(address=node.gpus[0].removesuffix(".0")))
    node.after_jobs()
    wait(lambda: node.slurm()["state"] == "drained", 120)
    node.guest.ssh(f"{FAIRLEAD} hold --reason 'the vendor wants to see it'")
    before = node.slurm()
    seconds = node.guest.reboot()
    node.guest.run("systemctl is-system-running --wait", check=False, timeout=300)
    wait(lambda: node.verdict() != "", 120)
    wait(lambda: node.guest.run("sinfo", check=False).returncode == 0, 120)
    node.after_sweeps(3)
    shown = shows(node)
    properties = {**UNITS, "slurmd": "ExecMainStartTimestampMonotonic"}
    started = {unit: node.guest.ssh(STARTED.format(property=name, unit=unit)) for unit, name in properties.items()}
    return Rebooted(
        before=before, after=node.slurm(), seconds=seconds, verdict=node.verdict(), shown=shown, items=applied(node),
        found=drift(node), started={unit: int(text) for unit, text in started.items()},
    )  # fmt: skip
