"""Holds the lint rules on the variables of NCCL, and on nccl.conf."""

from __future__ import annotations

import difflib
import re
from functools import lru_cache

from fairlead.jobenv.batch_script import Script
from fairlead.jobenv.lint_data import DEAD, DEBUG_ONLY, GUIDE, PARAM, PLATFORM, SIZES, SWITCHES
from fairlead.jobenv.lint_finding import Found, LintLevel, LintRule, LintSite, assigned, number, shown, whole
from fairlead.jobenv.lint_names import INVENTED, NUMBERS, PLUGINS, TEXTS, TORCH
from fairlead.nccl.nccl_conf import RANK_CONSISTENT

SOCKET_THREADS_MAX = 64  # NCCL src/transport/net_socket.cc, MAX_THREADS * MAX_SOCKETS
CHUNK_MAX = 1 << 20  # bytes; https://github.com/NVIDIA/nccl/issues/2408
MANY_GPUS = 8  # a node with this many has an adapter for each GPU, or for two GPUs (NVIDIA DGX and HGX reference designs)
EFA_BUFFSIZE = 1 << 23  # the AWS plug-in sets this by itself; https://github.com/NVIDIA/nccl/issues/1739

NAMES = GUIDE + ", and NCCL's source"
NEAR = 0.8  # the least ratio of difflib for a similar name: NCCL_SOCKET_IFACE finds NCCL_SOCKET_IFNAME, NCCL_TEST finds nothing
KNOWN = NUMBERS | TEXTS | TORCH
ENDINGS = sorted(name.removeprefix("NCCL_") for name in NUMBERS | TEXTS)
#: Only NCCL's own names begin with these prefixes. Users choose NCCL_HOME, NCCL_DIR and similar names.
FAMILIES = tuple(f"NCCL_{x}_" for x in ("IB", "SOCKET", "P2P", "NET", "SHM", "NVLS", "CUMEM", "DEBUG", "GRAPH", "TOPO", "RAS"))
_SUFFIX = re.compile(r"\s*(\d+)\s*([KMGT]i?B?)\s*", re.IGNORECASE)


def _size_suffix(script: Script, site: LintSite) -> Found:
    for a in script.assignments:
        match = _SUFFIX.fullmatch(a.value or "")
        if match and a.name in SIZES:
            unit = 1024 ** ("KMGT".index(match[2][0].upper()) + 1)
            yield (
                a.line,
                LintLevel.ERROR,
                f"{a.name}={a.value} is read as {match[1]} bytes: NCCL takes a whole number and drops the suffix",
                f"leave it unset; if it must be: {a.name}={int(match[1]) * unit}",
                PARAM,
            )


def _buffsize(script: Script, site: LintSite) -> Found:
    for a in assigned(script, "NCCL_BUFFSIZE", "NCCL_NTHREADS"):
        size = number(a.value)
        if a.value is not None and not whole(a.value):
            continue  # `_number` or `_size_suffix` reports a value that is not a number
        if size and size & (size - 1):
            yield (
                a.line,
                LintLevel.ERROR,
                f"{a.name}={size} is not a power of two: NCCL then computes wrong results or hangs",
                "leave it unset",
                "https://github.com/NVIDIA/nccl/issues/698",
            )
        elif a.name == "NCCL_BUFFSIZE":
            others = "; on AWS EFA this replaces the plug-in's own 8 MiB"
            harm = {1 << 22: " to its default", EFA_BUFFSIZE: " to what the AWS plug-in sets by itself"}.get(size or 0, others)
            yield (
                a.line,
                LintLevel.WARN,
                f"NCCL_BUFFSIZE is set{harm}",
                "leave it unset: NVIDIA recommends not to change it",
                "https://github.com/NVIDIA/nccl/issues/1739",
            )


def _number(script: Script, site: LintSite) -> Found:
    for a in script.assignments:
        if a.name not in NUMBERS or not a.value or whole(a.value):
            continue
        if a.name in SIZES and _SUFFIX.fullmatch(a.value):
            continue  # `_size_suffix` reports this value
        off = " and so switches nothing" if a.name in SWITCHES and not number(a.value) else ""
        yield (
            a.line,
            LintLevel.WARN,
            f"{a.name}={a.value} is read as {number(a.value)}{off}: NCCL takes a whole number and drops the rest",
            f"write {a.name}=1, or 0" if a.name in SWITCHES else "write a whole number, or leave it unset",
            PARAM,
        )


@lru_cache(maxsize=4096)
def _similar(name: str) -> str:
    """Return NCCL's own name that is most like this one, or an empty text. A script may set one name thousands of times."""
    near = difflib.get_close_matches(name.removeprefix("NCCL_"), ENDINGS, n=1, cutoff=NEAR)
    return "NCCL_" + near[0] if near else ""


