"""The nodes of a bare cluster as maintenance meets them: fairlead's own ssh commands run in each node's place, a reboot ends its
slurmd and gives it another boot id, and the apply is fairlead's own on a machine tree. What is left out is sshd and Ansible,
which tests/rack has.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.apply import apply
from fairlead.config import Document
from fairlead.config.document import resolve_layers
from fairlead.config.site import AnsibleOptions, Site
from fairlead.host.root import Root
from fairlead.model.verdict import State, Verdict
from fairlead.provision.inventory import Target
from fairlead.provision.maintain.controller import Controller
from fairlead.provision.maintain.maintenance_journal import Journal, MaintenanceRun
from fairlead.provision.maintain.maintenance_loop import Maintenance
from fairlead.provision.maintain.maintenance_plan import floors, maintenance_reason
from fairlead.provision.maintain.maintenance_report import MaintenanceReport, report
from fairlead.provision.maintain.maintenance_steps import ApplyOutcome, MaintenancePlan, NodeWork
from fairlead.provision.maintain.node_access import SshNodeAccess, apply_outcome
from fairlead.provision.provision_report import node_result
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.lab.enter import enter_command
from tests.lab.roots import SUITES

PROJECT = Path(__file__).resolve().parents[2]

DOWN_SECONDS = 0.3
SYSTEMCTL = "/usr/bin/systemctl"
NUMA = "proc/sys/kernel/numa_balancing"


def document(node: str) -> Document:
    return resolve_layers(node, [("test", {"slurm": {"node_name": node}, "settings": {"numa_balancing": {}}})])[0]


class Side(SshNodeAccess):
    """SshNodeAccess with an apply that needs no Ansible. ``folder``: where the nodes' trees and their ssh are."""

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        site = Site(file="test", generation=1, layer={}, classes=(), nodes={}, ansible=AnsibleOptions())
        targets = {n: Target(node=n, address=n, document=document(n)) for n in nodes}
        super().__init__(site, targets, program=str(folder / "ssh"))
        self.folder = folder

    def apply(self, nodes: Sequence[str], *, check: bool) -> dict[str, ApplyOutcome]:
        found = {}
        for node in nodes:
            (self.folder / node / "applied").touch()
            said = apply(document(node), Root(str(self.folder / node / "tree")), dry_run=check, drained=True)
            result = node_result(node, "runner_on_ok", "apply", {"changes": [], "apply": msgspec.to_builtins(said)})
            found[node] = apply_outcome(result)
        return found

    def forget(self, node: str) -> None:
        """No connection is kept here."""


class Nodes:
    """The machines' side, while the ``with`` block lasts: power, and what the agents publish."""

    def __init__(self, cluster: Cluster, folder: Path, names: Sequence[str]) -> None:
        self.cluster, self.folder, self.names = cluster, folder, tuple(names)
        self.findings: dict[str, list[dict[str, Any]]] = {n: [] for n in names}
        self.lost: set[str] = set()  # does not come back from its next reboot
        self.reboots: dict[str, int] = dict.fromkeys(names, 0)
        self._swapped: set[str] = set()
        self._end = threading.Event()
        for name in names:
            own = folder / name
            (own / "tree" / NUMA).parent.mkdir(parents=True)
            (own / "tree" / NUMA).write_text("1\n")
            (own / "tree/etc/sysctl.d").mkdir(parents=True)
            self._name_machine(name)
            self._boot(name)
        ssh = folder / "ssh"
        binds = "mount --bind $b/run /run/fairlead; mount --bind $b/etc/boot_id /proc/sys/kernel/random/boot_id; "
        binds += "mount --bind $b/etc/machine-id /etc/machine-id; "
        inside = f'b=/run/lab-nodes/$1; {binds} exec /bin/sh -c "$2"'
        enter = shlex.join(
            [*enter_command(cluster.pid), "unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", inside]
        )
        down = f'[ -e {folder}/$1/down ] && {{ echo "ssh: connect to host $1 port 22: No route to host" >&2; exit 255; }}'
        ssh.write_text(f'#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\n{down}\nexec {enter} sh "$1" "$2"\n')
        ssh.chmod(0o755)
        self._thread = threading.Thread(target=self._live)

    def __enter__(self) -> Nodes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        for name in self.names:
            if (self.folder / name / "down").exists():
                self.power_on(name)
            run = self.cluster.node_dirs(name).run
            for left in ("verdict", "status.json", "reboot"):
                (run / left).unlink(missing_ok=True)

    @property
    def side(self) -> Side:
        return Side(self.folder, self.names)

    def boot_id(self, name: str) -> str:
        return self.cluster.node_dirs(name).etc.joinpath("boot_id").read_text().strip()

    def effective(self, name: str) -> str:
        return (self.folder / name / "tree" / NUMA).read_text().strip()

    def up(self, name: str) -> bool:
        return not (self.folder / name / "down").exists() and "NOT_RESPONDING" not in self.cluster.node_state(name).states

    def fresh(self, name: str) -> None:
        """Not as declared any more."""
        (self.folder / name / "tree" / NUMA).write_text("1\n")

    def swap(self, name: str) -> None:
        """From its next boot on it is another machine."""
        self._swapped.add(name)

    def _boot(self, name: str) -> None:
        self.cluster.node_dirs(name).etc.joinpath("boot_id").write_text(str(uuid.uuid4()) + "\n")

    def _name_machine(self, name: str) -> None:
        self.cluster.node_dirs(name).etc.joinpath("machine-id").write_text(uuid.uuid4().hex)

    def power_on(self, name: str) -> None:
        self._boot(name)
        if name in self._swapped:
            self._name_machine(name)
        self.cluster.start_slurmd(name)
        (self.folder / name / "down").unlink()

    def _live(self) -> None:
        back: dict[str, float] = {}
        while not self._end.wait(0.1):
            for name in self.names:
                run = self.cluster.node_dirs(name).run
                if (run / "reboot").exists():
                    (self.folder / name / "down").touch()
                    (run / "reboot").unlink()
                    for published in ("verdict", "status.json"):
                        (run / published).unlink(missing_ok=True)
                    self.cluster.stop_slurmd(name)
                    self.reboots[name] += 1
                    back[name] = time.monotonic() + DOWN_SECONDS
                elif (self.folder / name / "down").exists():
                    if name not in self.lost and time.monotonic() > back.get(name, 0.0):
                        self.power_on(name)
                else:
                    self._publish(name, run)

    def _publish(self, name: str, run: Path) -> None:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        status = {
            "slurm_node": name,
            "boot_id": self.boot_id(name),
            "sweep": {"boot_seconds": now},
            "findings": self.findings[name],
        }
        verdict = Verdict(state=State.OK, expires=int(now) + 60, sequence=1)
        for file, text in (("status.json", json.dumps(status)), ("verdict", verdict.to_line())):
            (run / f".{file}").write_text(text)
            (run / f".{file}").replace(run / file)


