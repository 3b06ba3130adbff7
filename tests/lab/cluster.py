"""A bare real-Slurm cluster: munged, slurmctld and N slurmd of one Debian release, up in about a second.

    with Cluster("bookworm", nodes=4, prolog=Path("slurm/prolog").absolute()) as slurm:
        job = slurm.submit("#!/bin/sh\\nhostname\\n", "-N2")
        slurm.wait_job(job, "COMPLETED")

No systemd and no simulated hardware (rack.py has both): the daemons run in one root, in namespaces of their own
(mount, PID, network with loopback only), each slurmd with its own /run/fairlead, /etc/fairlead and
/var/lib/fairlead. It all ends with the ``with`` block, or with the process that made it, however that ends. Make
it from the main thread: the kernel ends it with the *thread* that started it.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.lab import accounting, bounds, box, cpus, slurmconf
from tests.lab.clients import CLIENTS, SlurmClients
from tests.lab.enter import enter_command, run_inside
from tests.lab.ledger import Ledger
from tests.lab.roots import SUITES, LabError, root

_count = itertools.count(1)


@dataclass(frozen=True)
class NodeDirs:
    """One slurmd's own folders as seen from the machine: what that node's hooks find in those places."""

    run: Path
    etc: Path
    var: Path


@dataclass
class Cluster(SlurmClients):
    """See the module's text. Paths in hooks are paths inside; a ``Path`` object is a file of the machine, which is
    bound to /etc/slurm/hooks/ and named there (so is what lies beside it in its folder).

    real        adds node r1: 2 sockets x 1 core of this machine's own CPUs, 2 GPUs, high weight
    simulated   2 x 56 CPUs that tasks can really be bound to (fakeaff.c), on n1..nN; else CPUs are only declared
    cgroup      steps are constrained by real v1 cpusets (hybrid machines only); use with nodes=0, real=True
    cgroup_conf lines for cgroup.conf, such as ConstrainRAMSpace=yes
    files       path inside -> content; executable where it starts with '#!'
    binds       path on the machine -> path inside, read-only
    shared      folders of the machine that are there inside under the same path, to be written too
    cores       per socket of n1..nN; 2 sockets; ``threads`` per core
    topology    topology.conf, for a TopologyPlugin named in ``extra_conf``
    accounting  slurmdbd with a MariaDB of its own (tests/lab/accounting.py), both up before slurmctld
    controllers SlurmctldHost of each slurmctld; start() starts only the first one (tests/lab/failover.py has a second one)
    """

    suite: str = "bookworm"
    nodes: int = 4
    prolog: str | Path | None = None
    epilog: str | Path | None = None
    task_prolog: str | Path | None = None
    task_epilog: str | Path | None = None
    health_check: str | Path | None = None
    health_seconds: int = 300
    timeout_seconds: int | None = None
    reboot: str | Path | None = None
    extra_conf: str = ""
    topology: str = ""
    nohold: bool = False
    real: bool = False
    simulated: bool = False
    cgroup: bool = False
    cgroup_conf: str = ""
    gpus: int = 8
    cores: int = 56
    threads: int = 1
    files: Mapping[str, str] = field(default_factory=dict)
    binds: Mapping[str | Path, str] = field(default_factory=dict)
    shared: Sequence[Path] = ()
    accounting: bool = False
    controllers: tuple[str, ...] = ("lab(127.0.0.1)",)
    name: str = ""
    pid: int = 0

    def __post_init__(self) -> None:
        self.name = self.name or f"cluster-{os.getpid()}-{next(_count)}"
        self.ledger = Ledger(self.name)
        self.folder = self.ledger.folder
        self.bin = self.folder / "bin"
        self.log = self.folder / "log"
        declared = [
            slurmconf.SlurmNode(f"n{i}", "lab", "127.0.0.1", 6900 + i, cores=self.cores, threads=self.threads, gpus=self.gpus)
            for i in range(1, self.nodes + 1)
        ]
        if self.real:
            declared.append(slurmconf.SlurmNode("r1", "lab", "127.0.0.1", 6900, cores=1, gpus=2, weight=1000))
        self.slurm_nodes = tuple(declared)
        self._hold: subprocess.Popen[str] | None = None
        self._memory: Path | None = None

    # -- up and down ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            print(self.logs(), file=sys.stderr)
        self.stop()

    def start(self) -> None:
        """Bring everything up and wait until every node is idle; raises LabError with the logs' ends."""
        lower = accounting.lower(self.suite) if self.accounting else str(root(self.suite))
        self.ledger.open()
        try:
            self._lay_out()
            self._open_box(lower)
            self._exec("/usr/bin/setpriv --reuid=munge --regid=munge --clear-groups /usr/sbin/munged")
            if self.accounting:
                self._exec(accounting.START_DATABASE)
                self.start_slurmdbd()
                self._exec(accounting.ADD_USERS)
            self.start_slurmctld()
            for node in self.slurm_nodes:
                self.start_slurmd(node.name)
            self.wait_idle()
        except BaseException as error:
            logs = self.logs()
            self.stop()
            if isinstance(error, LabError):
                raise LabError(f"{error}\n{logs}") from None
            raise

    def stop(self) -> None:
        """End every process, drop every mount and folder. Harmless when it is not up."""
        if self._hold is not None:
            self._hold.kill()
            self._hold.communicate()
            self._hold = None
        self.pid = 0
        stuck = self.ledger.end()
        if stuck:
            raise LabError(f"cluster {self.name}: {'; '.join(stuck)}")

    def _lay_out(self) -> None:
        for sub in ("bin", "log", "scratch", "etc", "hooks"):
            (self.folder / sub).mkdir()
        self.log.chmod(0o755)
        for node in self.slurm_nodes:
            for where in ("run", "etc", "var"):
                (self.folder / "nodes" / node.name / where).mkdir(parents=True)
        self.write_conf()

    def write_conf(self, **changes: object) -> None:
        """Write slurm.conf and the rest, after changing the named fields (such as extra_conf, prolog).

        Follow with ``scontrol("reconfigure")`` when the cluster is up. A new hook outside the folders bound at
        the start must be a path inside.
        """
        for key, value in changes.items():
            if key not in self.__dataclass_fields__:
                raise LabError(f"a cluster has no {key}")
            setattr(self, key, value)
        hooks = slurmconf.Hooks(
            prolog=self._inside(self.prolog),
            epilog=self._inside(self.epilog),
            task_prolog=self._inside(self.task_prolog),
            task_epilog=self._inside(self.task_epilog),
            health_check=self._inside(self.health_check),
            health_seconds=self.health_seconds,
            timeout_seconds=self.timeout_seconds,
            reboot=self._inside(self.reboot),
        )
        etc = self.folder / "etc"
        conf = slurmconf.slurm_conf(
            self.slurm_nodes,
            controller="\nSlurmctldHost=".join(self.controllers),
            hooks=hooks,
            cgroup=self.cgroup,
            nohold=self.nohold,
            extra=self.extra_conf + (accounting.slurm_conf_lines("localhost") if self.accounting else ""),
        )
        if self.accounting:
            (etc / "slurmdbd.conf").write_text(accounting.slurmdbd_conf("localhost", "root"))
            (etc / "slurmdbd.conf").chmod(0o600)
        (etc / "slurm.conf").write_text(conf)
        (etc / "gres.conf").write_text(slurmconf.gres_conf(self.slurm_nodes))
        v1 = bool(cpus.v1_controllers())
        (etc / "cgroup.conf").write_text(slurmconf.cgroup_conf(SUITES[self.suite], cgroup=self.cgroup, v1=v1) + self.cgroup_conf)
        if self.topology:
            (etc / "topology.conf").write_text(self.topology)
        for inside, text in self.files.items():
            path = self.folder / "files" / inside.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755 if text.startswith("#!") else 0o644)

    def _inside(self, hook: str | Path | None) -> str | None:
        if isinstance(hook, Path):
            return f"/run/lab-hooks{hook.resolve()}"
        return hook

    def _open_box(self, lower: str) -> None:
        binds: list[box.Bind] = [(str(self.folder / "etc"), "/etc/slurm", False), (str(self.log), "/var/log/slurm", False)]
        binds.append((str(self.folder / "nodes"), "/run/lab-nodes", False))
        hooks = (self.prolog, self.epilog, self.task_prolog, self.task_epilog, self.health_check, self.reboot)
        folders = sorted({hook.resolve().parent for hook in hooks if isinstance(hook, Path)})
        binds += [(str(each), f"/run/lab-hooks{each}", True) for each in folders]
        binds += [(str(self.folder / "files" / inside.lstrip("/")), inside, False) for inside in self.files]
        binds += [(str(Path(source).resolve()), inside, True) for source, inside in self.binds.items()]
        binds += [(str(each), str(each), False) for each in self.shared]
        if self.simulated:
            binds.append((str(cpus.fakeaff()), cpus.INSIDE, True))
        major = box.free_major()
        groups = cpus.own_cpusets(self.name) if self.cgroup else {}
        memory = self._memory = groups.get("memory") or bounds.v1_group(self.name)
        for group in groups.values():
            self.ledger.add("cgroup", group)
        cpus.make(groups)
        if memory and memory not in groups.values():
            self.ledger.add("cgroup", memory)
        if memory:
            bounds.limit(memory, bounds.CLUSTER_MIB)
        spec = {
            "hostname": "lab",
            "lower": lower,
            "scratch": str(self.folder / "scratch"),
            "binds": binds,
            "devices": [(f"nvidia{minor}", major, minor, 0o666) for minor in range(self.gpus)],
            "controllers": list(groups),
            "cgroups": [str(group) for group in {*groups.values(), memory} if group],
            "proc_ro": True,
        }
        file = self.folder / "box.json"
        file.write_text(json.dumps(spec))
        command = [sys.executable, "-m", "tests.lab.hold", str(file)]
        project = Path(__file__).resolve().parents[2]
        self._hold = subprocess.Popen(command, cwd=project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.ledger.process("process", self._hold.pid)
        assert self._hold.stdout is not None
        answer = self._hold.stdout.readline().strip()
        if not answer.isdigit():
            raise LabError(f"cluster {self.name}: {answer or 'its namespaces could not be made'}")
        self.pid = int(answer)
        self.ledger.process("process", self.pid)
        self._wrappers()
        prepare = "mkdir -p /var/spool/slurm /run/fairlead /etc/fairlead /var/lib/fairlead /run/slurm"
        prepare += "; install -d -o munge -g munge -m 755 /run/munge; install -d -m 777 /run/fakeaff"
        self._exec(prepare)

    def _wrappers(self) -> None:
        simulated = [f"{key}={value}" for key, value in self._simulation().items()]
        for client in CLIENTS:
            command = [*enter_command(self.pid), *(["/usr/bin/env", *simulated] if simulated else []), f"/usr/bin/{client}"]
            path = self.bin / client
            path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
            path.chmod(0o755)

    def _simulation(self) -> dict[str, str]:
        return cpus.simulation(2, self.cores, self.threads) if self.simulated else {}

    def _exec(self, script: str) -> None:
        """Run a shell script inside as root, which may start daemons; raises LabError when it fails."""
        done = run_inside(self.pid, ["/bin/sh", "-c", script], env=self._simulation(), check=False, cgroup=self._memory)
        if done.returncode:
            raise LabError(f"cluster {self.name}: {script.split(maxsplit=1)[0]}: {done.stderr.strip() or done.stdout.strip()}")

    # -- daemons ----------------------------------------------------------------------------------

    def start_slurmctld(self, *options: str) -> None:
        """Start slurmctld (its saved state is kept over a stop), with options such as ``-c``."""
        self._exec(f"mkdir -p /var/spool/slurm/state && exec /usr/sbin/slurmctld {shlex.join(options)}")

    def stop_slurmctld(self, *, kill: bool = False) -> None:
        """Stop slurmctld and wait for its end; ``kill`` by SIGKILL."""
        self._stop("/run/slurmctld.pid", kill)

    def start_slurmdbd(self) -> None:
        """Start slurmdbd and wait until it answers (its database is kept over a stop)."""
        self._exec(f"/usr/sbin/slurmdbd\n{accounting.ANSWERS}")

    def stop_slurmdbd(self, *, kill: bool = False) -> None:
        """Stop slurmdbd and wait for its end; ``kill`` by SIGKILL. slurmctld keeps what it has to send."""
        self._stop("/run/slurmdbd.pid", kill)

    def start_slurmd(self, name: str, *options: str) -> None:
        """Start one node's slurmd in a mount namespace with that node's own fairlead folders; ``-b``: the node has booted."""
        simulation = "" if name == "r1" else " ".join(f"{key}='{value}'" for key, value in self._simulation().items())
        places = (("run", "/run/fairlead"), ("etc", "/etc/fairlead"), ("var", "/var/lib/fairlead"))
        script = "; ".join(f"mount --bind /run/lab-nodes/{name}/{own} {place}" for own, place in places)
        script += f"; exec env {simulation} /usr/sbin/slurmd -N {name} {shlex.join(options)}"
        self._exec(f"exec unshare --mount --propagation private /bin/sh -ec {shlex.quote(script)}")

    def stop_slurmd(self, name: str, *, kill: bool = False) -> None:
        """Stop one node's slurmd; running steps go on, as they do on a real node."""
        self._stop(f"/run/slurmd.{name}.pid", kill)

    def power_off(self, name: str) -> None:
        """As pulling the plug: SIGKILL to one node's slurmd and to all that it runs, which are in its mount namespace."""
        pid = int(self.run(["/bin/cat", f"/run/slurmd.{name}.pid"]).stdout)
        listed = Path(f"/proc/{self.pid}/root/proc")
        space = os.readlink(listed / str(pid) / "ns/mnt")
        for each in listed.glob("[0-9]*"):
            try:
                if os.readlink(each / "ns/mnt") == space:
                    self.run(["/bin/kill", "-KILL", each.name], check=False)
            except OSError:
                continue

    def _stop(self, pid_file: str, kill: bool) -> None:
        signal = "KILL" if kill else "TERM"
        wait = "n=0; while kill -0 $p 2>/dev/null && [ $n -lt 200 ]; do sleep 0.05; n=$((n+1)); done; ! kill -0 $p 2>/dev/null"
        self._exec(f"p=$(cat {pid_file}) && kill -{signal} $p && {{ {wait}; }} && rm -f {pid_file}")

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
        """See SlurmClients.run; also where the simulated CPUs are."""
        environment = {**self._simulation(), **(env or {})}
        return run_inside(self.pid, command, user=user, env=environment, check=check, timeout=timeout, stdin=stdin)

    def pids(self, command: str) -> list[int]:
        """Its processes of this name (proc(5), comm) as the machine numbers them, by their PID namespace."""
        inside, found = os.readlink(f"/proc/{self.pid}/ns/pid"), []
        for each in Path("/proc").glob("[0-9]*"):
            try:
                if (each / "comm").read_text() == f"{command}\n" and os.readlink(each / "ns/pid") == inside:
                    found.append(int(each.name))
            except OSError:
                continue
        return found

    @property
    def node_names(self) -> tuple[str, ...]:
        """n1 ... nN, then r1 where asked for."""
        return tuple(node.name for node in self.slurm_nodes)

    def node_dirs(self, name: str) -> NodeDirs:
        """The folders that this node's hooks see as /run/fairlead, /etc/fairlead and /var/lib/fairlead."""
        base = self.folder / "nodes" / name
        return NodeDirs(base / "run", base / "etc", base / "var")

    def logs(self, lines: int = 8) -> str:
        """The ends of every daemon's log, for a failure's report."""
        told = []
        for path in sorted(self.log.glob("*.log")) if self.log.is_dir() else ():
            tail = [line for line in path.read_text(errors="replace").splitlines() if "mpi/pmix" not in line][-lines:]
            told.append(f"--- {path.name}\n" + "\n".join(tail))
        return "\n".join(told)