def _name(script: Script, site: LintSite) -> Found:
    for a in script.assignments:
        if not a.name.startswith("NCCL_") or a.name in KNOWN or a.name.startswith(PLUGINS):
            continue
        if a.name in INVENTED:
            yield a.line, LintLevel.WARN, f"{a.name}: neither NCCL nor PyTorch reads it", INVENTED[a.name], NAMES
            continue
        meant = _similar(a.name)
        if meant:
            gone = f"; that is gone since NCCL {DEAD[meant][0]}: remove it" if meant in DEAD else ""
            yield a.line, LintLevel.WARN, f"{a.name}: NCCL has no variable of this name", f"did you mean {meant}?{gone}", NAMES
        elif a.name.startswith(FAMILIES):
            text = f"{a.name}: NCCL 2.30 and older have no variable of this name"
            yield a.line, LintLevel.INFO, text, "remove it, unless a plug-in of yours reads it", NAMES


def _algo(script: Script, site: LintSite) -> Found:
    for a in assigned(script, "NCCL_ALGO"):
        yield (
            a.line,
            LintLevel.WARN,
            f"NCCL_ALGO{shown(a)} is forced for all sizes: NCCL can no longer choose (Ring takes NVLS away: -24 % on 8 x H200)",
            "leave it unset; measure per size and use a tuner file if it really helps",
            "https://github.com/stas00/ml-engineering/tree/master/network",
        )


def _proto(script: Script, site: LintSite) -> Found:
    for a in assigned(script, "NCCL_PROTO"):
        if (a.value or "").startswith("^"):
            continue  # the ^ excludes a protocol, which is right where that protocol is broken
        forced = "LL128" in (a.value or "").upper().split(",")
        harm = ": LL128 where the platform does not support it corrupts data" if forced else ": NCCL can no longer choose by size"
        yield (
            a.line,
            LintLevel.ERROR if forced else LintLevel.WARN,
            f"NCCL_PROTO{shown(a)} is forced{harm}",
            "leave it unset",
            "https://github.com/NVIDIA/nccl/issues/2001" if forced else GUIDE,
        )


def _chunk(script: Script, site: LintSite) -> Found:
    for a in assigned(script, "NCCL_CHUNK_SIZE"):
        if (size := number(a.value)) is not None and size >= CHUNK_MAX:
            yield (
                a.line,
                LintLevel.ERROR,
                f"{a.name}={size}: chunks of 1 MiB and more gave wrong results without an error",
                "leave it unset",
                "https://github.com/NVIDIA/nccl/issues/2408",
            )


def _dead(script: Script, site: LintSite) -> Found:
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


def _debug_only(script: Script, site: LintSite) -> Found:
    for a in script.assignments:
        if a.name in SWITCHES and a.value is not None and not number(a.value):
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


def _gid_index(script: Script, site: LintSite) -> Found:
    for a in assigned(script, "NCCL_IB_GID_INDEX"):
        if site.nccl >= (2, 21):
            yield (
                a.line,
                LintLevel.WARN,
                "NCCL_IB_GID_INDEX: NCCL 2.21 and later finds the RoCE v2 address itself; an index differs by port and boot",
                "leave it unset; with several subnets set NCCL_IB_ADDR_RANGE",
                GUIDE + "#nccl-ib-gid-index",
            )


def _socket_threads(script: Script, site: LintSite) -> Found:
    names = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    values = {a.name: max(1, number(a.value) or 1) for a in assigned(script, *names)}
    if len(values) == len(names) and values[names[0]] * values[names[1]] > SOCKET_THREADS_MAX:
        for a in assigned(script, *names):
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
    for a in assigned(script, *names):
        yield (
            a.line,
            LintLevel.WARN if rdma else LintLevel.INFO,
            f"{a.name} is for TCP only{' and does nothing on InfiniBand or RoCE' if rdma else ''}",
            "remove it" if rdma else "remove it on InfiniBand or RoCE",
            GUIDE + "#nccl-socket-nthreads",
        )


def _docker0(script: Script, site: LintSite) -> Found:
    for a in assigned(script, "NCCL_SOCKET_IFNAME"):
        names = (a.value or "").removeprefix("^").removeprefix("=").split(",")
        if (a.value or "").startswith("^") and "lo" not in names:
            yield (
                a.line,
                LintLevel.WARN,
                f"NCCL_SOCKET_IFNAME={a.value} replaces NCCL's own list of exceptions: the loopback interface is allowed again",
                "leave it unset (docker* and lo are left out by default), or name the interface: NCCL_SOCKET_IFNAME==IFACE",
                "NCCL src/misc/socket.cc, ncclFindInterfaces; https://github.com/NVIDIA/nccl/issues/913",
            )


