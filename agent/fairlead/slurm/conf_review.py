"""Reviews a site's Slurm configuration: what fairlead needs in it, what does harm, and why. It changes nothing.

Each remark names its source: slurm.conf(5), Slurm's "Prolog and Epilog Guide", or an issue thread.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator

from msgspec import Struct

from fairlead.model.plain_text import one_line
from fairlead.slurm.slurm_conf import SlurmConf
from fairlead.slurm_config import listed_gpus

PROLOG_NAME = "50-fairlead"


class Remark(Struct, frozen=True, kw_only=True):
    """Holds one remark. ``level``: ok, note, warn or wrong. ``fix``: the line to write, or what to do."""

    level: str
    what: str
    why: str = ""
    fix: str = ""
    source: str = ""


def review(conf: SlurmConf, *, hooks: Iterable[str], plugstack: str, version: tuple[int, ...] | None) -> Iterator[Remark]:
    """Return remarks on a slurm.conf. ``hooks``: paths of our hooks as installed. ``plugstack``: the text of plugstack.conf with
    the files that it includes. ``version``: Slurm's release, such as (24, 11, 5)."""
    installed = tuple(hooks)
    yield from _hook_line(conf, "Prolog", installed, f"/etc/slurm/prolog.d/{PROLOG_NAME}")
    yield from _hook_line(conf, "Epilog", installed, f"/etc/slurm/epilog.d/{PROLOG_NAME}")
    yield from _hook_line(conf, "TaskProlog", installed, "/etc/slurm/fairlead/task-prolog")
    yield from _hook_line(conf, "HealthCheckProgram", installed, "/etc/slurm/fairlead/health-check")
    yield from _prolog_behaviour(conf)
    yield from _limits(conf)
    yield from _binding(conf)
    yield from _pyxis(conf, plugstack, version)
    yield from _spank(plugstack)
    yield from _power_saving(conf, version)


def copy_remarks(path: str, text: str, node_file: str | None) -> Iterator[Remark]:
    """Return remarks on a slurm.conf that slurmd has fetched from slurmctld. ``node_file``: the text of /etc/slurm/slurm.conf if
    slurmd has fetched its own, or None. ``text``: that of slurmd's copy."""
    if node_file is not None and node_file != text:
        yield Remark(
            level="warn",
            what=f"/etc/slurm/slurm.conf differs from slurmd's copy {path}",
            why="slurmd uses what slurmctld has sent; Slurm's commands and fairlead read the file in /etc/slurm first",
            fix="remove /etc/slurm/slurm.conf on nodes that run slurmd with --conf-server",
            source="slurm.conf(5) enable_configless",
        )
    elif node_file is None:
        yield Remark(
            level="note",
            what=f"{path} is slurmd's copy of the controller's file",
            why="slurmd replaces it when it starts and at each `scontrol reconfigure`",
            fix="change slurm.conf on the controller, then run scontrol reconfigure",
            source="slurm.conf(5) enable_configless",
        )


def gres_remarks(gres_conf: str) -> Iterator[Remark]:
    """Return remarks on the text of gres.conf. With AutoDetect=nvml, slurmd takes the UUIDs from NVML also for instances that are
    listed."""
    lines = [line.partition("#")[0].lower() for line in gres_conf.splitlines()]
    detected = {_nodes(line) for line in lines if "autodetect=nvml" in line}
    by_hand = [line for line in lines if "multiplefiles=" in line]
    if any("autodetect=off" in line or detected.isdisjoint({"", _nodes(line)}) for line in by_hand):
        yield Remark(
            level="warn",
            what="gres.conf has MultipleFiles",
            why="Slurm then sets CUDA_VISIBLE_DEVICES to its index, which names no MIG instance for CUDA",
            fix="AutoDetect=nvml in gres.conf, with or without lines for the MIG instances",
            source="gres.conf(5) MultipleFiles, AutoDetect",
        )


