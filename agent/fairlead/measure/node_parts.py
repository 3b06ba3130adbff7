"""Reads from a node its parts of a result's key, and asks all nodes of the job for theirs by one srun.

Everything is read as the calling user: /proc/driver/nvidia, /sys and the variables that Slurm sets. No driver library is loaded.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from fairlead.errors import FairleadError, SlurmError
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.measure.nccl_launch import OUTPUT_MAX_BYTES, launch
from fairlead.measure.tool import last_line
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.json_text import NOT_JSON
from fairlead.model.nodelist import fold
from fairlead.model.plain_text import one_line
from fairlead.nccl import debug_lines
from fairlead.nccl.debug_lines import NcclSaid
from fairlead.nccl.hca import NVIDIA
from fairlead.nccl.measured_result import FILE_MAX_BYTES
from fairlead.nccl.result_key import NO_LEAF, NodeParts

SECONDS = 120.0
PROBE_SECONDS = 300.0
_MODEL = re.compile(r"^Model:\s*(\S.{0,100}?)\s*$", re.M)
_LINES_MAX, _LINE_MAX, _SHOWN_MAX = 20_000, 4000, 200


def read(root: Root, environment: Mapping[str, str], file: str = "") -> NodeParts:
    """Return what this node says about itself, and the hash of a result's file as this node reads it."""
    node = gather(root, unreadable("not asked"))
    driver = node.driver.module_version
    return NodeParts(
        node=environment.get("SLURMD_NODENAME") or os.uname().nodename,
        file=file_hash(file) if file else "",
        driver="" if isinstance(driver, Missing) else driver,
        gpu=_gpus(root, node),
        firmware=_firmware(root, node),
        topology=_topology(node),
        leaf=_leaf(environment),
    )