def _loopback(script: Script, site: LintSite) -> Found:
    for a in assigned(script, "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if (a.value or "").removeprefix("=").split(",")[0] != "lo" or script.shape.nodes == 1:
            continue
        several = script.shape.several_nodes
        yield (
            a.line,
            LintLevel.ERROR if several else LintLevel.WARN,
            f"{a.name}={a.value} is the loopback: no other node is reached through it",
            "leave it unset, or name the interface that reaches the other nodes",
            GUIDE + "#nccl-socket-ifname",
        )


def _one_hca(script: Script, site: LintSite) -> Found:
    """Find NCCL_IB_HCA with only one adapter for several GPUs. Only on the node can fairlead see whether the node has more
    adapters."""
    gpus = script.shape.gpus or 0
    if script.conf or script.shape.nodes == 1 or gpus <= 1:
        return
    for a in assigned(script, "NCCL_IB_HCA"):
        names = [n for n in (a.value or "").removeprefix("=").split(",") if n]
        if len(names) == 1 and re.search(r"_\d+(?::\d+)?$", names[0]) and not names[0].startswith("^"):
            yield (
                a.line,
                LintLevel.WARN if gpus >= MANY_GPUS and "bond" not in names[0] else LintLevel.INFO,
                f"NCCL_IB_HCA={a.value}: the {gpus} GPUs of a node share one adapter",
                "leave it unset: NCCL takes every port that is up, the nearest for each GPU",
                GUIDE + "#nccl-ib-hca",
            )


def _hca_prefix(script: Script, site: LintSite) -> Found:
    for a in assigned(script, "NCCL_IB_HCA"):
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


#: InfiniBand stores these values in a few bits. Each number here is the largest possible value (InfiniBand specification, volume
#: 1, 12.7.34 and 12.7.38).
BITS = {"NCCL_IB_TIMEOUT": 31, "NCCL_IB_RETRY_CNT": 7}


def _bits(script: Script, site: LintSite) -> Found:
    for a in assigned(script, *BITS):
        if (number(a.value) or 0) > BITS[a.name]:
            yield (
                a.line,
                LintLevel.WARN,
                f"{a.name}={a.value}: InfiniBand has no value over {BITS[a.name]}: the effect in the adapter is not defined",
                "22 for a very large network" if a.name == "NCCL_IB_TIMEOUT" else "leave it unset: 7 is its default",
                GUIDE + "#" + a.name.lower().replace("_", "-"),
            )


def _debug_level(script: Script, site: LintSite) -> Found:
    for a in assigned(script, "NCCL_DEBUG", "CUDA_LAUNCH_BLOCKING"):
        if a.name == "NCCL_DEBUG" and (a.value or "").upper() in {"INFO", "TRACE", "ABORT"}:
            text = f"NCCL_DEBUG={a.value} makes every rank print pages at the start"
            yield a.line, LintLevel.INFO, text, "WARN reports errors and is silent otherwise", GUIDE + "#nccl-debug"
        if a.name == "CUDA_LAUNCH_BLOCKING" and a.value not in ("0", "", None):
            text = "CUDA_LAUNCH_BLOCKING waits for every kernel: computing and communication no longer overlap"
            yield (
                a.line,
                LintLevel.WARN,
                text,
                "remove it once the problem is found",
                "CUDA C++ Programming Guide, environment variables",
            )


def _conf_syntax(script: Script, site: LintSite) -> Found:
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


def _per_node(script: Script, site: LintSite) -> Found:
    if script.conf:
        for a in script.assignments:
            if a.name in RANK_CONSISTENT:
                text = f"{a.name} must be the same on all ranks; in a file per node it will differ: ranks hang or corrupt data"
                yield a.line, LintLevel.ERROR, text, "take it out of nccl.conf", GUIDE


RULES: dict[str, LintRule] = {
    "size-suffix": _size_suffix,
    "number": _number,
    "name": _name,
    "buffsize": _buffsize,
    "algo": _algo,
    "proto": _proto,
    "chunk-size": _chunk,
    "dead": _dead,
    "debug-only": _debug_only,
    "gid-index": _gid_index,
    "tcp-only": _socket_threads,
    "socket-exclude": _docker0,
    "loopback": _loopback,
    "hca-prefix": _hca_prefix,
    "one-hca": _one_hca,
    "ib-bits": _bits,
    "debug-level": _debug_level,
    "conf-syntax": _conf_syntax,
    "per-node": _per_node,
}
