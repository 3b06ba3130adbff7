"""Decides which wheel runs on which Python.

This module imports the standard library only. The bundle has a copy of it for Ansible's action plugin, because the Python that
runs Ansible need not have fairlead.

Sources: PEP 425, PEP 600 (tags), PEP 503 (names).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

DEPENDENCIES = ("msgspec", "nvidia-ml-py", "prometheus-client")
_GLIBC = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


def normal(name: str) -> str:
    """Return a distribution's name as PEP 503 normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def fits(name: str, python: str, machine: str, libc: Sequence[str]) -> bool:
    """Say whether a wheel runs on CPython ``python`` ("3.11") on ``machine`` ("x86_64") with ``libc`` (("glibc", "2.36"))."""
    parts = name.removesuffix(".whl").split("-")
    return len(parts) >= 5 and _python_fits(parts, python) and any(_platform_fits(p, machine, libc) for p in parts[-1].split("."))


def _python_fits(parts: Sequence[str], python: str) -> bool:
    pythons, abis = (p.split(".") for p in parts[-3:-1])
    major, minor = (int(x) for x in python.split("."))
    here = f"cp{major}{minor}"
    good = (here in pythons and (here in abis or "none" in abis)) or ("none" in abis and {f"py{major}", here} & set(pythons))
    if "abi3" in abis:
        good = good or any(p.startswith(f"cp{major}") and p[3:].isdigit() and int(p[3:]) <= minor for p in pythons)
    return bool(good)


def has_wheels(names: Iterable[str], python: str) -> bool:
    """Return whether there is a wheel of each dependency for CPython ``python`` on some machine."""
    split = [n.removesuffix(".whl").split("-") for n in names]
    fit = {normal(parts[0]) for parts in split if len(parts) >= 5 and _python_fits(parts, python)}
    return fit >= set(DEPENDENCIES)


def _platform_fits(platform: str, machine: str, libc: Sequence[str]) -> bool:
    if platform == "any":
        return True
    if not platform.endswith("_" + machine):
        return False
    kind = platform.removesuffix("_" + machine)
    if libc[0] != "glibc":
        return kind.startswith("musllinux")
    have = tuple(int(x) for x in libc[1].split(".")[:2])
    if kind in _GLIBC:
        return _GLIBC[kind] <= have
    match = re.fullmatch(r"manylinux_(\d+)_(\d+)", kind)
    return kind == "linux" or bool(match and (int(match[1]), int(match[2])) <= have)


def newness(name: str, here: str) -> tuple[tuple[int, ...], bool, tuple[int, ...], str]:
    """Return the sort key of a wheel that fits. The wheel with the greatest key is the best. A newer version counts first, then
    a build for this very Python (``here``: "cp311"), then a build for a newer C library."""
    parts = name.removesuffix(".whl").split("-")
    libraries = [tuple(map(int, found)) for found in re.findall(r"manylinux_(\d+)_(\d+)_", parts[-1])]
    version = tuple(int(x) for x in re.findall(r"\d+", parts[1]))  # the lock has released versions only
    return version, here in parts[-2].split("."), max(libraries, default=(0, 0)), name


def choose(names: Iterable[str], python: str, machine: str, libc: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return two lists: for each dependency the newest wheel that fits, and the dependencies for which no wheel fits."""
    chosen: list[str] = []
    missing: list[str] = []
    known = list(names)
    here = "cp" + python.replace(".", "")
    for dependency in DEPENDENCIES:
        fit = [n for n in known if normal(n.split("-")[0]) == dependency and fits(n, python, machine, libc)]
        if fit:
            chosen.append(max(fit, key=lambda name: newness(name, here)))
        else:
            missing.append(dependency)
    return chosen, missing
