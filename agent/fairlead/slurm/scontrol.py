"""Speaks to slurmctld through scontrol, sinfo and squeue. The text that it reads is the same on 22.05, 24.11 and 26.05.

It uses sinfo and not ``scontrol show node``: for one node, sinfo asks for one record (REQUEST_NODE_INFO_SINGLE), and scontrol
fetches the records of all nodes. ``--Format=Field:SUFFIX`` without a width prints a field whole and without padding (sinfo(1),
-O). The suffix is a new random mark for each call. So a reason that contains line ends, ``=`` or invented fields is still read
exactly.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from fairlead.errors import NoSlurmConf, NoSuchJob, SlurmError, SlurmUnavailable
from fairlead.model.cpulist import cpus_in, parse_cpu_set
from fairlead.model.nodelist import expand
from fairlead.slurm import slurm_conf
from fairlead.slurm.client import JobOn, NodeState, NodeTimes
from fairlead.slurm.node_groups import NodeGroup, parse_topology

#: Paths of slurm.conf: a file of the node, or the file that a configless slurmd has fetched (slurm.conf(5), "configless"). At a
#: boot the agent starts before slurmd, and only the copy of the boot before is there, in slurmd's usual SlurmdSpoolDir.
CONF_PATHS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/var/spool/slurmd/conf-cache/slurm.conf")
#: What the clients print when slurmctld, munge or the network did not answer (src/common/slurm_errno.c).
NO_ANSWER = (
    "unable to contact slurm controller",
    "communication connection failure",
    "communication shutdown failure",
    "socket timed out",
    "zero bytes were transmitted or received",
    "connection refused",
    "connection reset",
    "no route to host",
    "transport endpoint is not connected",
    "unable to establish control machine address",
    "slurm backup controller in standby mode",
    "controller is in standby mode",
    "rate limit exceeded",
    "connection timed out",
    "connection rejected by handler",
    "connection forced closed",
    "read would block",
    "write would block",
    "authentication error",
    "authentication type",
    "insane message length",
    "header lengths are longer than data received",
    "unexpected missing socket error",
    "message receive failure",
    "message send failure",
    "resource temporarily unavailable",
    "unable to resolve",
)
NO_CONF = "could not establish a configuration source"
NO_JOB = "invalid job id"
FIELDS = ("NodeList", "NodeHost", "StateComplete", "User", "Timestamp", "PartitionName", "Reason")
_TOO_LATE = 124  # the exit status of our child process that was too late to start a write
#: What `scontrol -d show job` says of the nodes of a job, and the GPUs in it.
_DETAIL = re.compile(r"\bNodes=(\S{1,4096}) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_GPU_INDICES = re.compile(r"\bgpu(?::[^:,()]+)*\(IDX:([0-9,-]*)\)")
#: The states in which a job has its nodes, in squeue's compact words.
HOLDING = frozenset({"R", "CG", "CF", "S", "ST", "SO", "SI"})


class Scontrol:
    """Speaks to slurmctld through the command line tools.

    conf: the path for SLURM_CONF, or "" to search for it. bin_dir: the folder of the tools. deadline_seconds: the time limit of
    each call, after which the tool gets SIGKILL.
    """

    def __init__(self, *, conf: str = "", bin_dir: str = "/usr/bin", deadline_seconds: float = 10.0) -> None:
        self.conf = conf
        self.bin_dir = bin_dir
        self.deadline_seconds = deadline_seconds
        self._until = float("inf")
        self._read_seconds = 0.0  # how long the last reading took
        self._backup: tuple[str, float] = ("", 0.0)  # BOOT_TIME of the backup that answers, and when it first did

    def not_after(self, seconds: float) -> None:
        """Limit the next write. It is sent within ``seconds`` or not at all, even if this process or scontrol is delayed.

        If the host of the primary slurmctld does not answer, each command first waits for it in vain. The reading has waited too,
        and the write gets as much time in addition, but not more than Slurm waits for all controllers but the last.
        """
        extra = min(self._read_seconds, self._controller_wait_seconds()) if self._read_seconds > 0.5 else 0.0
        self._until = _boottime() + seconds + extra

    def _controller_wait_seconds(self) -> float:
        """Return how long Slurm's commands may wait for controllers that do not answer: 0 if there is only one controller."""
        path = self.conf_path()
        try:
            with open(path, encoding="utf-8", errors="replace") as f:
                return slurm_conf.controller_wait_seconds(f.read(4 << 20))
        except OSError:
            return 0.0

    def node(self, name: str) -> NodeState:
        found = self.nodes((name,))
        if len(found) != 1:
            raise SlurmError(
                f"slurmctld has no node {name} in any partition", hint="slurm.node_name must be the NodeName of slurm.conf"
            )
        return found[0]

    def nodes(self, names: Sequence[str] = ()) -> tuple[NodeState, ...]:
        mark = f"@{os.urandom(12).hex()}@"
        command = ["sinfo", "-h", "-a", "-N", "-O", ",".join(f"{field}:{mark}" for field in FIELDS)]
        if names:
            command += ["-n", ",".join(plain(name) for name in names)]
        asked = _boottime()
        text = self._run(command)
        self._read_seconds = _boottime() - asked
        return parse_nodes(text, mark)

    def jobs_on(self, name: str) -> tuple[JobOn, ...]:
        return parse_jobs(self.queue("-t", "all", "-w", plain(name), "-o", "%A %t %D"))

    def queue(self, *words: str) -> str:
        """Return squeue's lines for these options, without its header. The header shows that squeue has answered. Without a job
        it prints nothing else, and it may print a warning about slurm.conf. Raises SlurmUnavailable, SlurmError."""
        header, end, rows = self._run(["squeue", "-a", *words]).partition("\n")
        if not header or not end or not (rows or "\n").endswith("\n"):
            raise SlurmError("squeue: its output is empty or cut")
        return rows

    def gres_indices(self, job: int, name: str) -> frozenset[int] | None:
        """Return the GRES indices of all GPUs of a job on a node, or None if slurmctld does not say them. This takes one RPC."""
        return parse_gres_indices(self._run(["scontrol", "-o", "-d", "show", "job", str(job)]), job, name)

    def topology(self) -> tuple[NodeGroup, ...]:
        """Return leaf switches and blocks, or () if slurmctld has none. This takes one RPC (REQUEST_TOPO_INFO)."""
        return parse_topology(self._run(["scontrol", "-o", "show", "topology"]))

    def began(self) -> float:
        try:
            text = self._run(["scontrol", "show", "config"])
        # scontrol also pings slurmctld, and ends with 1 and without a message if slurmctld has just stopped
        except SlurmError as e:
            raise SlurmUnavailable(str(e), hint=e.hint or "is slurmctld up? scontrol ping") from None
        began = parse_began(text)
        if began < float("inf"):
            self._backup = ("", 0.0)
            return began
        # A backup does not say since when it has been in control. So it counts from when it was first seen in control here.
        boot = text.partition("BOOT_TIME")[2].partition("\n")[0].strip(" =")
        if self._backup[0] != boot or not boot:
            self._backup = (boot, time.time())
        return self._backup[1]

    def node_times(self) -> tuple[NodeTimes, ...]:
        return parse_node_times(self._run(["scontrol", "-o", "show", "node"]))

    def drain(self, name: str, reason: str) -> None:
        self._update(name, "State=DRAIN", f"Reason={reason}")

    def update_reason(self, name: str, reason: str) -> None:
        self._update(name, f"Reason={reason}")

    def resume(self, name: str) -> None:
        # UNDRAIN and not RESUME: RESUME would also lift a DOWN that somebody has set meanwhile (measured on all three releases).
        self._update(name, "State=UNDRAIN")

    def resume_down(self, name: str) -> None:
        """Clear DRAIN and DOWN."""
        self._update(name, "State=RESUME")

    def _update(self, name: str, *changes: str) -> None:
        until, self._until = self._until, float("inf")
        self._run(["scontrol", "update", f"NodeName={plain(name)}", *changes], until=until)

    def release(self) -> str:
        """Return Slurm's release on this node, such as ``24.11``, or "" if scontrol does not print it. This takes no RPC."""
        found = re.search(r"slurm\S* (\d+\.\d+)", self._run(["scontrol", "--version"]))
        return found[1] if found else ""

    def conf_path(self) -> str:
        """Return the path of the slurm.conf for the tools, or "" if they find the file themselves (DNS SRV records)."""
        return self.conf or next((path for path in CONF_PATHS if os.path.exists(path)), "")

    def cluster(self) -> str:
        """Return ClusterName in lower case, as Slurm compares it, or "" if slurm.conf cannot be read. This takes no RPC."""
        try:
            with open(self.conf_path(), encoding="utf-8", errors="replace") as f:
                found = re.findall(r"^[ \t]*ClusterName[ \t]*=[ \t]*([A-Za-z0-9_.-]{1,64})", f.read(4 << 20), re.M | re.I)
        except OSError:
            return ""
        return found[-1].lower() if found else ""

    def environment(self) -> Mapping[str, str]:
        """Return the whole environment of a Slurm client."""
        # Nothing is inherited: SLURM_CLUSTERS, SINFO_*, SQUEUE_* or a foreign SLURM_CONF would ask another cluster. In a
        # federation with FederationParameters=fed_display the commands would show all clusters, which may have nodes of one name.
        local = dict.fromkeys(("SINFO_LOCAL", "SQUEUE_LOCAL", "SACCT_LOCAL", "SCONTROL_LOCAL"), "1")
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", **local}
        conf = self.conf_path()
        return {**env, "SLURM_CONF": conf} if conf else env

    def ask(self, command: Sequence[str]) -> str:
        """Run another of Slurm's commands and return its standard output. Raises SlurmUnavailable, SlurmError with one line."""
        return self._run(command)

    def _run(self, command: Sequence[str], *, until: float = float("inf")) -> str:
        """Run a command. Only this method starts a process, and the kernel ends that process at ``until`` (CLOCK_BOOTTIME).
        Raises SlurmUnavailable, SlurmError with one line."""
        tool = f"{self.bin_dir}/{command[0]}"
        try:
            done = subprocess.run(
                [tool, *command[1:]],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self.deadline_seconds,
                check=False,
                cwd="/",
                start_new_session=True,  # Ctrl-C must reach this program only, and not end a write half way
                preexec_fn=partial(_end_at, until) if until < float("inf") else None,
            )
        except subprocess.TimeoutExpired:
            raise SlurmUnavailable(
                f"{command[0]} gave no answer in {self.deadline_seconds:g} s", hint="is slurmctld up? scontrol ping"
            ) from None
        except OSError as e:
            hint = "name the folder of Slurm's commands: --bin-dir DIR here, slurm.bin_dir in site.toml for the agents"
            raise SlurmError(f"{tool}: {e.strerror}", hint=hint) from None
        if done.returncode == -signal.SIGALRM or (until < float("inf") and done.returncode == _TOO_LATE):
            raise SlurmUnavailable(f"{command[0]} was too slow: a write is sent soon after the reading or not at all")
        if done.returncode < 0:
            raise SlurmUnavailable(f"{command[0]} was ended by signal {-done.returncode}")
        said = " ".join(done.stderr.decode(errors="replace").split())
        if done.returncode or (said and not done.stdout and command[0] != "scontrol"):
            raise _refusal(command, said or f"ended with {done.returncode}")
        return done.stdout.decode(errors="surrogateescape")


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _end_at(until: float) -> None:
    """Set a timer in the child process right before exec, which is the last time that this program's code runs there.

    The timer continues after exec (setitimer(2)). It also runs while the agent is stopped, because the kernel has it.
    """
    remaining = until - _boottime()
    if remaining <= 0:
        os._exit(_TOO_LATE)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a caller may have started us with SIGALRM ignored or blocked
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, remaining)


