"""CPU lists and masks as the kernel writes them (Documentation/admin-guide/cputopology.rst): "0-3,8", "ff,00000000"."""

from __future__ import annotations

CPUS_MAX = 65536  # far above CONFIG_NR_CPUS (8192): a longer range is not a list of CPUs


def parse_cpulist(text: str) -> tuple[int, ...]:
    """The sorted CPU (or node) numbers of "0-3,8". An empty list is no CPU. Raises ValueError for anything else."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if not part.strip():
            continue
        first, dash, last = part.strip().partition("-")
        low, high = _number(first), _number(last) if dash else _number(first)
        if high < low:
            raise ValueError(f"range {part!r} runs backwards")
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def parse_cpumask(text: str) -> tuple[int, ...]:
    """The CPU numbers of a hexadecimal mask in groups of 32 bits, "00000000,000000ff". Raises ValueError."""
    digits = text.strip().replace(",", "")
    if not digits or len(digits) > CPUS_MAX // 4 or not all(c in "0123456789abcdefABCDEF" for c in digits):
        raise ValueError(f"not a CPU mask: {text[:40]!r}")
    mask = int(digits, 16)
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def format_cpulist(numbers: tuple[int, ...]) -> str:
    """The kernel's way of writing a set of CPUs: "0-3,8"."""
    parts: list[str] = []
    ordered = sorted(set(numbers))
    start = 0
    for i in range(len(ordered)):
        if i + 1 == len(ordered) or ordered[i + 1] != ordered[i] + 1:
            parts.append(str(ordered[i]) if start == i else f"{ordered[start]}-{ordered[i]}")
            start = i + 1
    return ",".join(parts)


def _number(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 5 or int(text) >= CPUS_MAX:
        raise ValueError(f"not a CPU number: {text[:40]!r}")
    return int(text)