def mig_remarks(lines: Iterable[str], node: str, minors: str, topology: str) -> Iterator[Remark]:
    """Return a remark for each mistake in gres.conf's lines of MIG instances. ``minors``: the driver's list of capabilities.
    ``topology``: the agent's published file, which names the MIG instances that are there."""
    try:
        listed = listed_gpus.gpu_lines(lines, node)
    except ValueError as e:
        yield Remark(level="wrong", what=f"gres.conf: {one_line(str(e), 300)}", fix="correct that line", source="gres.conf(5)")
        return
    rows = [line.split("\t") for line in topology.splitlines()]
    minor_of = {row[4]: row[2] for row in rows if row[0] == "gpu" and len(row) > 4}
    present: dict[int, set[tuple[int, int]]] = {}
    for row in rows:
        gpu = minor_of.get(row[2], "-") if row[0] == "mig" and len(row) > 4 else "-"
        if gpu.isdecimal() and row[3].isdecimal() and row[4].isdecimal():
            present.setdefault(int(gpu), set()).add((int(row[3]), int(row[4])))
    for mistake in listed_gpus.mistakes(listed or (), listed_gpus.capabilities(minors), present):
        yield Remark(
            level="wrong",
            what=f"gres.conf: {one_line(mistake, 300)}",
            why="Slurm gives a job another MIG instance than it counts, one instance to two jobs, or none",
            fix=f"one line for each instance: the file of its GPU and two /dev/nvidia-caps/nvidia-capN by {listed_gpus.MINORS}",
            source="gres.conf(5) MultipleFiles; MIG user guide, Device Nodes and Capabilities",
        )


def _nodes(line: str) -> str:
    """Return the nodelist of a line of gres.conf, or "" for a line that holds for all nodes."""
    return next((word.partition("=")[2] for word in line.split() if word.startswith("nodename=")), "")


def _hook_line(conf: SlurmConf, key: str, installed: tuple[str, ...], standard: str) -> Iterator[Remark]:
    value = conf.get(key)
    ours = next((p for p in installed if p.rsplit("/", 2)[-2:] == standard.rsplit("/", 2)[-2:]), standard)
    if not value:
        target = f"{ours.rsplit('/', 1)[0]}/*" if key in {"Prolog", "Epilog"} else ours
        yield Remark(
            level="wrong", what=f"{key} is not set", why=f"without it {_LOST[key]}", fix=f"{key}={target}", source="slurm.conf(5)"
        )
    elif any(fnmatch.fnmatchcase(ours, pattern.strip()) for pattern in value.split(",")):
        yield Remark(level="ok", what=f"{key}={value}")
    elif key == "TaskProlog":
        yield Remark(
            level="warn",
            what=f"TaskProlog={value} is the site's own",
            why="Slurm runs one task prolog; fairlead's runs yours first and passes its output and status on",
            fix=f'TaskProlog={ours}, and hooks.site_task_prolog = "{value}" in site.toml',
            source="slurm.conf(5) TaskProlog",
        )
    else:
        yield Remark(
            level="wrong",
            what=f"{key}={value} does not run {ours}",
            why=f"without it {_LOST[key]}",
            fix=f"{key}={ours} or its folder as a glob",
        )


_LOST = {
    "Prolog": "jobs start on nodes that the agent has found broken",
    "Epilog": "the end of a job asks for no fresh look at the GPUs",
    "TaskProlog": "jobs get neither environment nor binding",
    "HealthCheckProgram": "nothing on the node notes a dead agent",
}


