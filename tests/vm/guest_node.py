"""A guest as an admin has it: a site that declares it, `fairlead provision` over ssh, and what its agent says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab.pause import pause
from tests.lab.roots import ssh_key
from tests.lab.wheels import wheelhouse_of
from tests.vm.guest import Guest
from tests.vm.image import HERE, Image

PROJECT = Path(__file__).resolve().parents[2]
FAIRLEAD = "/usr/local/bin/fairlead"
#: tests/vm/kmod: what is written there is logged by the kernel.
SAY = "/sys/module/fakegpu/parameters/say"
XID = "NVRM: Xid (PCI:{address}): 79, pid=1234, name=python3, GPU has fallen off the bus."
#: What a guest does not have, and figures for a machine of this size. Each line has its reason.
CHECKS = """
fabric_manager.required = false
gpu_fabric.required = false
gpu_direct_rdma.required = false
cpu_memory.memory_bytes_min = 2000000000
cpu_memory.cpus_expected = 4
driver_library.enabled = false # there is no /sys/module/nvidia/version
pcie_link.enabled = false # QEMU's displays have one lane
rdma_ports.enabled = false
memory_errors.enabled = false
stuck_tasks.window_seconds = 15
stuck_tasks.mode = "observe"
gpu_leftovers.mode = "observe"
"""


class Node:
    """The guest as the node gpu1 of a site. ``settings`` is the site's TOML below ``[classes.vm.settings]``, and ``gpus``
    are the PCI addresses of its GPUs."""

    def __init__(self, guest: Guest, image: Image, folder: Path, settings: str, gpus: list[str]) -> None:
        self.guest, self.image, self.folder, self.settings, self.gpus = guest, image, folder, settings, gpus
        self.site = folder / "site.toml"
        self.generation = 0

    def write_site(self, more: str = "") -> None:
        """Write the site anew, with ``more`` TOML tables."""
        self.generation += 1
        self.site.write_text(f"""\
schema = 1
generation = {self.generation}
[agent]
interval_seconds = 5.0
nvml_deadline_seconds = 10.0
verdict_ttl_seconds = 120
[policy]
budget_percent = 100
[classes.vm]
nodes = "gpu1"
profile = "hgx-h100"
[classes.vm.checks]{CHECKS}
[classes.vm.jobenv]
scratch = "/local"
[classes.vm.settings]
{self.settings}
{more}
[ansible]
user = "root"
private_key = "{ssh_key()}"
ssh_args = "-p {self.guest.port} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
[ansible.hosts]
gpu1 = "127.0.0.1"
""")

    def provision(self) -> dict[str, Any]:
        """Run `fairlead provision` and return its result for this node, with the ``seconds`` that the run took.

        Raises AssertionError with the run's own words if the run fails.
        """
        words = ["provision", "--site", str(self.site), "--wheelhouse", str(wheelhouse_of(self.image.python)), "--json"]
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "fairlead", *words], capture_output=True, text=True, timeout=600, check=False,
            env={**os.environ, "PYTHONPATH": str(PROJECT / "agent")},
        )  # fmt: skip
        assert done.stdout.startswith("{"), f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        (result,) = json.loads(done.stdout)["nodes"]
        assert isinstance(result, dict)
        return {**result, "code": done.returncode, "seconds": time.monotonic() - began}

    def use_hooks(self) -> None:
        """Name fairlead's hooks to Slurm, which `fairlead provision` has installed, and start its daemons again."""
        self.guest.ssh("cat > /etc/slurm/fairlead.conf", stdin=(HERE / "inside/fairlead.conf").read_text())
        self.guest.ssh("systemctl restart slurmctld slurmd", timeout=300)

    def status(self) -> dict[str, Any]:
        """Return the agent's status.json; {} while there is none."""
        said = self.guest.run("cat /run/fairlead/status.json", check=False).stdout
        found: dict[str, Any] = json.loads(said) if said else {}
        return found

    def sweeps(self) -> int:
        """Return how many sweeps the agent has made; -1 while it has written no status."""
        return int(self.status().get("sweep", {}).get("count", -1))

    def findings(self) -> set[str]:
        """Return the names of all checks, and setting.NAME of all settings, that the agent has a finding of."""
        return {finding["check"] for finding in self.status().get("findings", [])}

    def verdict(self) -> str:
        """Return the state in /run/fairlead/verdict; '' while there is none."""
        return self.guest.run("cut -f2 /run/fairlead/verdict", check=False).stdout.strip()

    def sweep(self) -> None:
        """Ask the agent for a sweep now."""
        self.guest.ssh("systemctl kill --kill-whom=main -s USR1 fairlead-agent")

    def after_sweeps(self, number: int) -> None:
        """Let the agent make ``number`` sweeps more and wait for them. A sweep counts only if it began after now."""
        before = self.sweeps()

        def made() -> bool:
            self.sweep()
            return self.sweeps() > before + number

        wait(made, 60 + 30 * number, every=0.3)

    def after_jobs(self) -> None:
        """Wait until Slurm has no job. sinfo would not do: it said `mixed` for 34 s after the epilog of the last job (26.05)."""
        wait(lambda: self.guest.ssh("squeue -h") == "", 90)

    def kernel_says(self, text: str) -> None:
        """Let the guest's kernel log a line, as a driver does (tests/vm/kmod)."""
        self.guest.ssh(f"cat > {SAY}", stdin=f"{text}\n")

    def slurm(self) -> dict[str, str]:
        """Return Slurm's state and reason of the node, as sinfo prints them."""
        state, _, reason = self.guest.ssh("sinfo -h -n gpu1 -o '%T|%E'").strip().partition("|")
        return {"state": state, "reason": reason}


def wait(condition: Callable[[], bool], seconds: float = 120, every: float = 1.0) -> None:
    """Wait until ``condition`` holds. Raises AssertionError after ``seconds``."""
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        assert began < end, f"waited in vain for {seconds:.0f} s"
        pause(began, every)