def plain(name: str) -> str:
    """Return the name. Raises SlurmError for a name that could be a nodelist expression or an option."""
    if not name or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name) or name.startswith("-"):
        raise SlurmError(f"{name!r} is not a node name")
    return name


def _refusal(command: Sequence[str], said: str) -> SlurmError:
    line = f"{command[0]}: {said[-300:]}"
    if NO_CONF in said.lower():
        return NoSlurmConf(line, hint="a node without slurm.conf has one when slurmd runs (/run/slurm/conf)")
    if any(text in said.lower() for text in NO_ANSWER):
        return SlurmUnavailable(line, hint="is slurmctld up? scontrol ping")
    return NoSuchJob(line) if NO_JOB in said.lower() else SlurmError(line)


def parse_nodes(text: str, mark: str) -> tuple[NodeState, ...]:
    """Return the nodes of sinfo's output whose fields end in ``mark``. A node in several partitions has several rows.

    Raises SlurmError when the output does not consist of whole rows.
    """
    return nodes_of(rows(text, mark, len(FIELDS)))


def rows(text: str, mark: str, width: int) -> list[list[str]]:
    """Return sinfo's rows of ``width`` fields that end in ``mark``. Raises SlurmError when the output does not consist of
    whole rows."""
    fields = text.split(mark)
    tail = fields.pop()
    if len(fields) % width or tail.strip():
        raise SlurmError("sinfo: its output is not what was asked for", hint="Slurm 22.05 or newer is needed")
    return [[fields[at].removeprefix("\n"), *fields[at + 1 : at + width]] for at in range(0, len(fields), width)]


