"""Reads and writes CPU lists and masks as the kernel does (Documentation/admin-guide/cputopology.rst): "0-3,8", "ff,00000000".

A set of CPUs is a sorted tuple of numbers. Where sets are joined and compared often, it is a "CPU set": one integer with bit N
set for CPU N. The binding planner loads this file in an isolated Python for every step, so this file imports nothing.
"""

from __future__ import annotations

CPUS_MAX = 65536  # far above CONFIG_NR_CPUS (8192): a longer range is not a list of CPUs
_WRITTEN_BY_KERNEL = frozenset("0123456789-,")


def parse_cpulist(text: str) -> tuple[int, ...]:
    """Return the sorted CPU (or NUMA node) numbers of "0-3,8". An empty text gives an empty tuple.

    Raise ValueError for anything else.
    """
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if part.strip():
            first, last = _range(part.strip())
            numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def parse_cpu_set(text: str) -> int:
    """Return the CPU set of "0-3,8" in exactly the form that the kernel and fairlead write.

    Raise ValueError for anything else, such as an empty list or a space inside.
    """
    words = text.strip()
    parts = words.split(",")
    if "" in parts or not _WRITTEN_BY_KERNEL.issuperset(words):
        raise ValueError(f"not a CPU list: {text[:80]!r}")
    cpu_set = 0
    for part in parts:
        first, last = _range(part)
        cpu_set |= ((1 << (last - first + 1)) - 1) << first
    return cpu_set


def parse_cpumask(text: str) -> tuple[int, ...]:
    """Return the CPU numbers of a hexadecimal mask in groups of 32 bits, "00000000,000000ff". Raise ValueError for anything
    else."""
    digits = text.strip().replace(",", "")
    if not digits or len(digits) > CPUS_MAX // 4 or not all(c in "0123456789abcdefABCDEF" for c in digits):
        raise ValueError(f"not a CPU mask: {text[:40]!r}")
    return cpus_in(int(digits, 16))


def format_cpulist(numbers: tuple[int, ...]) -> str:
    """Return a set of CPUs as the kernel writes it, "0-3,8", or "" for an empty set."""
    parts: list[str] = []
    ordered = sorted(set(numbers))
    start = 0
    for i in range(len(ordered)):
        if i + 1 == len(ordered) or ordered[i + 1] != ordered[i] + 1:
            parts.append(str(ordered[i]) if start == i else f"{ordered[start]}-{ordered[i]}")
            start = i + 1
    return ",".join(parts)


def format_cpu_set(cpu_set: int) -> str:
    """Return a CPU set as "0-3,8", or "-" for an empty set, as in the files below /run/fairlead."""
    return format_cpulist(cpus_in(cpu_set)) or "-"


def as_cpu_set(numbers: tuple[int, ...]) -> int:
    """Return the CPU set of these CPU numbers."""
    cpu_set = 0
    for cpu in numbers:
        cpu_set |= 1 << cpu
    return cpu_set


def cpus_in(cpu_set: int) -> tuple[int, ...]:
    """Return the CPU numbers of a CPU set, in order."""
    return tuple(cpu for cpu in range(cpu_set.bit_length()) if cpu_set >> cpu & 1)


def _range(part: str) -> tuple[int, int]:
    """Return the first and the last number of "0-3" or "8". Raise ValueError for anything else."""
    first, dash, last = part.partition("-")
    low, high = _number(first), _number(last) if dash else _number(first)
    if high < low:
        raise ValueError(f"range {part!r} runs backwards")
    return low, high


def _number(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 5 or int(text) >= CPUS_MAX:
        raise ValueError(f"not a CPU number: {text[:40]!r}")
    return int(text)
