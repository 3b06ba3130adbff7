"""Defines how NCCL reads /etc/nccl.conf, which variables must never be in it, and how fairlead writes it.

The source is NCCL 2.30.7 src/misc/param.cc. NCCL takes ``NAME=value`` from the file only if the environment does not set the
name, so the user's value wins. ``#`` starts a comment only in column 0. NCCL does not strip white space and knows no inline
comments.
"""

from __future__ import annotations

from msgspec import Struct

HEADER = "# Written by fairlead (setting nccl) from the facts of this node; changes made here are put back.\n"
# All ranks must have the same value of each of these variables. Otherwise they hang or corrupt data. So fairlead never writes
# these variables into a file that differs between nodes.
RANK_CONSISTENT = frozenset(
    {
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_BUFFSIZE",
        "NCCL_LL_BUFFSIZE",
        "NCCL_LL128_BUFFSIZE",
        "NCCL_NTHREADS",
        "NCCL_LL128_NTHREADS",
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_NCHANNELS",
        "NCCL_MIN_NRINGS",
        "NCCL_MAX_NRINGS",
        "NCCL_MIN_CTAS",
        "NCCL_MAX_CTAS",
        "NCCL_MIN_P2P_NCHANNELS",
        "NCCL_MAX_P2P_NCHANNELS",
        "NCCL_NCHANNELS_PER_NET_PEER",
        "NCCL_P2P_NET_CHUNKSIZE",
        "NCCL_P2P_PCI_CHUNKSIZE",
        "NCCL_P2P_NVL_CHUNKSIZE",
        "NCCL_CHUNK_SIZE",
        "NCCL_COLLNET_ENABLE",
        "NCCL_NVLS_ENABLE",
        "NCCL_NVLS_NCHANNELS",
        "NCCL_NVLS_CHUNKSIZE",
        "NCCL_CROSS_NIC",
        "NCCL_COMM_ID",
        "NCCL_NET",
        "NCCL_P2P_LL_THRESHOLD",
        "NCCL_THREAD_THRESHOLDS",
        "NCCL_TUNER_PLUGIN",
        "NCCL_TUNER_CONFIG_FILE",
        "NCCL_CUMEM_ENABLE",
        "NCCL_RUNTIME_CONNECT",
        "NCCL_PXN_DISABLE",
    }
)


class ConfLine(Struct, frozen=True):
    """Holds one assignment, and the reason for it, which is written as a comment above the assignment."""

    name: str
    value: str
    why: str


class Problem(Struct, frozen=True):
    """Says why the file must stay as it is. key: the variable. hint: what to do next."""

    key: str
    reason: str
    hint: str


class Draft(Struct, frozen=True, kw_only=True):
    """Holds what the file should contain. notes: what was not changed and why, in words. problems: why the file must stay as it
    is."""

    lines: tuple[ConfLine, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def __add__(self, other: Draft) -> Draft:
        return Draft(lines=self.lines + other.lines, notes=self.notes + other.notes, problems=self.problems + other.problems)


def is_ours(text: str) -> bool:
    return text.startswith("# Written by fairlead")


def parse(text: str) -> dict[str, str]:
    """Return what NCCL takes from the text. The first assignment of a name wins (setenv without overwrite)."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and name and not line.startswith("#"):
            found.setdefault(name, value)
    return found


def fault(name: str, value: str) -> str:
    """Return why this assignment must not be written, or "" if it may be written."""
    if not name.startswith("NCCL_") or not name.isascii() or not name.replace("_", "").isalnum() or name != name.upper():
        return "not a name of NCCL (NCCL_...)"
    if name in RANK_CONSISTENT:
        return "must be equal on all ranks, so it cannot be in a file of one node; declare it in a job preset instead"
    if value != value.strip() or not value.isprintable() or not value or "#" in value:
        return "NCCL strips no white space and knows no inline comments: the value must be one plain word"
    return ""


def render(lines: tuple[ConfLine, ...]) -> str | None:
    """Return the file's text, or None if there are no lines."""
    return HEADER + "".join(f"# {x.why}\n{x.name}={x.value}\n" for x in lines) if lines else None