def nodes_of(rows: Iterable[Sequence[str]]) -> tuple[NodeState, ...]:
    """Return the nodes from rows with the columns of ``FIELDS``."""
    found: dict[str, NodeState] = {}
    for name, host, states, user, stamp, partition, reason in rows:
        earlier = found.get(name)
        found[name] = NodeState(
            name=name,
            hostname=host,
            states=states_of(states),
            reason=_reason(reason, states),
            reason_user="" if user == "Unknown" else user,
            reason_time=_number(stamp) or 0,
            partitions=(*(earlier.partitions if earlier else ()), partition.rstrip("*")),
        )
    return tuple(found.values())


def states_of(text: str) -> frozenset[str]:
    """Return the words of a state such as ``idle+drain``. A suffix as in ``down*`` becomes the flag that it means (sinfo(1))."""
    marks = {"*": "NOT_RESPONDING", "$": "MAINTENANCE", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "!": "POWER_DOWN"}
    marks |= {"%": "POWERING_DOWN", "#": "POWERING_UP", "~": "POWERED_DOWN", "-": "PLANNED"}
    states: set[str] = set()
    for word in text.split("+"):
        states.add(word.rstrip("".join(marks)).upper())
        states.update(marks[c] for c in word[len(word.rstrip("".join(marks))) :])
    return frozenset(states - {""})