def _prolog_behaviour(conf: SlurmConf) -> Iterator[Remark]:
    flags = conf.options("PrologFlags")
    if not flags & {"alloc", "contain", "x11", "runinjob"}:
        yield Remark(
            level="wrong",
            what="PrologFlags lacks Alloc",
            why="without it the prolog runs at the first step, after salloc has handed out a broken node",
            fix=f"PrologFlags={','.join(sorted({*(f.capitalize() for f in flags), 'Alloc'}))}",
            source="slurm.conf(5) PrologFlags",
        )
    if "nohold_on_prolog_fail" not in conf.options("SchedulerParameters"):
        yield Remark(
            level="warn",
            what="SchedulerParameters lacks nohold_on_prolog_fail",
            why="a batch job that a prolog refused stays held until a person releases it; with it the job is tried again"
            " elsewhere after two minutes",
            fix="SchedulerParameters=...,nohold_on_prolog_fail",
            source="slurm.conf(5) SchedulerParameters; docs/how-to/refused-jobs.md; measured on 22.05, 24.11, 26.05",
        )
    if conf.get("JobRequeue", "1") == "0":
        yield Remark(
            level="warn",
            what="JobRequeue=0",
            why="a batch job that a prolog refused is cancelled, unless it was submitted with --requeue",
            fix="JobRequeue=1, and users of jobs that must not run twice add --no-requeue",
            source="slurm.conf(5) JobRequeue; docs/how-to/refused-jobs.md",
        )
    timeout = conf.get("PrologEpilogTimeout") or conf.get("PrologTimeout")
    if not timeout or timeout in {"65534", "0"}:
        yield Remark(
            level="note",
            what="PrologEpilogTimeout is not set",
            why="another prolog of the site that hangs then holds its job for ever (fairlead's own cannot hang)",
            fix="PrologEpilogTimeout=300",
            source="slurm.conf(5)",
        )
    interval = conf.get("HealthCheckInterval", "0")
    if conf.get("HealthCheckProgram") and interval in {"", "0"}:
        yield Remark(
            level="warn", what="HealthCheckInterval is 0", why="HealthCheckProgram never runs", fix="HealthCheckInterval=300"
        )
    if conf.get("ReturnToService", "0") == "2":
        yield Remark(
            level="note",
            what="ReturnToService=2",
            why="a DOWN node returns by itself when slurmd registers; drains are not touched by it",
            source="slurm.conf(5) ReturnToService",
        )


def _power_saving(conf: SlurmConf, version: tuple[int, ...] | None) -> Iterator[Remark]:
    if not conf.get("SuspendProgram") or conf.get("SuspendTime", "-1").lower() in {"-1", "infinite"}:
        return
    why = "a drained node is idle, so slurmctld switches it off after SuspendTime, and then lifts the drain by itself"
    if version is not None and version < (23, 2):
        yield Remark(
            level="warn",
            what="SuspendTime also switches off drained nodes",
            why=why,
            fix="Slurm 23.02 and newer have SuspendExcStates; before, name drained nodes in SuspendExcNodes",
            source="slurm.conf(5) SuspendTime; docs/how-to/slurm-arrangements.md",
        )
    elif "drain" not in conf.options("SuspendExcStates"):
        yield Remark(
            level="warn",
            what="SuspendExcStates lacks DRAIN",
            why=why,
            fix=f"SuspendExcStates={','.join(sorted({*map(str.upper, conf.options('SuspendExcStates')), 'DOWN', 'DRAIN'}))}",
            source="slurm.conf(5) SuspendExcStates; docs/how-to/slurm-arrangements.md",
        )
    hides = version is not None and version < (23, 2) and "cloud" not in conf.options("PrivateData")
    if hides and any(node.get("state", "").lower() == "cloud" for node in conf.nodes):
        yield Remark(
            level="warn",
            what="PrivateData lacks cloud",
            why="slurmctld before 23.02 lists no node of State=CLOUD that is off: fleet does not know it, Prometheus expects it",
            fix=f"PrivateData={','.join(sorted({*conf.options('PrivateData'), 'cloud'}))}",
            source="src/slurmctld/node_mgr.c of 22.05 (_is_cloud_hidden); docs/how-to/slurm-arrangements.md",
        )


def _limits(conf: SlurmConf) -> Iterator[Remark]:
    excepted = conf.options("PropagateResourceLimitsExcept")
    propagated = conf.get("PropagateResourceLimits", "ALL").upper()
    if "memlock" not in excepted and "all" not in excepted and propagated != "NONE":
        yield Remark(
            level="warn",
            what="MEMLOCK is propagated from the submit host",
            why="a login node's small memlock limit reaches the tasks and RDMA registration fails, whatever slurmd's unit says",
            fix="PropagateResourceLimitsExcept=MEMLOCK",
            source="slurm.conf(5) PropagateResourceLimits",
        )


