"""Moves interrupts of GPUs and adapters to CPUs that are reserved for the system, away from the cores of jobs.

An interrupt on a rank's core delays this rank, and all other ranks wait for it. fairlead moves the interrupts of a device to the
system's CPUs on the NUMA node of the device. If this NUMA node has no such CPUs, the interrupts go to all of the system's CPUs.
Reserve the system's CPUs in Slurm, too (CpuSpecList or CoreSpecCount). Otherwise jobs also run on the system's CPUs. Sources:
kernel documentation, core-api/irq/irq-affinity.rst (/proc/irq/N/smp_affinity_list) and ABI/testing/sysfs-bus-pci (msi_irqs);
Slurm slurm.conf(5), CpuSpecList. An interrupt that its driver manages (NVMe queues) cannot be moved, and the kernel returns EIO.
List a device with such interrupts in ``skip``. The values are lost at reboot, and fairlead's boot unit applies them again. If a
driver creates new queues later, fairlead reports their interrupts as drift.

irqbalance moves interrupts every ten seconds. By default fairlead stops it. With ``irqbalance = true`` it runs, and fairlead bans
it from all CPUs except the system's (IRQBALANCE_BANNED_CPULIST, irqbalance(1)). It then moves interrupts only among the system's
CPUs.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model.change import AnyChange, File, KernelValue, Layer, Unit
from fairlead.model.cpulist import cpus_in, format_cpulist, parse_cpu_set
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.pci_kind import kind_of
from fairlead.model.setting import Setting, Want

LINES = "/sys/bus/pci/devices/*/msi_irqs/*"
AFFINITY = "/proc/irq/[0-9]*/smp_affinity_list"
BALANCER = "/proc/@irqbalance/comm"
UNIT = "irqbalance.service"
DROPIN = f"/etc/systemd/system/{UNIT}.d/90-fairlead.conf"
#: The options of irqbalance's unit: on Debian and Ubuntu, and on the EL family.
DEFAULTS = ("/etc/default/irqbalance", "/etc/sysconfig/irqbalance")
_LINE = re.compile(r"^/sys/bus/pci/devices/([^/]+)/msi_irqs/(\d+)$")

Address = Annotated[str, Meta(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?!\n)$")]


class IrqAffinityWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    cpus: Annotated[
        str, Meta(pattern=r"^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?(?!\n)$",
                  description="CPUs of the system, such as 0-1,56-57. If empty, the first cores of each NUMA node."),
    ] = ""  # fmt: skip
    cores_per_node: Annotated[int, Meta(ge=1, le=64, description="If `cpus` is empty, this many cores of each NUMA node.")] = 1
    skip: Annotated[tuple[Address, ...], Meta(description="Devices whose interrupts are not moved, by PCI address.")] = ()
    irqbalance: Annotated[bool, Meta(description="irqbalance runs, but only on the system's CPUs. false: it does not run.")] = (
        False
    )


def cpus_of(text: str) -> tuple[int, ...] | None:
    """Return the CPU numbers of a list such as 0-3,8. Return None for any other text."""
    try:
        return cpus_in(parse_cpu_set(text))
    except ValueError:
        return None


def text_of(cpus: tuple[int, ...]) -> str:
    return format_cpulist(cpus) or "-"


class Irq(Struct, frozen=True):
    """Describes one interrupt. ``cpus`` are the CPUs that the kernel may send it to now."""

    number: int
    device: str
    numa: int
    cpus: tuple[int, ...]


class Observed(Struct, frozen=True):
    """Holds what was read. ``cores`` has the CPUs (hardware threads) of each core, by NUMA node. ``balancing`` says whether
    irqbalance runs. ``dropin`` is the text of fairlead's drop-in. ``defaults`` has the texts of irqbalance's own files, by
    path."""

    irqs: tuple[Irq, ...]
    cores: dict[int, tuple[tuple[int, ...], ...]]
    balancing: bool
    dropin: str | None
    defaults: dict[str, str]


def observe(node: Node) -> Observed | Missing:
    dropin, balancer = node.text(DROPIN), node.text(BALANCER)
    defaults = {path: node.text(path) for path in DEFAULTS}
    for text in (dropin, balancer, *defaults.values()):
        if isinstance(text, Missing):
            return text
    devices = {d.address: d for d in node.pci if kind_of(d) in ("gpu", "nic")}
    irqs = []
    for path in node.texts:
        line = _LINE.match(path)
        if line is None or line[1] not in devices:
            continue
        at = f"/proc/irq/{line[2]}/smp_affinity_list"
        now = node.texts.get(at)
        if isinstance(now, Missing):
            return now
        if now is None:
            continue  # the interrupt is allocated, but no driver has requested it
        cpus = cpus_of(now.strip())
        if cpus is None:
            return unreadable(f"{at}: not a list of CPUs: {now[:40]!r}")
        numa = devices[line[1]].numa
        irqs.append(Irq(int(line[2]), line[1], -1 if isinstance(numa, Missing) else numa, cpus))
    cores: dict[int, dict[tuple[int, ...], None]] = {}
    for cpu in node.cpus:
        if cpu.online:
            cores.setdefault(cpu.numa, {})[cpu.siblings] = None
    known = {numa: tuple(sorted(found)) for numa, found in cores.items()}
    ours = None if dropin is None else str(dropin)
    theirs = {path: str(text) for path, text in defaults.items() if text is not None}
    return Observed(tuple(sorted(irqs, key=lambda i: i.number)), known, balancer is not None, ours, theirs)


def system_cpus(want: IrqAffinityWant, observed: Observed) -> dict[int, tuple[int, ...]]:
    """Return the system's CPUs by NUMA node. Raise ConfigError if a declared CPU is not online."""
    everything = {cpu: numa for numa, cores in observed.cores.items() for core in cores for cpu in core}
    if want.cpus:
        named = cpus_of(want.cpus) or ()
        absent = [c for c in named if c not in everything]
        if absent or not named:
            words = f"CPU {absent[0]} is not online here" if absent else f"{want.cpus!r} is not a list of CPUs"
            raise ConfigError("node.json", "settings.irq_affinity.cpus", words, hint="`lscpu -e` lists them")
        chosen = set(named)
    else:
        chosen = {c for cores in observed.cores.values() for core in cores[: want.cores_per_node] for c in core}
    found: dict[int, list[int]] = {}
    for cpu in sorted(chosen):
        found.setdefault(everything[cpu], []).append(cpu)
    return {numa: tuple(cpus) for numa, cpus in found.items()}


