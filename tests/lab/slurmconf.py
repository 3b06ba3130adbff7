"""slurm.conf, gres.conf and cgroup.conf of the lab, as text. Pure: values in, text out.

The lines are those that work unchanged on Slurm 22.05, 24.11 and 26.05 (slurm.conf(5), gres.conf(5)).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SlurmNode:
    """One NodeName line. CPUs are declared; the machine may have fewer (SlurmdParameters=config_overrides).

    ``gpus`` are split evenly over the sockets in GRES order, /dev/nvidia0 first; ``minors`` gives another order of
    device minors where GRES index and minor differ. ``core_spec`` cores are kept from jobs (CoreSpecCount).
    """

    name: str
    hostname: str
    address: str
    port: int = 6818
    sockets: int = 2
    cores: int = 56
    threads: int = 1
    gpus: int = 8
    gpu_type: str = "h100"
    memory_mib: int = 2_000_000
    weight: int = 1
    minors: tuple[int, ...] = ()
    core_spec: int = 0

    @property
    def cpus(self) -> int:
        """CPUs declared to Slurm."""
        return self.sockets * self.cores * self.threads


@dataclass(frozen=True)
class Hooks:
    """Programs that Slurm is told to run: paths as the daemons see them, None for no such line.

    ``health_seconds`` is HealthCheckInterval; ``timeout_seconds`` is PrologEpilogTimeout, None for Slurm's own.
    """

    prolog: str | None = None
    epilog: str | None = None
    task_prolog: str | None = None
    task_epilog: str | None = None
    health_check: str | None = None
    health_seconds: int = 300
    timeout_seconds: int | None = None
    reboot: str | None = None

    def lines(self) -> list[str]:
        """Their lines of slurm.conf."""
        named = {
            "Prolog": self.prolog,
            "Epilog": self.epilog,
            "TaskProlog": self.task_prolog,
            "TaskEpilog": self.task_epilog,
            "HealthCheckProgram": self.health_check,
            "HealthCheckInterval": self.health_check and str(self.health_seconds),
            "HealthCheckNodeState": self.health_check and "ANY",
            "PrologEpilogTimeout": self.timeout_seconds and str(self.timeout_seconds),
            "RebootProgram": self.reboot,
        }
        return [f"{key}={value}" for key, value in named.items() if value]


def slurm_conf(
    nodes: tuple[SlurmNode, ...],
    *,
    controller: str,
    user: str = "root",
    hooks: Hooks | None = None,
    cgroup: bool = False,
    nohold: bool = False,
    return_to_service: int = 2,
    extra: str = "",
) -> str:
    """The whole file.

    ``controller`` is SlurmctldHost's value, ``user`` SlurmUser; ``cgroup`` constrains steps to their CPUs by cpuset;
    ``nohold`` sets SchedulerParameters=nohold_on_prolog_fail; ``extra`` is appended as it is.
    """
    lines = [
        "ClusterName=lab",
        f"SlurmctldHost={controller}",
        f"SlurmUser={user}",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        "StateSaveLocation=/var/spool/slurm/state",
        "SlurmctldPidFile=/run/slurmctld.pid",
        "SlurmdPidFile=/run/slurmd.%n.pid",
        "SlurmctldLogFile=/var/log/slurm/slurmctld.log",
        "SlurmdLogFile=/var/log/slurm/slurmd.%n.log",
        "SlurmdDebug=info",
        f"ProctrackType=proctrack/{'cgroup' if cgroup else 'linuxproc'}",
        f"TaskPlugin=task/affinity{',task/cgroup' if cgroup else ''}",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "MpiDefault=none",
        "GresTypes=gpu",
        "SlurmdParameters=config_overrides",
        "PrologFlags=Alloc",
        "MinJobAge=3600",
        "MessageTimeout=30",
        "SlurmdTimeout=60",
        "ResumeTimeout=120",
        "TreeWidth=64",
    ]
    if "SlurmdSpoolDir=" not in extra:
        lines.append("SlurmdSpoolDir=/var/spool/slurm/%n")
    if "ReturnToService=" not in extra:
        lines.append(f"ReturnToService={return_to_service}")
    if "SchedulerParameters=" not in extra:
        # Jobs start at once instead of within 3 s; a big cluster's default spares the scheduler, nothing else.
        lines.append(
            f"SchedulerParameters=batch_sched_delay=0,sched_min_interval=1000{',nohold_on_prolog_fail' if nohold else ''}"
        )
    lines += hooks.lines() if hooks else []
    lines += [line for line in extra.splitlines() if line.strip()]
    for node in nodes:
        gres = f" Gres=gpu:{node.gpu_type}:{node.gpus}" if node.gpus else ""
        lines.append(
            f"NodeName={node.name} NodeHostname={node.hostname} NodeAddr={node.address} Port={node.port} Boards=1"
            f" SocketsPerBoard={node.sockets} CoresPerSocket={node.cores} ThreadsPerCore={node.threads}"
            f" RealMemory={node.memory_mib}{gres} Weight={node.weight} State=UNKNOWN"
            + (f" CoreSpecCount={node.core_spec}" if node.core_spec else "")
        )
    if "PartitionName=" not in extra:
        lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


def gres_conf(nodes: tuple[SlurmNode, ...]) -> str:
    """Each node's GPUs with File= and the cores of their socket (Cores= counts cores, not threads)."""
    lines = []
    for node in nodes:
        minors = node.minors or tuple(range(node.gpus))
        for socket in range(node.sockets):
            share = minors[socket * node.gpus // node.sockets : (socket + 1) * node.gpus // node.sockets]
            first, last = socket * node.cores, (socket + 1) * node.cores - 1
            lines += [
                f"NodeName={node.name} Name=gpu Type={node.gpu_type} File=/dev/nvidia{minor}"
                f" Cores={first}{f'-{last}' if last > first else ''}"
                for minor in share
            ]
    return "\n".join(lines) + "\n"


def cgroup_conf(release: str, *, cgroup: bool, v1: bool) -> str:
    """``v1``: the controllers of this machine are in the v1 hierarchies (hybrid).

    There 22.05 says "Hybrid mode is not supported" to autodetect; releases from 23.11 on may do without any
    plug-in where nothing is constrained (cgroup.conf(5), CgroupPlugin=disabled).
    """
    if cgroup:
        return "CgroupPlugin=cgroup/v1\nConstrainCores=yes\n"
    if release >= "24":
        return "CgroupPlugin=disabled\n"
    return "CgroupPlugin=cgroup/v1\n" if v1 else "CgroupPlugin=autodetect\n"
