"""A rack that is provisioned from an admin host, by this release or by another one from a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab import roots
from tests.lab.demo_steps import EXTRA, HOOKS, SITE, memlock
from tests.lab.host import Host
from tests.lab.pause import pause
from tests.lab.rack import Rack
from tests.lab.wheels import wheelhouse

PROJECT = Path(__file__).resolve().parents[2]


class ProvisionedRack:
    """``rack`` is up. ``release``: the folder of the release that commands of the admin host run from."""

    def __init__(self, rack: Rack) -> None:
        self.rack, self.site = rack, rack.folder / "site.toml"
        self.write_site()

    def write_site(self, more: str = "") -> None:
        limit, why = memlock()
        hosts = "\n".join(f'{host.name} = "{host.address}"' for host in self.rack.nodes)
        known = {"memlock": limit, "why": why, "key": roots.ssh_key(), "ssh": self.rack.ssh_config, "hosts": hosts}
        text = SITE.format(**known, nodes=len(self.rack.nodes))
        self.site.write_text(
            text.replace("budget_percent = 75", "budget_percent = 100").replace("[ansible]\n", f"{more}\n[ansible]\n")
        )

    def fairlead(self, *words: str, codes: tuple[int, ...] = (0,), release: Path = PROJECT) -> str:
        """Run a command of the admin host, from a release's folder."""
        env = {**os.environ, "PYTHONPATH": str(release / "agent")}
        command = [*self.rack.enter, sys.executable, "-P", "-m", "fairlead", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env, cwd=release)
        assert done.returncode in codes, f"{words}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def provision(self, nodelist: str, *, release: Path = PROJECT) -> None:
        """Provision the nodes. Busy nodes may be left waiting (75)."""
        words = (
            "provision",
            "--site",
            str(self.site),
            "-l",
            nodelist,
            "--wheelhouse",
            str(wheelhouse(self.rack.suite)),
            "--json",
        )
        self.fairlead(*words, codes=(0, 75), release=release)

    def hooks_on(self) -> None:
        self.rack.extra_conf = EXTRA
        self.rack.configure(hooks=HOOKS)

    def node(self, number: int) -> Host:
        return self.rack.nodes[number - 1]

    def status(self, number: int) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.node(number).path("/run/fairlead/status.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    def trail(self, number: int, folder: str = "/var/lib/fairlead") -> list[str]:
        """Return what the audit trail has of the node's service, by word."""
        try:
            text = self.node(number).path(f"{folder}/audit.jsonl").read_text()
        except OSError:
            return []
        return [json.loads(line)["what"] for line in text.splitlines()]


def until(said: str, condition: Callable[[], object], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        assert began < end, f"waited {seconds:g} s in vain: {said}"
        pause(began, 0.2)