def _reason(text: str, states: str) -> str:
    """Return the reason. sinfo prints ``none`` for no reason. A drained node always has a reason, so for a drained node ``none``
    is its reason."""
    return "" if text == "none" and "drain" not in states and "fail" not in states else text


def parse_jobs(text: str) -> tuple[JobOn, ...]:
    """Return the jobs that have their nodes (running, completing, suspended, ...) from squeue's ``%A %t %D`` lines."""
    jobs = []
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[1] in HOLDING:
            nodes = _number(words[2])
            if nodes is not None:
                jobs.append(JobOn(id=words[0], state=words[1], nodes=nodes))
    return tuple(jobs)


def parse_gres_indices(text: str, job: int, name: str) -> frozenset[int] | None:
    """Return the GRES indices of a job's GPUs on a node from `scontrol -o -d show job`, or None if it does not say them.

    A job's name and comment are in this text too, and may look like such a list. They can only add indices.
    """
    found: set[int] | None = None
    for line in text.splitlines():
        for nodes, gres in _DETAIL.findall(line) if line.startswith(f"JobId={job} ") else ():
            try:
                if name in expand(nodes):
                    lists = [parse_cpu_set(indices) for indices in _GPU_INDICES.findall(gres) if indices]
                    found = (found or set()).union(*map(cpus_in, lists))
            except ValueError:
                return None
    return None if found is None else frozenset(found)


def parse_began(text: str) -> float:
    """Return BOOT_TIME of `scontrol show config`: when slurmctld's process began (slurmctld/controller.c, _init_config).

    If the primary slurmctld is down, a backup has answered. A backup takes over the state some time after its process began, so
    the result is inf.
    """
    began = re.search(r"^BOOT_TIME\s*= (\d{1,15})$", text, re.M)
    primary = re.search(r"^Slurmctld\(primary\)[^\n]* is UP$", text, re.M)
    return float(began[1]) if began and primary else float("inf")


def parse_node_times(text: str) -> tuple[NodeTimes, ...]:
    """Return the times from `scontrol -o show node`, which prints a node per line, with ``[USER@TIME]`` at the end of its reason.

    Reason and comment can be trusted here, because only users who may change nodes can write them.
    """
    found = []
    for record in re.split(r"^(?=NodeName=)", text, flags=re.M)[1:]:
        began = re.search(r" SlurmdStartTime=(\d{1,15})\b", record)
        reason = record.partition(" Reason=")[2].partition(" Comment=")[0]
        times = re.findall(r"\[[^\s@\]]+@(\d{1,15})\]", reason)
        name = record.split(maxsplit=1)[0].removeprefix("NodeName=")
        found.append(NodeTimes(name=name, reason_time=int(times[-1]) if times else 0, slurmd_began=int(began[1]) if began else 0))
    return tuple(found)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None