def file_hash(file: str) -> str:
    """Return the SHA-256 of a file, or "missing" if it cannot be read or is too large for a result."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as f:
            if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
                return "missing"
            data = f.read(FILE_MAX_BYTES + 1)
    except (OSError, ValueError):
        return "missing"
    return hash_of(data) if len(data) <= FILE_MAX_BYTES else "missing"


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _gpus(root: Root, node: Node) -> str:
    models: Counter[str] = Counter()
    for device in node.pci:
        if device.vendor == NVIDIA and device.class_code >> 16 == 0x03:
            text = root.read_text(f"/proc/driver/nvidia/gpus/{device.address}/information")
            model = _MODEL.search(text) if isinstance(text, str) else None
            if model is None:
                return ""
            models[model[1]] += 1
    return ", ".join(f"{count} x {name}" for name, count in sorted(models.items()))


def _firmware(root: Root, node: Node) -> str:
    """Return the firmware versions of the RDMA devices, each with its number of devices."""
    devices = sorted({nic.name for nic in node.nics if nic.rdma})
    found = [root.read_line(f"/sys/class/infiniband/{name}/fw_ver") for name in devices]
    if not all(isinstance(version, str) and version for version in found):
        return ""
    counted = Counter(str(version) for version in found)
    return ", ".join(f"{count} x {version}" for version, count in sorted(counted.items())) or "no RDMA device"


def _topology(node: Node) -> str:
    """Return a hash of the tree of GPUs and RDMA devices below their host bridges, by device ids and NUMA nodes.

    Addresses are left out, so that two machines with the same form have the same hash.
    """
    rdma = {nic.pci for nic in node.nics if nic.rdma}
    ends = [d for d in node.pci if d.address in rdma or (d.vendor == NVIDIA and d.class_code >> 16 == 0x03)]
    if not ends:
        return ""
    tree: dict[str, list[str]] = {}
    labels = {d.address: f"{d.vendor:04x}:{d.device:04x}@{'?' if isinstance(d.numa, Missing) else d.numa}" for d in ends}
    roots = set()
    for device in ends:
        roots.add(device.path[0])
        for above, below in zip(device.path, device.path[1:], strict=False):
            if below not in tree.setdefault(above, []):
                tree[above].append(below)

    def form(name: str) -> str:
        return f"{labels.get(name, '-')}({','.join(sorted(map(form, tree.get(name, []))))})"

    return hashlib.sha256("".join(sorted(map(form, roots))).encode()).hexdigest()[:16]


def _leaf(environment: Mapping[str, str]) -> str:
    """Return the leaf switch of this node, which Slurm says in SLURM_TOPOLOGY_ADDR (srun(1)), or NO_LEAF."""
    address, pattern = (environment.get(f"SLURM_TOPOLOGY_ADDR{end}", "").split(".") for end in ("", "_PATTERN"))
    if len(address) != len(pattern) or pattern[-2:] != ["switch", "node"]:
        return NO_LEAF
    return one_line(address[-2], 100)


def ask_nodes(environment: Mapping[str, str], file: str = "", *, root: str = "/") -> tuple[NodeParts, ...]:
    """Return what every node of the job says about itself. Raises SlurmError if one of them says nothing."""
    count = environment.get("SLURM_JOB_NUM_NODES") or environment.get("SLURM_NNODES", "")
    if not count.isdecimal():
        raise SlurmError("Slurm does not say how many nodes this job has", hint="run it in a job: in sbatch or salloc")
    here = [
        sys.executable,
        "-m",
        "fairlead",
        "nccl",
        "key",
        *([file] if file else []),
        *(["--root", root] if root != "/" else []),
    ]
    command = [
        "srun",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        "--overlap",
        "--mpi=none",
        "--cpu-bind=none",
    ]
    command += ["--kill-on-bad-exit=0", "--input=none", *here]
    try:
        done = subprocess.run(
            command, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    except FileNotFoundError:
        raise SlurmError("srun is not installed here", hint="run it in a job") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"srun did not answer in {SECONDS:g} s", hint="does another step use the whole allocation?") from None
    return answers(done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"), int(count))


def answers(out: str, err: str, count: int) -> tuple[NodeParts, ...]:
    """Return the answers of ``count`` nodes, in the order of their names. Raises SlurmError."""
    found: dict[str, NodeParts] = {}
    for line in out.splitlines()[:_LINES_MAX]:
        if line.startswith("{") and len(line) <= _LINE_MAX:
            try:
                parts = msgspec.json.decode(line, type=NodeParts)
            except NOT_JSON:
                continue
            found[parts.node] = parts
    if len(found) != count:
        said = next((one_line(line, _SHOWN_MAX) for line in err.splitlines() if line.strip()), "")
        those = f" ({fold(found)})" if found else ""
        raise SlurmError(
            f"{len(found)} of {count} nodes have answered{those}{f': {said}' if said else ''}", hint="is fairlead there?"
        )
    return tuple(found[name] for name in sorted(found))


def ask_nccl(probe: str, environment: Mapping[str, str]) -> NcclSaid:
    """Return what NCCL says about itself in a command of the user. Raises SlurmError if the command fails."""
    with tempfile.TemporaryDirectory(prefix="fairlead-nccl-") as folder:
        own = {**environment, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
        own.pop("NCCL_DEBUG_FILE", None)
        ended = launch(probe, own, f"{folder}/probe", PROBE_SECONDS)
        said = []
        for end in ("out", "err"):
            with open(f"{folder}/probe.{end}", encoding="utf-8", errors="replace") as file:
                said.append(file.read(OUTPUT_MAX_BYTES))
    if ended.status != 0:
        how = f"was ended after {ended.seconds:.0f} s" if ended.status is None else f"ended with {ended.status}"
        raise SlurmError(f"the command of --probe {how}: {last_line(*reversed(said))}", hint="let it be short and end by itself")
    return debug_lines.read("\n".join(said))


def unlike_files(nodes: Sequence[NodeParts], expected: str) -> str:
    """Return which nodes read another file than ``expected``, in words, or ""."""
    missing = [n.node for n in nodes if n.file in ("missing", "")]
    other = [n.node for n in nodes if n.file not in (expected, "missing", "")]
    words = [f"{fold(missing)} cannot read it"] if missing else []
    return ", ".join(words + ([f"{fold(other)} reads another one"] if other else []))


def cluster(environment: Mapping[str, str]) -> str:
    """Return the name of the Slurm cluster that the job runs in, or ""."""
    return one_line(environment.get("SLURM_CLUSTER_NAME", ""), 100)


def note(error: FairleadError) -> str:
    """Return an error and what to do next in one line."""
    return f"{error}{f'; {error.hint}' if error.hint else ''}"
