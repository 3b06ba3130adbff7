"""A provisioning run with nothing to do on 10 and on 16 nodes, beside plain playbooks of 20 and 60 core tasks on the same 10.

Controller CPU is what the processes of a run use on this side, ssh's shared connections included: the rack's cgroup of
everything that enters it. The nodes' CPU is told beside it: here they share this machine's cores, so both together, over the
cores, are the least that a run can take. A cold run makes its ssh connections anew, as a run over a cluster does; a warm one
finds them. The key exchange is most of a cold connection: OpenSSH 9.0 to 9.9 begin with sntrup761 in plain C; a site may prefer
curve25519.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.rows import Row, median
from tests.lab import roots
from tests.lab.rack import Rack

PROJECT = Path(__file__).resolve().parents[2]
NODES = 10
MOST = 16
NOT_SHARED = "-o ControlMaster=no -o ControlPath=none"
# kind of run: more ssh_args, in words, budget of the CPU per further node in ms
KINDS = {
    "cold": (NOT_SHARED, "new ssh connections, ssh's own key exchange", None),
    "curve": (f"{NOT_SHARED} -o KexAlgorithms=curve25519-sha256", "new ssh connections, curve25519", 65.0),
    "warm": ("", "shared connections of a minute ago", 65.0),
}


class Timed:
    """One command: wall seconds, CPU seconds on this side and of all nodes, standard output."""

    def __init__(self, rack: Rack, words: Sequence[str], env: Mapping[str, str]) -> None:
        before, there, begin = used(rack), used(rack, "hosts"), time.monotonic()
        done = subprocess.run([*rack.enter, *words], capture_output=True, text=True, timeout=900, check=False, env=env)
        self.wall, self.cpu, self.nodes = time.monotonic() - begin, used(rack) - before, used(rack, "hosts") - there
        self.out = done.stdout
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr or done.stdout}")


def used(rack: Rack, part: str = "tools") -> float:
    """CPU seconds of all that has entered the rack from this side, or of its hosts (cgroup v2, cpu.stat)."""
    text = (rack.cgroup / part / "cpu.stat").read_text()
    return int(text.split("usage_usec ")[1].split()[0]) / 1e6


def site_text(rack: Rack, more_ssh: str = "") -> str:
    """A site of the rack's nodes; memlock as far as this machine's root may raise it."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "infinity" if hard == resource.RLIM_INFINITY else str(hard)
    hosts = "".join(f'{h.name} = "{h.address}"\n' for h in rack.nodes)
    ssh_args = f"-F {rack.ssh_config} {more_ssh}".strip()
    return (
        f'schema = 1\n[classes.h100]\nnodes = "gpu[1-{len(rack.nodes)}]"\nprofile = "hgx-h100"\n'
        f'[classes.h100.settings.memlock]\nlimit = "{limit}"\n'
        f'[ansible]\nprivate_key = "{roots.ssh_key()}"\nssh_args = "{ssh_args}"\n[ansible.hosts]\n{hosts}'
    )


def plain_playbook(tasks: int) -> str:
    """What a role of ``tasks`` small core tasks looks like: files, folders, lines, units."""
    kinds = (
        'ansible.builtin.copy: {{content: "x{0}", dest: "/etc/plain{0}", mode: "0644"}}',
        'ansible.builtin.file: {{path: "/etc/plain.d{0}", state: directory, mode: "0755"}}',
        'ansible.builtin.lineinfile: {{path: /etc/hosts.plain, line: "line {0}", create: true, mode: "0644"}}',
        "ansible.builtin.systemd_service: {{name: ssh, state: started}}",
    )
    lines = ["- hosts: all", "  gather_facts: false", "  tasks:"]
    for number in range(tasks):
        lines += [f"    - name: Task {number}", f"      {kinds[number % len(kinds)].format(number)}"]
    return "\n".join(lines) + "\n"