def _binding(conf: SlurmConf) -> Iterator[Remark]:
    plugins = conf.options("TaskPlugin")
    if conf.get("TaskProlog") and not any(p.endswith("affinity") for p in plugins):
        yield Remark(
            level="warn",
            what="TaskPlugin lacks task/affinity",
            why="Slurm assigns no CPU masks, so the task prolog has nothing to bind",
            fix="TaskPlugin=task/affinity,task/cgroup",
            source="slurm.conf(5) TaskPlugin",
        )


def _pyxis(conf: SlurmConf, plugstack: str, version: tuple[int, ...] | None) -> Iterator[Remark]:
    _, names = _plugins(plugstack)
    pyxis = next((at for at, name in enumerate(names) if "pyxis" in name), None)
    if pyxis is None or not conf.get("TaskProlog"):
        return
    fixed = _PYXIS_FIXED.get(version[:2]) if version else None
    if fixed and version and (len(version) < 3 or version[2] < fixed):
        yield Remark(
            level="wrong" if len(version) > 2 else "warn",
            what=f"pyxis with TaskProlog on Slurm {_release(version)}",
            why="before " + " and ".join(_release((*release, micro)) for release, micro in _PYXIS_FIXED.items()) + _PYXIS_BROKEN,
            fix="upgrade Slurm, or take TaskProlog out and use the SPANK plugin listed before pyxis",
            source="CHANGELOG of Slurm 24.11.7 and 25.05.2; NVIDIA/pyxis issue 163",
        )
        return
    bound = "fairlead.so" in names[:pyxis]
    yield Remark(
        level="warn",
        what="pyxis with TaskProlog",
        why="the task prolog runs inside the container, where a missing file ends the task" + ("" if bound else _PYXIS_UNBOUND),
        fix="mount /etc/slurm/fairlead and /run/fairlead into containers (setting enroot)"
        + ("" if bound else "; to bind, list the SPANK plugin before pyxis"),
        source="NVIDIA/pyxis issue 83; docs/how-to/containers.md",
    )


def _release(version: tuple[int, ...]) -> str:
    return ".".join([str(version[0]), f"{version[1]:02d}", *map(str, version[2:])])


def _plugins(plugstack: str) -> tuple[list[list[str]], list[str]]:
    """Return the words of each line that names a plugin, and the plugins' file names, in the order in which Slurm loads them."""
    lines = [words for line in plugstack.splitlines() if len(words := line.partition("#")[0].split()) > 1]
    return lines, [words[1].rpartition("/")[2] for words in lines]


def _spank(plugstack: str) -> Iterator[Remark]:
    """Yield remarks on fairlead's SPANK plugin in plugstack.conf."""
    lines, names = _plugins(plugstack)
    if "fairlead.so" not in names:
        return
    at = names.index("fairlead.so")
    if lines[at][0] != "optional":
        yield Remark(
            level="wrong",
            what=f"plugstack.conf: fairlead.so is {lines[at][0]}",
            why="a required plugin that is missing, or built for another release, stops every srun and sbatch",
            fix=f"optional {' '.join(lines[at][1:])}",
            source="spank(8) CONFIGURATION",
        )
    if any("pyxis" in name for name in names[:at]):
        yield Remark(
            level="warn",
            what="plugstack.conf: fairlead.so comes after pyxis",
            why="pyxis enters the container in task_init, in the order of the file: ours then finds no /run/fairlead",
            fix="list fairlead.so before pyxis",
            source="spank(8), NVIDIA/pyxis",
        )


#: The micro release in which a broken Slurm release runs a task prolog in a container of pyxis again. Other releases always do.
_PYXIS_FIXED: dict[tuple[int, ...], int] = {(24, 11): 7, (25, 5): 2}
_PYXIS_BROKEN = (
    " slurmstepd starts the task prolog by running itself inside the container, where its file and libraries are missing"
)
_PYXIS_UNBOUND = (
    ", and cannot bind the task, because the task has more capabilities in the container's user namespace than its prolog"
)
