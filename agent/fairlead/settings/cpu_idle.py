"""Switches off the CPU idle states that a CPU needs longer to leave than a declared latency.

A core in a deep C-state answers an interrupt of a GPU or adapter tens to hundreds of microseconds late. The site decides which
idle states save enough power to be worth this latency. Source: kernel documentation, admin-guide/pm/cpuidle.rst (``latency``:
exit latency in microseconds; ``disable``: 1 switches the state off on this CPU). The values are lost at reboot. fairlead's boot
unit applies them again. If no CPU has idle states, fairlead warns and still applies all other settings. If the hardware profile
lists ``cpuidle`` in ``unsupported``, fairlead skips this setting without a warning.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from fairlead.model.change import KernelValue
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import HardwareAbsent, Setting, Want

_PATH = re.compile(r"^/sys/devices/system/cpu/cpu(\d+)/cpuidle/state(\d+)/(latency|disable)$")
PATTERN = "/sys/devices/system/cpu/cpu[0-9]*/cpuidle/state[0-9]*/"


class CpuIdleWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_exit_latency_microseconds: Annotated[
        int, Meta(ge=0, le=100_000, description="Idle states that take longer than this to leave are switched off.")
    ] = 50


class Observed(Struct, frozen=True):
    """Holds what was read. ``states`` has a pair for each (CPU, state): the exit latency in microseconds, and whether the state
    is switched off. ``without`` has the online CPUs that have no idle states."""

    states: dict[tuple[int, int], tuple[int, bool]]
    without: tuple[int, ...]


def observe(node: Node) -> Observed | Missing:
    values: dict[tuple[int, int], dict[str, int]] = {}
    for path, text in node.texts.items():
        found = _PATH.match(path)
        if found is None:
            continue
        if isinstance(text, Missing):
            return text
        if text is None or not text.strip().isdecimal():
            return unreadable(f"{path}: not a number: {(text or '').strip()[:20]!r}")
        values.setdefault((int(found[1]), int(found[2])), {})[found[3]] = int(text)
    online = [c.id for c in node.cpus if c.online]
    states: dict[tuple[int, int], tuple[int, bool]] = {}
    for (cpu, state), seen in values.items():
        if len(seen) != 2:
            return unreadable(f"cpuidle state {state} of cpu{cpu} has no {'disable' if 'latency' in seen else 'latency'}")
        if cpu in online:
            states[cpu, state] = (seen["latency"], bool(seen["disable"]))
    having = {cpu for cpu, _ in states}
    return Observed(states, tuple(c for c in online if c not in having))


def plan(want: CpuIdleWant, observed: Observed) -> tuple[KernelValue, ...]:
    if not observed.states:
        raise HardwareAbsent(
            "cpu_idle",
            "cpuidle",
            "no CPU has idle states: this is a virtual machine, or the kernel was started with idle=poll",
            hint="remove idle=poll from the kernel command line",
        )
    limit = want.max_exit_latency_microseconds
    wrong = [(cpu, state, off) for (cpu, state), (us, off) in sorted(observed.states.items()) if off != (us > limit)]
    if not wrong:
        return ()
    cpus = len({cpu for cpu, _, _ in wrong})
    kept = f"idle states of {cpus} CPUs do not end at {limit} microseconds of exit latency"  # one finding for all CPUs
    return tuple(
        KernelValue(
            setting="cpu_idle",
            why=kept,
            path=f"/sys/devices/system/cpu/cpu{cpu}/cpuidle/state{state}/disable",
            value=str(int(not off)),
            before=str(int(off)),
        )
        for cpu, state, off in wrong
    )


setting = Setting(
    summary="CPU idle states (C-states) by exit latency",
    group="cpu",
    want=CpuIdleWant,
    observe=observe,
    plan=plan,
    tuned_too=True,
    reads=(f"{PATTERN}latency", f"{PATTERN}disable"),
    volatile=True,
)