def rows(rounds: int = 5) -> list[Row]:
    """Brings up its own rack and takes it down again."""
    up = f"from tests.lab.rack import Rack; Rack(nodes_wanted={MOST}, name='bench-provision').up()"
    subprocess.run([sys.executable, "-c", up], cwd=PROJECT, check=True, timeout=240)
    rack = Rack.find("bench-provision")
    try:
        with tempfile.TemporaryDirectory() as folder:
            return [*ours(rack, Path(folder), rounds), *plain(rack, Path(folder))]
    finally:
        rack.down()


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "PATH": path}


def ours(rack: Rack, folder: Path, rounds: int) -> list[Row]:
    env = environment()
    found: dict[tuple[str, int], list[Timed]] = {}
    fresh = 0.0
    for kind, (more_ssh, _, _) in KINDS.items():
        site = folder / f"{kind}.toml"
        site.write_text(site_text(rack, more_ssh))
        command = [sys.executable, "-m", "fairlead", "provision", "--site", str(site), "-q", "--json"]
        first = Timed(rack, command, env)
        fresh = fresh or first.wall
        for _ in range(rounds):
            for nodes in (1, NODES, MOST):
                timed = Timed(rack, [*command, "-l", f"gpu[1-{nodes}]"], env)
                if any(n["changed"] for n in json.loads(timed.out)["nodes"]):
                    raise RuntimeError("a run with nothing to do changed something")
                found.setdefault((kind, nodes), []).append(timed)
    wall = {key: median([t.wall for t in timed]) for key, timed in found.items()}
    cpu = {key: median([t.cpu for t in timed]) for key, timed in found.items()}
    there = {key: median([t.nodes for t in timed]) for key, timed in found.items()}
    made = []
    for kind, (_, said, budget) in KINDS.items():
        beside = f"first run of {MOST} nodes: {fresh:.1f} s" if kind == "cold" else ""
        each = (cpu[kind, MOST] - cpu[kind, 1]) / (MOST - 1) * 1000
        made += [
            Row(f"provisioning, nothing to do, {NODES} nodes, {said}", wall[kind, NODES], 3.0, "s", beside),
            Row(f"... {MOST} nodes", wall[kind, MOST], None, "s"),
            Row(
                f"... CPU of {NODES} nodes and controller",
                there[kind, NODES] + cpu[kind, NODES],
                None,
                "s",
                f"nodes {there[kind, NODES]:.2f} s, controller {cpu[kind, NODES]:.2f} s",
            ),
            Row("... controller CPU of a run on one node", cpu[kind, 1] * 1000, None, "ms"),
            Row(f"... controller CPU per further node (1 to {MOST})", each, budget, "ms"),
        ]
    return made


def plain(rack: Rack, folder: Path) -> list[Row]:
    """Core tasks as a role has them, nothing to do: pipelining, forks 50, shared connections."""
    env = {**environment(), "ANSIBLE_FORKS": "50", "ANSIBLE_PIPELINING": "1", "ANSIBLE_CONFIG": str(folder / "ansible.cfg")}
    (folder / "ansible.cfg").write_text("[defaults]\n")
    made = []
    for tasks in (20, 60):
        book = folder / f"plain{tasks}.yml"
        book.write_text(plain_playbook(tasks))
        words = ["ansible-playbook", "-i", str(rack.inventory_path), str(book)]
        many = [*words, "-l", ",".join(rack.node_names[:NODES])]
        Timed(rack, many, env)
        timed, one = Timed(rack, many, env), Timed(rack, [*words, "-l", "gpu1"], env)
        each = (timed.cpu - one.cpu) / (NODES - 1) * 1000
        beside = f"{each:.0f} ms controller CPU per further node"
        made.append(
            Row(f"beside it: a playbook of {tasks} core tasks, nothing to do, {NODES} nodes", timed.wall, None, "s", beside)
        )
    return made


if __name__ == "__main__":
    from tests.bench.rows import table

    print(table(rows()))
