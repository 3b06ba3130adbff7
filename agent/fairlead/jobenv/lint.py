"""Harmful and useless settings in job scripts, environment files and nccl.conf: what is wrong, why, and what instead.

One generator per rule; RULES is the list, and the order of telling within a line. A rule looks at a Script and says
nothing where it is not sure. ``# fairlead: allow RULE`` before or behind a command takes that rule out of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import StrEnum

from msgspec import Struct

from fairlead.jobenv.lint_data import DEAD, DEBUG_ONLY, GUIDE, OFF, PARAM, PLATFORM, SIZES, SWITCHES, TORCH_DDP
from fairlead.jobenv.script import Assignment, Script, ScriptLine
from fairlead.nccl.conf import RANK_CONSISTENT

SOCKET_THREADS_MAX = 64  # NCCL src/transport/net_socket.cc, MAX_THREADS * MAX_SOCKETS
CHUNK_MAX = 1 << 20  # bytes; https://github.com/NVIDIA/nccl/issues/2408


class LintLevel(StrEnum):
    """error: breaks or corrupts. warn: slower, dangerous or without effect. info: right on some machines only."""

    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class ScriptFinding(Struct, frozen=True, kw_only=True):
    """``line``: number in the file, from 1."""

    line: int
    rule: str
    level: LintLevel
    message: str
    suggestion: str
    source: str


class ScriptSite(Struct, frozen=True, kw_only=True):
    """What is known of the machine. ``nccl``: its version. ``fabric``: "ib" where it has InfiniBand, "" for not known."""

    nccl: tuple[int, ...] = (2, 30)
    fabric: str = ""


_Found = Iterator[tuple[ScriptLine, LintLevel, str, str, str]]
_Rule = Callable[[Script, ScriptSite], _Found]


def lint(script: Script, site: ScriptSite | None = None) -> tuple[ScriptFinding, ...]:
    """Everything found, by line."""
    found = []
    for name, rule in RULES.items():
        for line, level, message, suggestion, source in rule(script, site or ScriptSite()):
            if name not in line.allowed:
                found.append(
                    ScriptFinding(line=line.number, rule=name, level=level, message=message, suggestion=suggestion, source=source)
                )
    return tuple(sorted(found, key=lambda f: f.line))


def _all(script: Script, *names: str) -> Iterator[Assignment]:
    return (a for a in script.assignments if a.name in names)


def _number(value: str | None) -> int | None:
    """As NCCL reads it; None where it is not known or not a whole number."""
    try:
        return int(value or "", 0)
    except ValueError:
        return None


def _size_suffix(script: Script, site: ScriptSite) -> _Found:
    for a in script.assignments:
        match = re.fullmatch(r"\s*(\d+)\s*([KMGT]i?B?)\s*", a.value or "", re.IGNORECASE)
        if match and a.name in SIZES:
            unit = 1024 ** ("KMGT".index(match[2][0].upper()) + 1)
            yield (
                a.line,
                LintLevel.ERROR,
                f"{a.name}={a.value} is read as {match[1]} bytes: NCCL takes a whole number and drops the suffix",
                f"leave it unset; if it must be: {a.name}={int(match[1]) * unit}",
                PARAM,
            )


def _buffsize(script: Script, site: ScriptSite) -> _Found:
    for a in _all(script, "NCCL_BUFFSIZE", "NCCL_NTHREADS"):
        number = _number(a.value)
        if number is None and a.value is not None:
            continue  # not a number: another rule
        if number and number & (number - 1):
            yield (
                a.line,
                LintLevel.ERROR,
                f"{a.name}={number} is no power of two: NCCL then computes wrong or hangs",
                "leave it unset",
                "https://github.com/NVIDIA/nccl/issues/698",
            )
        elif a.name == "NCCL_BUFFSIZE":
            default = " (this is its default)" if number == 1 << 22 else ""
            yield (
                a.line,
                LintLevel.WARN,
                f"NCCL_BUFFSIZE is set{default}; on AWS EFA that takes the plugin's own 8 MiB away",
                "leave it unset: NVIDIA recommends not to change it",
                "https://github.com/NVIDIA/nccl/issues/1739",
            )


def _algo(script: Script, site: ScriptSite) -> _Found:
    for a in _all(script, "NCCL_ALGO"):
        yield (
            a.line,
            LintLevel.WARN,
            f"NCCL_ALGO{_is(a)} is forced for all sizes: NCCL can no longer choose (Ring takes NVLS away: -24 % on 8 x H200)",
            "leave it unset; measure per size and use a tuner file if it really helps",
            "https://github.com/stas00/ml-engineering/tree/master/network",
        )


def _proto(script: Script, site: ScriptSite) -> _Found:
    for a in _all(script, "NCCL_PROTO"):
        if (a.value or "").startswith("^"):
            continue  # taking one away is what platforms with a broken one do
        forced = "LL128" in (a.value or "").upper().split(",")
        harm = ": LL128 where the platform does not support it corrupts data" if forced else ": NCCL can no longer choose by size"
        yield (
            a.line,
            LintLevel.ERROR if forced else LintLevel.WARN,
            f"NCCL_PROTO{_is(a)} is forced{harm}",
            "leave it unset",
            "https://github.com/NVIDIA/nccl/issues/2001" if forced else GUIDE,
        )


def _chunk(script: Script, site: ScriptSite) -> _Found:
    for a in _all(script, "NCCL_P2P_NET_CHUNKSIZE", "NCCL_CHUNK_SIZE"):
        if (number := _number(a.value)) is not None and number >= CHUNK_MAX:
            yield (
                a.line,
                LintLevel.ERROR,
                f"{a.name}={number}: chunks of 1 MiB and more gave wrong results without a word",
                "leave it unset",
                "https://github.com/NVIDIA/nccl/issues/2408",
            )


def _dead(script: Script, site: ScriptSite) -> _Found:
    for a in script.assignments:
        since, instead = DEAD.get(a.name, ("", ""))
        if since and site.nccl >= tuple(map(int, since.split("."))):
            yield (
                a.line,
                LintLevel.WARN,
                f"{a.name} is {'called ' + instead if instead else 'gone'} since NCCL {since}",
                f"{'use ' + instead + ' where it is needed, or ' if instead else ''}remove it",
                GUIDE,
            )


def _debug_only(script: Script, site: ScriptSite) -> _Found:
    for a in script.assignments:
        if a.name in SWITCHES and a.value in OFF:
            continue
        if a.name in DEBUG_ONLY:
            slow = {"NCCL_IB_DISABLE": ": all traffic falls back to TCP", "NCCL_P2P_DISABLE": ": no NVLink, no peer access"}
            text = f"{a.name} is for debugging, not for production{slow.get(a.name, '')}"
            yield a.line, LintLevel.WARN, text, "remove it once the problem is found", GUIDE
        elif a.name in PLATFORM:
            yield (
                a.line,
                LintLevel.INFO,
                f"{a.name} is for debugging, or part of a vendor's settings for its own machines",
                "keep it only with its source and date beside it",
                GUIDE,
            )


def _gid_index(script: Script, site: ScriptSite) -> _Found:
    for a in _all(script, "NCCL_IB_GID_INDEX"):
        if site.nccl >= (2, 21):
            yield (
                a.line,
                LintLevel.WARN,
                "NCCL_IB_GID_INDEX: NCCL 2.21 and later finds the RoCE v2 address itself; an index differs by port and boot",
                "leave it unset; with several subnets set NCCL_IB_ADDR_RANGE",
                GUIDE + "#nccl-ib-gid-index",
            )


def _socket_threads(script: Script, site: ScriptSite) -> _Found:
    names = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    values = {a.name: _number(a.value) or 1 for a in _all(script, *names)}
    if len(values) == len(names) and values[names[0]] * values[names[1]] > SOCKET_THREADS_MAX:
        for a in _all(script, *names):
            text = f"{names[0]} x {names[1]} is over {SOCKET_THREADS_MAX}: NCCL cuts it down"
            yield (
                a.line,
                LintLevel.ERROR,
                text,
                f"keep the product at or below {SOCKET_THREADS_MAX}",
                GUIDE + "#nccl-socket-nthreads",
            )
        return
    rdma = site.fabric == "ib" or any(
        a.name == "NCCL_IB_HCA" or (a.name == "NCCL_NET" and (a.value or "").upper() == "IB") for a in script.assignments
    )
    for a in _all(script, *names):
        yield (
            a.line,
            LintLevel.WARN if rdma else LintLevel.INFO,
            f"{a.name} is for TCP only{' and does nothing on InfiniBand or RoCE' if rdma else ''}",
            "remove it" if rdma else "remove it on InfiniBand or RoCE",
            GUIDE + "#nccl-socket-nthreads",
        )


def _docker0(script: Script, site: ScriptSite) -> _Found:
    for a in _all(script, "NCCL_SOCKET_IFNAME"):
        names = (a.value or "").removeprefix("^").removeprefix("=").split(",")
        if (a.value or "").startswith("^") and "lo" not in names:
            yield (
                a.line,
                LintLevel.WARN,
                f"NCCL_SOCKET_IFNAME={a.value} replaces NCCL's own list of exceptions: the loopback interface is allowed again",
                "leave it unset (docker* and lo are left out by default), or name the interface: NCCL_SOCKET_IFNAME==IFACE",
                "NCCL src/misc/socket.cc, ncclFindInterfaces; https://github.com/NVIDIA/nccl/issues/913",
            )


def _hca_prefix(script: Script, site: ScriptSite) -> _Found:
    for a in _all(script, "NCCL_IB_HCA"):
        value = a.value or ""
        if value.lstrip("^").startswith("="):
            continue
        names = [name.partition(":")[0] for name in value.lstrip("^").split(",") if name]
        ambiguous = [
            n for n in names if n[-1:].isdigit() and any(o != n and o.startswith(n) and o[len(n) :].isdigit() for o in names)
        ]
        many = any(re.search(r"_\d\d+$", name) for name in names)
        if not ambiguous and (many or len(names) == 1):
            ambiguous = [n for n in names if re.search(r"_[1-9]$", n)]
        if ambiguous:
            name = ambiguous[0]
            sure = many or len(ambiguous) > 1
            yield (
                a.line,
                LintLevel.WARN if sure or len(names) == 1 else LintLevel.INFO,
                f"NCCL_IB_HCA={value}: {name} is a prefix and matches {name}0 to {name}9 too",
                f"name them exactly: NCCL_IB_HCA={'^' if value.startswith('^') else ''}={value.lstrip('^')}",
                GUIDE + "#nccl-ib-hca",
            )


def _debug_level(script: Script, site: ScriptSite) -> _Found:
    for a in _all(script, "NCCL_DEBUG", "CUDA_LAUNCH_BLOCKING"):
        if a.name == "NCCL_DEBUG" and (a.value or "").upper() in {"INFO", "TRACE", "ABORT"}:
            text = f"NCCL_DEBUG={a.value} makes every rank print pages at the start"
            yield a.line, LintLevel.INFO, text, "WARN tells of errors and is silent otherwise", GUIDE + "#nccl-debug"
        if a.name == "CUDA_LAUNCH_BLOCKING" and a.value not in (*OFF, None):
            text = "CUDA_LAUNCH_BLOCKING waits for every kernel: computing and communication no longer overlap"
            yield (
                a.line,
                LintLevel.WARN,
                text,
                "remove it once the problem is found",
                "CUDA C++ Programming Guide, environment variables",
            )


_NODES = (re.compile(r"\s(?:--(?:cpunodebind|cpubind)[=\s]|-N[\s=]?)\s*\d{1,9}(?![\d,-])"),
          re.compile(r"\s(?:--membind[=\s]|-m[\s=]?)\s*\d{1,9}(?![\d,-])"))  # fmt: skip
_LAUNCHER = re.compile(r"\b(?:srun|mpirun|mpiexec|torchrun|torch\.distributed\.(?:run|launch)|deepspeed|accelerate)\b")


def _numactl(script: Script, site: ScriptSite) -> _Found:
    for line in script.lines:
        if not _on_one_node(line.text) or "$" in line.text.partition("numactl")[2].partition("python")[0]:
            continue
        several = bool(_LAUNCHER.search(line.text)) and script.tasks_per_node != 1
        if several:
            yield (
                line,
                LintLevel.ERROR,
                "numactl puts every rank on one NUMA node: those of other sockets compute remotely, and its memory runs out",
                "leave numactl away: fairlead binds each task to the CPUs nearest its GPU; in torchrun use --numa-binding=node",
                "numactl(8); https://pytorch.org/docs/stable/elastic/run.html",
            )


def _on_one_node(text: str) -> bool:
    """Whether a command of the line is numactl with CPUs and memory of one node each."""
    for command in re.split(r"[|;&]", text):
        at = re.search(r"\bnumactl\b", command)
        if at is not None and all(pattern.search(command, at.end()) for pattern in _NODES):
            return True
    return False


_WORKERS = re.compile(r"(?<!\w)(?:--)?num[_-]workers(?:[=\s]\s*|\s*:\s*)(\d{1,9})(?!\d)(\s*\*)?")
_PER_GPU = re.compile(
    r"\bnum_workers\s*=\s*(?:\d+\s*\*\s*[\w.]{0,80}(?:gpu|device_count)|[\w.]{0,80}(?:gpu|device_count)\w{0,80}(?:\(\))?\s*\*\s*\d+)"
)


def _workers(script: Script, site: ScriptSite) -> _Found:
    for line in script.lines:
        if _PER_GPU.search(line.text):
            yield (
                line,
                LintLevel.WARN,
                "num_workers counts per process: multiplied by the number of GPUs, every rank starts workers for all of them",
                "at most the CPUs of one task minus one: int(os.environ['SLURM_CPUS_PER_TASK']) - 1",
                "https://pytorch.org/docs/stable/data.html",
            )
        elif (
            script.cpus_per_task
            and (match := _WORKERS.search(line.text))
            and not match[2]
            and int(match[1]) > script.cpus_per_task
        ):
            yield (
                line,
                LintLevel.WARN,
                f"{match[1]} loader processes share the {script.cpus_per_task} CPUs of a task",
                f"num_workers at or below {max(1, script.cpus_per_task - 1)}, or a larger --cpus-per-task",
                "https://pytorch.org/docs/stable/data.html",
            )


def _bucket_cap(script: Script, site: ScriptSite) -> _Found:
    text = "\n".join(line.text for line in script.lines)
    for match in re.finditer(r"\binit_process_group\s*\((?:[^()]|\([^()]*\))*?\bbucket_cap_mb\s*=", text):
        at = text.count("\n", 0, match.end())
        yield (
            script.lines[at],
            LintLevel.ERROR,
            "init_process_group() has no bucket_cap_mb: the call ends with a TypeError",
            "pass it to DistributedDataParallel(model, bucket_cap_mb=...)",
            TORCH_DDP,
        )


def _conf_syntax(script: Script, site: ScriptSite) -> _Found:
    if not script.conf:
        return
    source = "NCCL src/misc/param.cc, setEnvFile"
    for line in script.lines:
        name, equals, value = line.text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            text = f"NCCL reads NAME=value and nothing else: {line.text.strip()[:60]!r} sets no variable of that name"
            yield (
                line,
                LintLevel.ERROR,
                text,
                "write NAME=value from the first column on, without export, blanks or quotes",
                source,
            )
        elif re.search(r"\s#", value):
            text = f"a # behind a value is part of it: {name} becomes {value.strip()[:60]!r}"
            yield line, LintLevel.ERROR, text, "put the comment on a line of its own, with # in the first column", source
        elif value != value.strip() or value[:1] in {'"', "'"}:
            text = f"blanks and quotes are part of the value: {name} becomes {value[:60]!r}"
            yield line, LintLevel.ERROR, text, "write the bare value", source


def _per_node(script: Script, site: ScriptSite) -> _Found:
    if script.conf:
        for a in script.assignments:
            if a.name in RANK_CONSISTENT:
                text = f"{a.name} must be the same on all ranks; in a file per node it will differ: ranks hang or corrupt data"
                yield a.line, LintLevel.ERROR, text, "take it out of nccl.conf", GUIDE


def _is(a: Assignment) -> str:
    return "" if a.value is None else f"={a.value}"


#: The order within one line.
RULES: dict[str, _Rule] = {
    "size-suffix": _size_suffix,
    "buffsize": _buffsize,
    "algo": _algo,
    "proto": _proto,
    "chunk-size": _chunk,
    "dead": _dead,
    "debug-only": _debug_only,
    "gid-index": _gid_index,
    "tcp-only": _socket_threads,
    "socket-exclude": _docker0,
    "hca-prefix": _hca_prefix,
    "debug-level": _debug_level,
    "numactl": _numactl,
    "workers": _workers,
    "bucket-cap": _bucket_cap,
    "conf-syntax": _conf_syntax,
    "per-node": _per_node,
}
