"""PCIe device settings, interrupts, services and the clock's program by their own rules: what is refused, who else writes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.errors import ConfigError
from fairlead.model.change import Disruption, File, KernelValue, PciBits, Unit
from fairlead.model.facts import Cpu, Missing, Node, PciDevice, unreadable
from fairlead.model.unit import UnitSeen
from fairlead.settings import irq_affinity, pcie_aspm, pcie_max_read_request, pcie_relaxed_ordering, services, time_sync
from tests.checks.nodes import node as some_node

NIC, GPU, PORT = "0000:18:00.0", "0000:1b:00.0", "0000:15:01.0"


def function(address: str, class_code: int, vendor: int = 0x15B3, **more: Any) -> PciDevice:
    known: dict[str, Any] = {"express_offset": 0x60, "device_control": 0x203F, "link_control": 0, "numa": 0, **more}
    path = ("pci0000:15", PORT, address)
    link = unreadable("-")
    return PciDevice(address=address, vendor=vendor, device=0x1021, class_code=class_code, path=path, link=link, **known)


def machine(*devices: PciDevice, **texts: str | Missing | None) -> Node:
    cpus = tuple(Cpu(id=i, package=i % 4 // 2, core=i // 2 % 2, numa=i % 4 // 2, l3=0, siblings=(i % 4, i % 4 + 4))
                 for i in range(8))  # fmt: skip
    files: dict[str, str | Missing | None] = {
        "/proc/cmdline": "quiet",
        **dict.fromkeys((irq_affinity.DROPIN, *irq_affinity.DEFAULTS, irq_affinity.BALANCER)),
        pcie_aspm.POLICY: "[default] performance powersave powersupersave\n",
        **texts,
    }
    return replace(some_node(), pci=devices, cpus=cpus, texts=files)


BOTH = (function(NIC, 0x020700), function(GPU, 0x030200, 0x10DE, numa=1))


# -- PCIe


def test_read_requests_are_set_by_kind_and_leave_every_other_bit() -> None:
    observed = pcie_max_read_request.observe(machine(*BOTH))
    assert not isinstance(observed, Missing)
    (change,) = pcie_max_read_request.plan(pcie_max_read_request.PcieMaxReadRequestWant(), observed)
    assert (change.address, change.offset, change.mask, change.value) == (NIC, 0x68, 0x7000, 0x5000)
    assert change.disruption is Disruption.IDLE and "is 512 bytes, wanted 4096" in change.why
    want = pcie_max_read_request.PcieMaxReadRequestWant(nic_bytes=None, gpu_bytes=256)
    assert [(c.address, c.value) for c in pcie_max_read_request.plan(want, observed)] == [(GPU, 0x1000)]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"/proc/cmdline": "quiet pci=realloc=on,pcie_bus_perf"}, "pcie_bus_perf"),
        ({"/sys/kernel/security/lockdown": "none [integrity] confidentiality\n"}, "kernel lockdown"),
    ],
)
def test_read_requests_are_left_where_the_kernel_owns_them(texts: dict[str, str], words: str) -> None:
    observed = pcie_max_read_request.observe(machine(*BOTH, **texts))
    assert not isinstance(observed, Missing)
    with pytest.raises(ConfigError, match=words):
        pcie_max_read_request.plan(pcie_max_read_request.PcieMaxReadRequestWant(), observed)


def test_relaxed_ordering_is_one_bit_and_refused_below_root_ports_that_cannot() -> None:
    off = replace(BOTH[0], device_control=0x202F)
    haswell = PciDevice(address=PORT, vendor=0x8086, device=0x2F04, class_code=0x060400, path=(), numa=0, link=unreadable("-"))
    want = pcie_relaxed_ordering.PcieRelaxedOrderingWant()
    plain, below = pcie_relaxed_ordering.observe(machine(off)), pcie_relaxed_ordering.observe(machine(haswell, off))
    assert not isinstance(plain, Missing) and not isinstance(below, Missing)
    (change,) = pcie_relaxed_ordering.plan(want, plain)
    assert isinstance(change, PciBits) and (change.mask, change.value) == (0x10, 0x10)
    with pytest.raises(ConfigError, match=r"the root port 0000:15:01\.0 cannot have it"):
        pcie_relaxed_ordering.plan(want, below)


@pytest.mark.parametrize("setting", [pcie_max_read_request, pcie_relaxed_ordering])
def test_a_control_word_that_cannot_be_read_is_missing_and_a_virtual_function_is_left_out(setting: Any) -> None:
    broken = replace(BOTH[0], device_control=unreadable("config space ends"))
    assert isinstance(setting.observe(machine(broken)), Missing)
    assert setting.observe(machine(replace(broken, virtual_function=True))).devices == ()


def test_aspm_is_the_kernels_policy_and_what_the_firmware_keeps_is_named() -> None:
    want = pcie_aspm.PcieAspmWant()
    observed = pcie_aspm.observe(machine(*BOTH))
    assert not isinstance(observed, Missing)
    (change,) = pcie_aspm.plan(want, observed)
    assert isinstance(change, KernelValue) and (change.value, change.before) == ("performance", "default")
    text = {pcie_aspm.POLICY: "default [performance] powersave\n"}
    asleep = pcie_aspm.observe(machine(replace(BOTH[1], link_control=0x42), **text))
    assert not isinstance(asleep, Missing)
    with pytest.raises(ConfigError, match=f"the links of {GPU} may sleep: the firmware owns ASPM"):
        pcie_aspm.plan(want, asleep)
    with pytest.raises(ConfigError, match="has no policy powersupersave; it offers default"):
        pcie_aspm.plan(pcie_aspm.PcieAspmWant(policy="powersupersave"), asleep)
    none = pcie_aspm.observe(machine(*BOTH, **{pcie_aspm.POLICY: None}))
    assert not isinstance(none, Missing) and pcie_aspm.plan(want, none) == ()


# -- interrupts

IRQS = {
    f"/sys/bus/pci/devices/{NIC}/msi_irqs/64": "msix\n", "/proc/irq/64/smp_affinity_list": "0-7\n",
    f"/sys/bus/pci/devices/{GPU}/msi_irqs/65": "msi\n", "/proc/irq/65/smp_affinity_list": "2,6\n",
    f"/sys/bus/pci/devices/{GPU}/msi_irqs/66": "msi\n", "/proc/irq/9/smp_affinity_list": "0-7\n",
}  # fmt: skip


def irqs(**texts: str | None) -> irq_affinity.Observed:
    observed = irq_affinity.observe(machine(*BOTH, **{**IRQS, **texts}))
    assert not isinstance(observed, Missing)
    return observed


@pytest.mark.parametrize(
    ("want", "values"),
    [
        ({}, {64: "0,4"}),
        ({"cores_per_node": 2}, {64: "0-1,4-5", 65: "2-3,6-7"}),
        ({"cpus": "3"}, {64: "3", 65: "3"}),
        ({"cpus": "0,2"}, {64: "0", 65: "2"}),
        ({"cpus": "0", "skip": (GPU,)}, {64: "0"}),
    ],
)
def test_interrupts_go_to_the_systems_cpus_of_their_own_numa_node(want: dict[str, Any], values: dict[int, str]) -> None:
    changes = irq_affinity.plan(irq_affinity.IrqAffinityWant(**want), irqs())
    assert {int(c.path.split("/")[3]): c.value for c in changes if isinstance(c, KernelValue)} == values


def test_cpus_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="CPU 8 is not online here"):
        irq_affinity.plan(irq_affinity.IrqAffinityWant(cpus="0,8"), irqs())
    assert isinstance(irq_affinity.observe(machine(*BOTH, **{**IRQS, "/proc/irq/64/smp_affinity_list": "x\n"})), Missing)


def test_irqbalance_does_not_run_or_is_kept_to_the_systems_cpus() -> None:
    running = irqs(**{irq_affinity.BALANCER: "irqbalance\n"})
    stop = irq_affinity.plan(irq_affinity.IrqAffinityWant(), running)[0]
    assert isinstance(stop, Unit) and (stop.name, stop.enabled, stop.active) == ("irqbalance.service", False, False)
    file, unit, *moves = irq_affinity.plan(irq_affinity.IrqAffinityWant(irqbalance=True), running)
    assert isinstance(file, File) and "BANNED_CPULIST=1,3,5,7\n" in (file.content or "")
    assert isinstance(unit, Unit) and unit.restart and [m.value for m in moves] == ["0,4"]  # type: ignore[union-attr]
    for path in ("/etc/default/irqbalance", "/etc/sysconfig/irqbalance"):
        theirs = irqs(**{path: "IRQBALANCE_BANNED_CPULIST=0\n"})
        with pytest.raises(ConfigError, match=f"{path}: IRQBALANCE_BANNED_CPULIST: names banned CPUs"):
            irq_affinity.plan(irq_affinity.IrqAffinityWant(irqbalance=True), theirs)


# -- services


def unit(name: str, load: str = "loaded", active: str = "active", file: str = "enabled", *triggers: str) -> UnitSeen:
    return UnitSeen(name, load, active, file, triggers)


def planned(want: services.ServicesWant, *units: UnitSeen, **files: str) -> list[tuple[str, bool | None, bool | None]]:
    observed = services.Observed({u.name: u for u in units}, {f"{n}.service": t for n, t in files.items()}, {})
    changes = services.plan(want, observed)
    return [(c.name, c.enabled, c.active) if isinstance(c, Unit) else (c.path, None, None) for c in changes]  # type: ignore[union-attr]


def test_what_would_start_a_service_again_goes_with_it() -> None:
    want = services.ServicesWant(off=("cups.service",))
    known = unit("cups.service", "loaded", "active", "enabled", "cups.socket", "cups.path")
    assert planned(want, known) == [("cups.socket", False, False), ("cups.path", False, False), ("cups.service", False, False)]
    assert planned(want, unit("cups.service", "loaded", "inactive", "disabled")) == []
    assert planned(want, unit("cups.service", "not-found", "inactive", "")) == []


def test_a_mask_is_an_empty_file_and_never_replaces_one_of_the_sites() -> None:
    want = services.ServicesWant(masked=("mlocate.timer",))
    names = [name for name, *_ in planned(want, unit("mlocate.timer"))]
    assert names == ["mlocate.timer", "/etc/systemd/system/mlocate.timer", "mlocate.timer"]
    own = services.Observed({"mlocate.timer": unit("mlocate.timer")}, {"mlocate.timer": "[Timer]\n"}, {})
    with pytest.raises(ConfigError, match="has a unit file of its own"):
        services.plan(want, own)


@pytest.mark.parametrize(
    ("want", "words"),
    [
        ({"off": ("slurmd.service",)}, "settings.services.off: slurmd.service: a node cannot do without it"),
        ({"on": ("a.service",), "off": ("a.service",)}, "a.service: is wanted on and off"),
        ({"on": ("gone.service",)}, "gone.service: is not installed"),
        ({"on": ("masked.service",)}, "masked.service: is masked"),
    ],
)
def test_services_that_cannot_be_so_are_refused(want: dict[str, tuple[str, ...]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        planned(services.ServicesWant(**want), unit("masked.service", "masked", "inactive", "masked"))


# -- the clock's program


def clock(*units: UnitSeen, **files: str | None) -> time_sync.Observed:
    names = [n for names in time_sync.UNITS.values() for n in names]
    known = {n: UnitSeen(n, "not-found", "inactive", "", ()) for n in names} | {u.name: u for u in units}
    paths = (time_sync.CHRONY, time_sync.TIMESYNCD, time_sync.CHRONY_CONF, time_sync.CHRONY_CONF_EL)
    return time_sync.Observed(known, {**dict.fromkeys(paths), **files})


def test_exactly_one_program_sets_the_clock() -> None:
    two = clock(unit("chrony.service"), unit("systemd-timesyncd.service", "loaded", "active", "disabled"))
    (stop,) = time_sync.plan(time_sync.TimeSyncWant(), two)
    assert isinstance(stop, Unit) and (stop.name, stop.active) == ("systemd-timesyncd.service", False)
    (start,) = time_sync.plan(time_sync.TimeSyncWant(), clock(unit("chronyd.service", "loaded", "inactive", "disabled")))
    assert isinstance(start, Unit) and (start.name, start.enabled, start.active) == ("chronyd.service", True, True)
    with pytest.raises(ConfigError, match="systemd-timesyncd is not installed, or is masked"):
        time_sync.plan(time_sync.TimeSyncWant(service="systemd-timesyncd"), clock(unit("chrony.service")))


def test_time_servers_are_a_drop_in_that_the_program_reads() -> None:
    conf = {time_sync.CHRONY_CONF: "confdir  /etc/chrony/conf.d\n"}
    want = time_sync.TimeSyncWant(servers=("ntp1.example.org", "192.0.2.1"))
    file, restart = time_sync.plan(want, clock(unit("chrony.service"), **conf))
    assert isinstance(file, File) and (file.content or "").endswith("server ntp1.example.org iburst\nserver 192.0.2.1 iburst\n")
    assert isinstance(restart, Unit) and restart.restart
    with pytest.raises(ConfigError, match=r"/etc/chrony/chrony\.conf does not read"):
        time_sync.plan(want, clock(unit("chrony.service"), **{time_sync.CHRONY_CONF: "pool x\n"}))
    with pytest.raises(ConfigError, match="ntp has no drop-in"):
        time_sync.plan(replace(want, service="ntp"), clock(unit("ntpsec.service")))
