"""A provisioning run with nothing to do on 10 nodes, beside a plain playbook of 20 core tasks on the same nodes."""

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


def _timed(words: Sequence[str], env: Mapping[str, str]) -> tuple[float, float, str]:
    """Wall seconds, CPU seconds of the command and its children on this side, standard output. Raises on failure."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr or done.stdout}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begin, cpu, done.stdout


def site_text(rack: Rack) -> str:
    """A site of the rack's nodes; memlock as far as this machine's root may raise it."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "infinity" if hard == resource.RLIM_INFINITY else str(hard)
    hosts = "".join(f'{h.name} = "{h.address}"\n' for h in rack.nodes)
    return (
        f'schema = 1\n[classes.h100]\nnodes = "gpu[1-{len(rack.nodes)}]"\nprofile = "hgx-h100"\n'
        f'[classes.h100.settings.memlock]\nlimit = "{limit}"\n'
        f'[ansible]\nprivate_key = "{roots.ssh_key()}"\nssh_args = "-F {rack.ssh_config}"\n[ansible.hosts]\n{hosts}'
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
    up = f"from tests.lab.rack import Rack; Rack(nodes_wanted={NODES}, name='bench-provision').up()"
    subprocess.run([sys.executable, "-c", up], cwd=PROJECT, check=True, timeout=240)
    rack = Rack.find("bench-provision")
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _measure(rack, Path(folder), rounds)
    finally:
        rack.down()


def _measure(rack: Rack, folder: Path, rounds: int) -> list[Row]:
    site = folder / "site.toml"
    site.write_text(site_text(rack))
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [*rack.enter, sys.executable, "-m", "fairlead", "provision", "--site", str(site), "-q", "--json"]
    fresh, _, _ = _timed(command, env)
    walls, cpus, ones = [], [], []
    for _ in range(rounds):
        wall, cpu, out = _timed(command, env)
        if any(n["changed"] for n in json.loads(out)["nodes"]):
            raise RuntimeError("a run with nothing to do changed something")
        walls.append(wall)
        cpus.append(cpu)
        ones.append(_timed([*command, "-l", "gpu1"], env)[1])
    plain = folder / "plain.yml"
    plain.write_text(plain_playbook(20))
    ansible = {**env, "ANSIBLE_FORKS": "50", "ANSIBLE_PIPELINING": "1", "ANSIBLE_CONFIG": str(folder / "ansible.cfg")}
    (folder / "ansible.cfg").write_text("[defaults]\n")
    words = [*rack.enter, "ansible-playbook", "-i", str(rack.inventory_path), "-l", "nodes", str(plain)]
    _timed(words, ansible)
    plain_wall, plain_cpu, _ = _timed(words, ansible)
    beside = f"20 core tasks, nothing to do: {plain_wall:.1f} s, {plain_cpu / NODES * 1000:.0f} ms controller CPU per node;"
    return [
        Row("provisioning, nothing to do, 10 nodes", median(walls), 3.0, "s", beside, f"first run {fresh:.1f} s"),
        Row("... controller CPU per further node", (median(cpus) - median(ones)) / (NODES - 1) * 1000, 65.0, "ms"),
    ]


if __name__ == "__main__":
    from tests.bench.rows import table

    print(table(rows()))
