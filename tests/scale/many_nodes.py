"""A bare cluster whose nodes have a network each, and an agent each: what 128 nodes do to one slurmctld.

    with ManyNodes("trixie", nodes=128) as many, running(many, memory) as agents: ...

Each slurmd has namespaces of its own (network, processes, mounts) and one address on the bridge at which slurmctld is, so that a
node can be cut off. Each agent (agents.py) is a process of its own on a machine tree that all share. It speaks to slurmctld
through its own node's network, and sees its own node's slurmd. A host of a rack for each node would take much more memory.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.lab import roots
from tests.lab.cluster import Cluster
from tests.lab.enter import enter_command
from tests.lab.pause import pause
from tests.lab.roots import LabError

CONTROLLER = "10.77.255.1"
LEAVES = 4
#: One leaf switch for each quarter of the nodes: what a broken switch takes away, and what a budget counts.
TOPOLOGY = "TopologyPlugin=topology/tree\n"
NODE_TIMEOUT_SECONDS = 60  # SlurmdTimeout (tests/lab/slurmconf.py)
_NODE = """\
read go < /run/lab-nodes/{name}/go
mount --bind /run/lab-nodes/{name}/run /run/fairlead
mount --bind /run/lab-nodes/{name}/etc /etc/fairlead
mount --bind /run/lab-nodes/{name}/var /var/lib/fairlead
{sshd}
/usr/sbin/slurmd -N {name} {options}
trap '' CHLD
exec sleep infinity
"""


def address(number: int) -> str:
    """The address of node ``number`` (1 ...)."""
    return f"10.77.{number // 200}.{number % 200 + 10}"


@dataclass
class ManyNodes(Cluster):
    """``sshd``: each node has one, at its address, with the lab's key."""

    sshd: bool = False

    def __post_init__(self) -> None:
        self.topology = self.topology or _tree(self.nodes)
        self.extra_conf += TOPOLOGY
        super().__post_init__()
        self.slurm_nodes = tuple(replace(node, address=address(n)) for n, node in enumerate(self.slurm_nodes, 1))
        self.inits: dict[str, int] = {}  # the first process of each node, as this machine numbers it
        self.addresses: dict[str, str] = {}  # the address of a node that has another one than slurm.conf says

    def leaf(self, number: int) -> tuple[str, ...]:
        """The nodes below leaf switch ``number`` (0 ...)."""
        share = self.nodes // LEAVES
        return self.node_names[number * share : (number + 1) * share]

    def write_conf(self, **changes: object) -> None:
        super().write_conf(**changes)
        conf = self.folder / "etc/slurm.conf"
        conf.write_text(conf.read_text().replace("lab(127.0.0.1)", f"lab({CONTROLLER})"))

    def _open_box(self, lower: str) -> None:
        super()._open_box(lower)
        self.ip(self.pid, f"addr del {CONTROLLER}/32 dev lab0\naddr add {CONTROLLER}/16 dev lab0\n")
        if self.sshd:
            self._exec("mkdir -p /run/sshd")

    def start_slurmd(self, name: str, *options: str) -> None:
        """Power the node on: namespaces, its place at the bridge, sshd, slurmd."""
        number = self.node_names.index(name) + 1
        where = self.addresses.get(name) or address(number)
        go = self.folder / "nodes" / name / "go"
        go.unlink(missing_ok=True)
        os.mkfifo(go)
        sshd = f"/usr/sbin/sshd -o ListenAddress={where} -o PidFile=none" if self.sshd else ":"
        script = shlex.quote(_NODE.format(name=name, sshd=sshd, options=shlex.join(options)))
        spaces = "--mount --propagation private --net --pid --fork --kill-child --mount-proc"
        files = f"</dev/null >/dev/null 2>>/var/log/slurm/{name}.log"
        self._exec(f"setsid unshare {spaces} /bin/sh -ec {script} {files} & echo $! >/run/lab-nodes/{name}/pid")
        init = self.inits[name] = self._init_of(int((self.folder / "nodes" / name / "pid").read_text()))
        self.ip(self.pid, f"link add v{number} type veth peer name eth0 netns {init}\nlink set v{number} master lab0 up\n")
        self.ip(init, f"addr add {where}/16 dev eth0\nlink set lo up\nlink set eth0 up\n")
        go.write_text("go\n")

    def _init_of(self, unshare: int) -> int:
        """The first process of the node that unshare(1), by its number in the box, has made."""
        deadline = time.monotonic() + 30
        while True:
            began = time.monotonic()
            for child in Path(f"/proc/{self.pid}/root/proc/{unshare}/task/{unshare}/children").read_text().split():
                for pid in self._with_space(int(child)):
                    return pid
            if began > deadline:
                raise LabError("a node's namespaces could not be made")
            pause(began, 0.005)

    def _with_space(self, inside: int) -> list[int]:
        """The process with this number in the box that is the first of its own process namespace."""
        found = []
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                numbers = status.read_text().partition("NSpid:")[2].split("\n")[0].split()
                if len(numbers) > 2 and numbers[-2:] == [str(inside), "1"] and self._is_ours(int(numbers[0])):
                    found.append(int(numbers[0]))
            except OSError:
                continue
        return found

    def _is_ours(self, pid: int) -> bool:
        return os.stat(f"/proc/{pid}/root").st_dev == os.stat(f"/proc/{self.pid}/root").st_dev

    def ip(self, pid: int, script: str) -> None:
        """Run a batch of ip(8) commands of this machine in the network of a process; raises LabError with ip's own words."""
        command = ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-batch", "-"]
        done = subprocess.run(command, input=script, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise LabError(f"network of the nodes: {done.stderr.strip()}")

    def cut(self, names: Sequence[str], *, off: bool = True) -> None:
        """Take nodes off the network, or put them back on it."""
        state = "down" if off else "up"
        self.ip(self.pid, "".join(f"link set v{self.node_names.index(name) + 1} {state}\n" for name in names))

    def network_bytes(self) -> int:
        """What has gone over the network between slurmctld's host and the nodes, in both directions."""
        command = ["nsenter", f"--net=/proc/{self.pid}/ns/net", "cat", "/proc/net/dev"]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        fields = [line.split() for line in text.splitlines() if line.strip().startswith("lab0:")]
        return sum(int(words[1]) + int(words[9]) for words in fields)

    def clients(self, name: str, folder: Path, calls: Path) -> Path:
        """A folder with Slurm's commands as this node has them: through its own network. A killed command is killed. ``calls``
        gets a line for each call."""
        folder.mkdir(parents=True)
        box, init = f"/proc/{self.pid}/ns", self.inits[name]
        spaces = f"--mount={box}/mnt --ipc={box}/ipc --uts={box}/uts --net=/proc/{init}/ns/net"
        for client in ("scontrol", "sinfo", "squeue"):
            path = folder / client
            path.write_text(f'#!/bin/sh\necho {client} >>{calls}\nexec nsenter {spaces} -- /usr/bin/{client} "$@"\n')
            path.chmod(0o755)
        return folder

    def entered(self, command: Sequence[str]) -> list[str]:
        """A command of this machine's programs in the network of slurmctld's host: what an admin host asks."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", *command]

    def on(self, name: str, command: Sequence[str]) -> list[str]:
        """A command on a node."""
        return [*enter_command(self.inits[name]), *command]

    def site(self, folder: Path) -> Path:
        """A site file by which ssh reaches every node."""
        (folder / "ssh_config").write_text(
            f"IdentityFile {roots.ssh_key()}\nIdentitiesOnly yes\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
            f"LogLevel ERROR\nControlPath {folder}/%C\nControlMaster auto\nControlPersist 60\n"
        )
        hosts = "".join(f'{name} = "{address(number)}"\n' for number, name in enumerate(self.node_names, 1))
        path = folder / "site.toml"
        path.write_text(
            f'schema = 1\n[classes.all]\nnodes = "n[1-{self.nodes}]"\nprofile = "hgx-h100"\n'
            f'[ansible]\nssh_args = "-F {folder}/ssh_config"\n[ansible.hosts]\n{hosts}'
        )
        return path


def _tree(nodes: int) -> str:
    share = nodes // LEAVES
    leaves = [f"SwitchName=leaf{n} Nodes=n[{n * share + 1}-{(n + 1) * share}]" for n in range(LEAVES)]
    return "\n".join([*leaves, f"SwitchName=spine Switches=leaf[0-{LEAVES - 1}]"]) + "\n"