def plan(want: IrqAffinityWant, observed: Observed) -> tuple[AnyChange, ...]:
    system = system_cpus(want, observed)
    every = tuple(sorted(c for cpus in system.values() for c in cpus))
    changes = _balancer(want, observed, every)
    for irq in observed.irqs:
        home = system.get(irq.numa, every)
        right = set(irq.cpus) <= set(every) if want.irqbalance else irq.cpus == home
        if irq.device not in want.skip and not right:
            changes.append(
                KernelValue(
                    setting="irq_affinity",
                    why=f"interrupts of {irq.device} may go to CPUs {text_of(irq.cpus)}, wanted {text_of(home)}",
                    path=f"/proc/irq/{irq.number}/smp_affinity_list",
                    value=text_of(home),
                    before=text_of(irq.cpus),
                )
            )
    return tuple(changes)


def _balancer(want: IrqAffinityWant, observed: Observed, system: tuple[int, ...]) -> list[AnyChange]:
    content = None
    if want.irqbalance:
        for path, line in ((path, line) for path, text in observed.defaults.items() for line in text.splitlines()):
            if line.strip().startswith("IRQBALANCE_BANNED_CPU"):
                words = "names banned CPUs and is read after ours"
                raise ConfigError(path, line.partition("=")[0].strip(), words, hint="remove that line")
        others = [c for cores in observed.cores.values() for core in cores for c in core if c not in system]
        content = (
            "# Written by fairlead (setting irq_affinity); changes made here are put back.\n[Service]\n"
            f"Environment=IRQBALANCE_BANNED_CPULIST={text_of(tuple(sorted(others)))}\n"
        )
    changes: list[AnyChange] = []
    if observed.dropin != content:
        why = f"{DROPIN} does not keep irqbalance off other CPUs" if content else f"{DROPIN} is ours, and not wanted any more"
        changes.append(File(setting="irq_affinity", why=why, layer=Layer.PERSISTED, path=DROPIN, content=content,
                            before=observed.dropin))  # fmt: skip
    if want.irqbalance and (changes or not observed.balancing):
        why = changes[0].why if changes else "irqbalance does not run, and is wanted"
        changes.append(Unit(setting="irq_affinity", why=why, name=UNIT, enabled=True, restart=True, daemon_reload=bool(changes)))
    elif not want.irqbalance and observed.balancing:
        why = "irqbalance runs and moves interrupts to the cores of jobs; it should not run"
        changes.append(Unit(setting="irq_affinity", why=why, name=UNIT, enabled=False, active=False, daemon_reload=bool(changes)))
    return changes


setting = Setting(
    summary="Interrupts of GPUs and adapters, away from the cores of jobs",
    want=IrqAffinityWant,
    observe=observe,
    plan=plan,
    reads=(LINES, AFFINITY, BALANCER, DROPIN, *DEFAULTS),
    volatile=True,
    group="cpu",
)
