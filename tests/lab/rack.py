"""A rack: N namespaced hosts with systemd, sshd, munge and slurmd, one controller, each node with a machine tree.

    with Rack(nodes=4) as rack:
        rack.nodes[0].ssh("nvidia-smi")
        rack.ctl("sinfo")

``Rack.up()`` ... ``Rack.down()`` do the same by hand: a rack that is left up outlives its creator and is found again
by ``Rack.find(name)``; ``python -m tests.lab.clean NAME`` ends it. Everything it starts is in its own cgroup
(fairlead-lab-NAME) and written down under /run/fairlead-lab/NAME.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.lab import (
    access,
    accounting,
    bounds,
    clients,
    cpus,
    el_roots,
    hardware,
    inotify,
    machines,
    net,
    node,
    roots,
    slurmconf,
    software,
    wheels,
)
from tests.lab.host import Host
from tests.lab.ledger import Ledger
from tests.lab.nvml import library
from tests.lab.roots import RELEASES, LabError, lab_dir

CONTROLLER = "ctl"
PROJECT = Path(__file__).resolve().parents[2]
#: Where a host finds the simulated NVML library; the usual names in the library folder point there.
SIM = "/opt/fairlead-sim"
LIBRARIES = f"/usr/lib/{os.uname().machine}-linux-gnu"


@dataclass
class Rack(clients.SlurmClients):
    """See the module's text.

    model       machine model of every node (tests.lab.machines), in its small variant for this machine's CPUs
    trees       machine trees to use instead, one per node
    hooks       programs that slurm.conf names; change them later with configure()
    extra_conf  lines for slurm.conf
    nvml        folder with a libnvidia-ml.so.1 to use instead of the simulated library
    binds       (path on the machine, path on every node, read-only)
    el          every host has the root that is like EL (tests.lab.el_roots)
    accounting  slurmdbd and a MariaDB on the controller (tests.lab.accounting), both up before slurmctld
    configless  the nodes have no file in /etc/slurm: slurmd fetches its configuration from slurmctld
    """

    nodes_wanted: int = 4
    suite: str = "bookworm"
    name: str = "rack"
    model: str = "hgx-h100"
    trees: Sequence[Path] = ()
    hooks: slurmconf.Hooks = field(default_factory=lambda: slurmconf.Hooks(reboot="/usr/sbin/reboot"))
    nohold: bool = True
    extra_conf: str = ""
    nvml: Path | None = None
    binds: tuple[tuple[str, str, bool], ...] = ()
    el: bool = False
    accounting: bool = False
    configless: bool = False

    def __post_init__(self) -> None:
        self._supervisor = 0
        self.ledger = Ledger(self.name)
        self.folder = self.ledger.folder
        self.disks = lab_dir() / "racks" / self.name
        self.nodes = [self._host(f"gpu{i}", net.address(i)) for i in range(1, self.nodes_wanted + 1)]
        self.controller = self._host(CONTROLLER, net.CONTROLLER_ADDRESS)
        self.inventory_path = self.folder / "inventory"
        self.ssh_config = self.folder / "ssh_config"
        self.bin = self.folder / "bin"
        self.slurm_etc = self.folder / "slurm"

    def _host(self, name: str, address: str) -> Host:
        tree = None if name == CONTROLLER else self.disks / name / "tree"
        return Host(name, address, self.disks / name, self.folder, tree)

    # -- up and down ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            print(self.logs(), file=sys.stderr)
        self.down()

    @classmethod
    def find(cls, name: str = "rack") -> Self:
        """The rack of that name that is up. Raises LabError when there is none."""
        record = Ledger(name).folder / "rack.json"
        try:
            kept = json.loads(record.read_text())
        except FileNotFoundError:
            raise LabError(f"no rack named {name} is up") from None
        return cls(**{**kept, "hooks": slurmconf.Hooks(**kept["hooks"])})

    def up(self, *, wait: bool = True) -> None:
        """Bring everything up; with ``wait`` until root can log in everywhere and Slurm says idle.

        Whatever goes wrong, everything is taken down again first; raises LabError with what to look at.
        """
        lower = el_roots.el_root(self.suite) if self.el else roots.root(self.suite)
        if self.accounting:
            accounting.layer(self.suite)
        wheels.into_cache(self.suite)
        roots.need_room(lab_dir(), (64 + 16 * len(self.nodes)) << 20)
        self.ledger.open()
        try:
            self.ledger.add("rack", self.name)
            self.ledger.add("disk", self.disks)
            shutil.rmtree(self.disks, ignore_errors=True)
            inotify.make_room(self.ledger, len(self.nodes) + 1)
            self._lay_out(lower)
            net.up(self.ledger, [(host.name, host.address) for host in self.hosts])
            self._supervise()
            if wait:
                self.wait_ssh()
                self.wait_idle()
        except BaseException as error:
            told = self.logs()
            self.down()
            if isinstance(error, LabError):
                raise LabError(f"{error}\n{told}") from None
            raise

    def down(self) -> None:
        """End it all: processes, namespaces, cgroups, disks. Raises LabError naming what would not go."""
        stuck = self.ledger.end()
        if self._supervisor:
            os.waitpid(self._supervisor, os.WNOHANG)
            self._supervisor = 0
        if stuck:
            raise LabError(f"rack {self.name}: {'; '.join(stuck)}")

    @property
    def hosts(self) -> list[Host]:
        """The controller and every node."""
        return [self.controller, *self.nodes]

    @property
    def node_names(self) -> tuple[str, ...]:
        """gpu1 ... gpuN."""
        return tuple(host.name for host in self.nodes)

    @property
    def control_netns(self) -> str:
        """The network namespace that ssh and Ansible run in."""
        return net.namespace(self.name, "control")

    @property
    def enter(self) -> list[str]:
        """Words before a command of this machine that is to reach the hosts (ssh, ansible-playbook, fairlead).

        It and all it leaves behind (ssh's shared connections) belong to the rack and end with it.
        """
        return [str(self.folder / "enter")]

    # -- laying out -------------------------------------------------------------------------------

    def _lay_out(self, lower: Path) -> None:
        for sub in ("ssh", "bin", "slurm"):
            (self.folder / sub).mkdir(mode=0o700 if sub == "ssh" else 0o755)
        os.mkfifo(self.folder / "power", 0o600)
        for host in self.hosts:
            for sub in ("disk/up/etc/systemd/system", "disk/wk", "scratch", "sim"):
                (host.folder / sub).mkdir(parents=True)
            (host.folder / "log").touch()
            host.sim.chmod(0o755)
        self._write_machines()
        names = "".join(f"{host.address} {host.name}\n" for host in self.hosts)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{net.CONTROL_ADDRESS} admin\n{names}")
        self.write_slurm()
        self._mask(roots.uid(lower, "slurm"))
        if self.accounting:
            accounting.lay_out(self.controller.folder / "disk/up", CONTROLLER, roots.uid(lower, "slurm"))
        access.write(self)
        self._write_specs(lower)

    def _write_machines(self) -> None:
        nvml = self.nvml or hardware.simulated_nvml()
        size = max(2, os.cpu_count() or 2)
        folder = Path(f"disk/up{LIBRARIES}")
        for number, host in enumerate(self.nodes, 1):
            assert host.tree is not None
            if self.trees:
                shutil.copytree(self.trees[number - 1], host.tree, symlinks=True)
                cpus.write_masks(host.tree)
            else:
                host.tree.symlink_to(hardware.machine_tree(self.model, host.name, size, number))
            library.write_conf(host.tree, host.sim / "nvml.conf")
            (host.sim / "nvml.control").touch()
            (host.folder / folder).mkdir(parents=True)
            for name in ("libnvidia-ml.so.1", "libnvidia-ml.so"):
                (host.folder / folder / name).symlink_to(f"{SIM}/libnvidia-ml.so.1")
        self._nvml = nvml

    def slurm_nodes(self) -> tuple[slurmconf.SlurmNode, ...]:
        """NodeName lines from the trees."""
        made = []
        for host in self.nodes:
            assert host.tree is not None
            facts = machines.slurm_node(host.tree)
            made.append(
                slurmconf.SlurmNode(
                    host.name,
                    host.name,
                    host.address,
                    sockets=facts.sockets,
                    cores=facts.cores_per_socket,
                    threads=facts.threads_per_core,
                    gpus=facts.gpus,
                    gpu_type=facts.gres_type,
                    memory_mib=facts.real_memory_mib,
                )
            )
        return tuple(made)

    def write_slurm(self) -> None:
        """Write the slurm.conf that every host shares, in place (the hosts see the same files)."""
        conf = slurmconf.slurm_conf(
            self.slurm_nodes(),
            controller=f"{CONTROLLER}({net.CONTROLLER_ADDRESS})",
            user="slurm",
            hooks=self.hooks,
            nohold=self.nohold,
            extra=self.extra_conf + (accounting.slurm_conf_lines(CONTROLLER) if self.accounting else ""),
        )
        gres = ""
        for host in self.nodes:
            assert host.tree is not None
            gres += "".join(f"NodeName={host.name} {line}\n" for line in machines.gres_conf(host.tree).splitlines())
        v1 = bool(cpus.v1_controllers())
        (self.slurm_etc / "slurm.conf").write_text(conf)
        (self.slurm_etc / "gres.conf").write_text(gres)
        (self.slurm_etc / "cgroup.conf").write_text(slurmconf.cgroup_conf(RELEASES[self.suite], cgroup=False, v1=v1))

    def configure(self, **changes: object) -> None:
        """Change ``hooks``, ``extra_conf`` or ``nohold`` of the running rack: write slurm.conf, scontrol reconfigure."""
        for key, value in changes.items():
            if key not in ("hooks", "extra_conf", "nohold"):
                raise LabError(f"a rack that is up cannot change its {key}")
            setattr(self, key, value)
        self.write_slurm()
        self._remember()
        self.scontrol("reconfigure")

    def _mask(self, owner: int) -> None:
        """Each host runs its own daemon only; slurmctld's saved state belongs to SlurmUser (``owner``)."""
        for host in self.hosts:
            units = host.folder / "disk/up/etc/systemd/system"
            (units / ("slurmd.service" if host.name == CONTROLLER else "slurmctld.service")).symlink_to("/dev/null")
            # This option makes systemd mount a fresh /proc for the service, and with it hides the machine tree's files
            # there (boot_id, kernel.numa_balancing): only in the lab is that another machine's /proc.
            if self.configless and host.name != CONTROLLER:
                (units / "slurmd.service.d").mkdir()
                (units / "slurmd.service.d/60-configless.conf").write_text("[Unit]\nConditionPathExists=\n")
                (units.parents[1] / "default").mkdir()
                (units.parents[1] / "default/slurmd").write_text(f'SLURMD_OPTIONS="--conf-server {CONTROLLER}"\n')
            agent = units / "fairlead-agent.service.d"
            agent.mkdir()
            (agent / "50-lab.conf").write_text("[Service]\nProtectControlGroups=no\n")
            if host.tree is not None and software.has_fabric_manager(host.tree):
                software.write_fabric_manager_unit(units)
        state = self.controller.folder / "disk/up/var/spool/slurm/state"
        state.mkdir(parents=True)
        os.chown(state, owner, owner)

    @property
    def cgroup(self) -> Path:
        """Everything of the rack is in here."""
        return cpus.cgroup2() / f"fairlead-lab-{self.name}"

    def _write_specs(self, lower: Path) -> None:
        trees = [host.tree for host in self.nodes if host.tree is not None]
        majors = node.local_majors(trees)
        conf = [(str(self.slurm_etc / file), f"/etc/slurm/{file}", True) for file in ("slurm.conf", "gres.conf", "cgroup.conf")]
        shared = [(str(self.folder / "hosts"), "/etc/hosts", True)]
        found = hardware.nvml_plugin(self.suite)
        plugin = [(str(found), f"{LIBRARIES}/slurm-wlm/gpu_nvml.so", True)] if found else []
        memory = bounds.v1_group(self.name)
        specs = []
        for host in self.hosts:
            simulated = [(str(self._nvml), SIM, True), *plugin, *self.binds] if host.tree else []
            specs.append(
                node.HostSpec(
                    name=host.name,
                    folder=str(host.folder),
                    lower=accounting.lower(self.suite) if self.accounting and host is self.controller else str(lower),
                    netns=net.namespace(self.name, host.name),
                    cgroup=str(self.cgroup / "hosts" / host.name),
                    tree=str(host.tree.resolve() if host.tree else ""),
                    binds=(*shared, *(() if self.configless and host.tree else conf), *simulated),
                    majors=majors,
                    memory=str(memory / host.name) if memory else "",
                ).to_json()
            )
        made = {"cgroup": str(self.cgroup / "supervisor"), "hosts": specs}
        (self.folder / "hosts.json").write_text(json.dumps(made, indent=1))
        self._remember()

    def _remember(self) -> None:
        kept = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        kept["hooks"] = dataclasses.asdict(self.hooks)
        kept["trees"] = [str(tree) for tree in self.trees]
        kept["nvml"] = None
        (self.folder / "rack.json").write_text(json.dumps(kept, indent=1))

    def _supervise(self) -> None:
        self.ledger.add("cgroup", self.cgroup)
        cpus.make_cgroups(self.cgroup, ["supervisor", "tools", *(f"hosts/{host.name}" for host in self.hosts)])
        if memory := bounds.v1_group(self.name):
            self.ledger.add("cgroup", memory)
            memory.mkdir()
        for host in self.hosts:
            bounds.limit(memory / host.name if memory else self.cgroup / "hosts" / host.name, bounds.HOST_MIB)
        command = [sys.executable, "-m", "tests.lab.supervise", str(self.folder)]
        join = f"echo $$ > {self.cgroup}/supervisor/cgroup.procs && exec {shlex.join(command)}"
        log = os.open(self.folder / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        # Not subprocess: the supervisor is to outlive this process where the rack is left up.
        self._supervisor = os.posix_spawn(
            "/bin/sh",
            ["/bin/sh", "-c", join],
            {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(PROJECT)},
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, to) for fd, to in ((null, 0), (log, 1), (log, 2))],
            setsid=True,
        )
        os.close(log)
        os.close(null)
        self.ledger.process("process", self._supervisor)

    # -- asking -----------------------------------------------------------------------------------

    def run(
        self,
        command: Sequence[str],
        *,
        user: str = "",
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 120,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """On the controller; see SlurmClients.run."""
        return self.controller.run(command, user=user, env=env, check=check, timeout=timeout, stdin=stdin)

    def ctl(self, command: str, *, check: bool = True, timeout: float = 120) -> str:
        """Output of a shell command on the controller, such as ``scontrol show node gpu1``."""
        return self.controller.run(command, check=check, timeout=timeout).stdout

    def output(self, job: int) -> str:
        """What the job's script printed, from the node that ran it."""
        batch_host = re.search(r"\bBatchHost=(\S+)", self.scontrol("-o", "show", "job", str(job)))
        for host in self.nodes:
            if batch_host and host.name == batch_host[1]:
                return host.run(["/bin/cat", f"/tmp/job-{job}.out"]).stdout
        raise LabError(f"rack {self.name}: job {job} has run on no node")

    def wait_ssh(self, seconds: float = 120) -> None:
        """Wait until root can log in on every host."""
        deadline = time.monotonic() + seconds
        for host in self.hosts:
            host.wait_ssh(max(1.0, deadline - time.monotonic()))

    def wait_slurm_idle(self, seconds: float = 90) -> None:
        """Wait until slurmctld says idle, and nothing else, of every node."""
        self.wait_idle(seconds)

    def stop_slurmctld(self) -> None:
        """Take slurmctld away (systemctl stop on the controller)."""
        self.ctl("systemctl stop slurmctld")

    def start_slurmctld(self) -> None:
        """Bring it back."""
        self.ctl("systemctl start slurmctld")

    def logs(self, lines: int = 8) -> str:
        """The ends of the supervisor's, the hosts' and Slurm's logs, for a failure's report."""
        told = []
        for path in [self.folder / "supervisor.log", *(host.folder / "log" for host in self.hosts)]:
            if path.is_file():
                told.append(f"--- {path}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-lines:]))
        return "\n".join(told)