def on(suite: str) -> pytest.MarkDecorator:
    """In `make test` on this release, in `make test-all` on all of them."""
    releases = [suite, *(pytest.param(other, marks=pytest.mark.slow) for other in SUITES if other != suite)]
    return pytest.mark.parametrize("up", releases, indirect=True)


#: On all releases, always.
EVERYWHERE = pytest.mark.parametrize("up", list(SUITES), indirect=True)


class Bench:
    """A cluster with machines, and a journal."""

    def __init__(self, cluster: Cluster, client: Scontrol, nodes: Nodes, folder: Path) -> None:
        self.cluster, self.client, self.nodes = cluster, client, nodes
        self.path = str(folder / "maintain.db")
        self.journal = Journal(self.path)
        self.controller = Controller(client)

    def begin(self, *names: str, **asked: object) -> MaintenanceRun:
        floor = floors(asked.pop("floor", ()), self.controller.listing().availability)  # type: ignore[arg-type]
        given = {"reason": "new driver", "batch": 8, "settle_seconds": 0.0, "verify_seconds": 90.0, "reboot_seconds": 90.0}
        listing, over = self.controller.listing(), asked.pop("take_over", False)
        plan = MaintenancePlan(**{**given, "floors": floor, **asked})  # type: ignore[arg-type]
        works = [
            NodeWork(node=n, slurm=n, replaced_reason=maintenance_reason(n, listing) if over else "")
            for n in names or self.nodes.names
        ]
        return self.journal.begin(plan, works, site="none", who="test")

    def maintenance(self, run: MaintenanceRun, *, aborting: bool = False) -> Maintenance:
        found = self.journal.run(run.id)
        side = self.nodes.side
        return Maintenance(found, self.journal, self.controller, side, budgets={}, aborting=aborting, poll_seconds=0.1)

    def drive(self, run: MaintenanceRun, *, aborting: bool = False) -> MaintenanceReport:
        self.maintenance(run, aborting=aborting).drive()
        return self.report(run)

    def report(self, run: MaintenanceRun) -> MaintenanceReport:
        """As the command makes it at the end."""
        found, listing = self.journal.run(run.id), self.controller.listing()
        return report(found, {w.node: now for w in found.works if (now := self.controller.service_of(w, listing))})

    def words(self, *more: str) -> list[str]:
        """`fairlead maintain` with this cluster's places."""
        slurm = ("--slurm-conf", "/etc/slurm/slurm.conf", "--bin-dir", str(self.cluster.bin))
        return ["maintain", "--journal", self.path, *slurm, *more]

    def steps(self, run: MaintenanceRun) -> dict[str, str]:
        return {w.node: w.step.value for w in self.journal.run(run.id).works}

    def reason(self, node: str) -> str:
        state = self.client.node(node)
        return state.reason if state.drained else ""


@contextmanager
def benched(cluster: Cluster, client: Scontrol, folder: Path) -> Iterator[Bench]:
    """n1 to n3 of the cluster as machines, and a journal in ``folder``."""
    cluster.run(["/bin/sh", "-c", f"printf '#!/bin/sh\\ntouch /run/fairlead/reboot\\n' >{SYSTEMCTL}; chmod 755 {SYSTEMCTL}"])
    with Nodes(cluster, folder / "nodes", ("n1", "n2", "n3")) as nodes:
        yield Bench(cluster, client, nodes, folder)


def wait(what: Callable[[], bool], said: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def driven(bench: Bench, run: MaintenanceRun, at: int = 0, when: str = "never", bin_dir: str = "") -> subprocess.Popen[str]:
    """The run in a process of its own, which ends itself at a write to the journal."""
    tools = bin_dir or str(bench.cluster.bin)
    command = [sys.executable, "-m", "tests.slurm.maintain_killed", tools, str(bench.nodes.folder)]
    env = {**os.environ, "PYTHONPATH": f"{PROJECT / 'agent'}:{PROJECT}"}
    return subprocess.Popen(
        [*command, bench.path, run.id, str(at), when], cwd=PROJECT, env=env, stdout=subprocess.DEVNULL, text=True
    )
