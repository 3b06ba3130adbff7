"""Each setting on the machine trees: what is planned, what is refused, and that a plan, once made, plans nothing more."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead import settings as setting_list
from fairlead.apply import TreeNvml
from fairlead.cli import main
from fairlead.errors import ConfigError
from fairlead.host import change
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.finding import Level, Mode
from fairlead.model.setting import drift
from fairlead.settings import cpu_governor, memlock, mig, numa_balancing, pcie_acs, persistence
from tests import memory as in_memory
from tests.lab.trees import MACHINES

pytestmark = pytest.mark.trees

MODELS = ("hgx-h100", "hgx-a100", "l40s-pcie")
GRUB_CFG = """menuentry 'Debian' {
	linux	/boot/vmlinuz-6.1.0-38-amd64 root=/dev/md0 ro quiet
	initrd	/boot/initrd.img-6.1.0-38-amd64
}
menuentry 'Debian (recovery mode)' {
	linux	/boot/vmlinuz-6.1.0-38-amd64 root=/dev/md0 ro single
}
"""
ALL = setting_list.load()
ON_TREES = [name for name in ALL if name != "driver"]  # driver: tests/driver, with a package database


#: What is declared here for settings that want nothing by default.
WANTS: dict[str, dict[str, object]] = {
    "clocks": {"sm_megahertz": (900, 1200)},
    "compute_mode": {"compute": "exclusive_process"},
    "ecc_mode": {"enabled": False},
    "hugepages": {"pages_2_mib": 64},
    "kernel_cmdline": {"words": ("iommu=pt", "pci=realloc=on")},
    "mig": {"geometry": ("3g.40gb", "1g.10gb")},
    "nvidia_module": {"parameters": {"NVreg_EnablePCIERelaxedOrderingMode": 1}},
    "pcie_relaxed_ordering": {"nic": False},
    "power_limit": {"watts": 300},
    "services": {"off": ("idler.service",), "masked": ("noisy.service",), "on": ("wanted.service",)},
    "sysctl": {"values": {"vm.swappiness": 10, "net.ipv4.tcp_rmem": "4096 87380 67108864"}},
    "time_sync": {"servers": ("192.0.2.1",)},
    "tuned": {"profile": "hpc-compute"},
}
#: Settings of which a part is left to a running system: a unit, the boot loader, a reboot.
LATER = {
    "ecc_mode": change.Reboot,
    "kernel_cmdline": change.BootLoader | change.Reboot,
    "nvidia_module": change.Reboot,
    "services": change.Unit | change.File,  # whether it is masked is systemd's word
    "time_sync": change.Unit,
    "tuned": change.Unit,
}


def want(name: str, **more: object) -> Any:
    return ALL[name].want(**(more or WANTS.get(name, {})))


def gathered(tree: Path, *names: str, **more: object) -> Node:
    root = Root(str(tree))
    reads = [path for name in names or ALL for path in ALL[name].wanted_reads(want(name, **more))]
    return gather(root, TreeNvml(root).raw, reads=reads)


@pytest.fixture
def tree(memory: Path) -> Path:
    return Path(shutil.copytree(MACHINES / "hgx-h100", memory / "tree", symlinks=True))


def plan(name: str, node: Node, **more: object) -> tuple[object, ...]:
    observed = ALL[name].observe(node)
    assert not isinstance(observed, Missing), f"{observed.detail}; `arranged` in this file writes what is in no machine tree"
    return ALL[name].plan(want(name, **more), observed)


def arranged(tree: Path) -> None:
    """And has units, as systemd says of them."""
    for name, words in UNITS.items():
        at = tree / "@unit" / name
        at.parent.mkdir(exist_ok=True)
        load, active, file = words.split()
        at.write_text(f"LoadState={load}\nActiveState={active}\nUnitFileState={file}\nTriggeredBy=\n")
    (tree / "etc/chrony").mkdir(parents=True, exist_ok=True)
    (tree / "etc/chrony/chrony.conf").write_text("confdir /etc/chrony/conf.d\n")
    for path, text in (("etc/default/grub", 'GRUB_CMDLINE_LINUX="quiet"\n'), ("boot/grub/grub.cfg", GRUB_CFG)):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)


UNITS = {
    "chrony.service": "loaded active enabled",
    "ntpsec.service": "loaded active enabled",
    "idler.service": "loaded active enabled",
    "noisy.service": "loaded active static",
    "wanted.service": "loaded inactive disabled",
}


@pytest.fixture(scope="module", params=MODELS)
def used(request: pytest.FixtureRequest) -> Iterator[Path]:
    """One tree for all settings: what one of them changes leaves every other with all it has to do."""
    with in_memory.folder() as folder:
        tree = Path(shutil.copytree(MACHINES / request.param, folder / "tree", symlinks=True))
        arranged(tree)
        yield tree


@pytest.mark.parametrize("name", ON_TREES)
def test_planned_changes_leave_nothing_to_plan(name: str, used: Path) -> None:
    tree = used
    root = Root(str(tree))
    if name == "mig" and "l40s" in (tree / "README.md").read_text():
        assert isinstance(mig.observe(gathered(tree, name)), Missing), "no profile here says that it has none"
        return
    if name == "energy_performance" and "hgx-a100" in (tree / "README.md").read_text():
        with pytest.raises(ConfigError, match="not in active mode"):
            plan(name, gathered(tree, name))
        return
    changes = plan(name, gathered(tree, name))
    assert changes, f"{name} has nothing to do on a node as after power-on: add to WANTS in this file what it should want"
    outcomes = change.execute(changes, root, nvml_set=TreeNvml(root).set)  # type: ignore[arg-type]
    assert [o.message for o in outcomes if not o.done and not isinstance(o.change, change.Reboot)] == []
    left = plan(name, gathered(tree, name))
    undone = [c for c in left if not isinstance(c, LATER.get(name, ()))]
    assert not undone, f"{name} plans changes again after they were made; what waits for a running system belongs into LATER"
    assert len(list(drift(name, ALL[name], want(name), gathered(tree, name)))) == len(left)


def value_of(path: Path, content: bytes) -> bytes | str:
    """A kernel file by what it says: a file tree does not put brackets and tabs back as the kernel does."""
    kernel = {"proc", "sys"} & set(path.parts) and path.name != "config"
    return change.current_choice(content.decode()) if kernel else content


@pytest.fixture(scope="module")
def undone() -> Iterator[tuple[Path, dict[Path, bytes | str]]]:
    """A tree that every setting changes and brings back, and what it says."""
    with in_memory.folder() as folder:
        tree = Path(shutil.copytree(MACHINES / "hgx-h100", folder / "tree", symlinks=True))
        arranged(tree)
        yield tree, said_by(tree)


def said_by(tree: Path) -> dict[Path, bytes | str]:
    files = (p for p in tree.rglob("*") if p.is_file() and not p.is_symlink() and p.name != "nvml.json")
    return {p: value_of(p, p.read_bytes()) for p in files}


@pytest.mark.parametrize("name", ON_TREES)
def test_undo_brings_back_every_byte(name: str, undone: tuple[Path, dict[Path, bytes | str]]) -> None:
    tree, before = undone
    root = Root(str(tree))
    gpus = msgspec.json.decode((tree / "nvml.json").read_bytes())
    change.execute(plan(name, gathered(tree, name)), root, nvml_set=TreeNvml(root).set)  # type: ignore[arg-type]
    outcomes = change.undo_all(root, nvml_set=TreeNvml(root).set, drained=True)
    assert outcomes and all(o.done for o in outcomes)
    assert said_by(tree) == before
    assert msgspec.json.decode((tree / "nvml.json").read_bytes()) == gpus
    assert change.undo_changes(root) == ()


@pytest.mark.parametrize("name", ALL)
def test_unknown_keys_are_errors(name: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `valeu`"):
        msgspec.convert({"valeu": 1}, ALL[name].want)


@pytest.mark.parametrize("name", ALL)
def test_every_wanted_value_has_a_description(name: str) -> None:
    for key, value in msgspec.json.schema(ALL[name].want)["$defs"][ALL[name].want.__name__]["properties"].items():
        assert value.get("description"), f"{name}.{key}"


@pytest.mark.parametrize(("mode", "level"), [(Mode.OBSERVE, Level.WARN), (Mode.ENFORCE, Level.DRAIN)])
def test_drift_of_numa_balancing_is_one_finding_per_layer(mode: Mode, level: Level, tree: Path) -> None:
    want = numa_balancing.NumaBalancingWant(mode=mode)
    findings = list(drift("numa_balancing", numa_balancing.setting, want, gathered(tree)))
    assert [(f.check, f.level, f.device) for f in findings] == [
        ("setting.numa_balancing", level, numa_balancing.FILE),
        ("setting.numa_balancing", level, numa_balancing.VALUE),
    ]
    assert findings[1].summary == "kernel.numa_balancing is 1, wanted 0"


def test_a_sysctl_file_read_later_is_named_instead_of_fought(tree: Path) -> None:
    later = tree / "etc/sysctl.d/99-site.conf"
    later.parent.mkdir(parents=True)
    later.write_text("# kernel.numa_balancing = 0\nkernel/numa_balancing = 1\n")
    with pytest.raises(ConfigError, match=r"/etc/sysctl.d/99-site.conf: kernel.numa_balancing: sets 1 and is read after"):
        plan("numa_balancing", gathered(tree))
    hidden = tree / "usr/lib/sysctl.d/99-site.conf"  # sysctl.d(5): the file of the same name in /etc hides this one
    hidden.parent.mkdir(parents=True)
    hidden.write_text("kernel.numa_balancing = 2\n")
    later.write_text("vm.swappiness = 10\n")
    assert len(plan("numa_balancing", gathered(tree))) == 2
    early = tree / "etc/sysctl.d/10-early.conf"
    early.write_text("kernel.numa_balancing = 1\n")
    assert len(plan("numa_balancing", gathered(tree))) == 2


@pytest.mark.parametrize("text", ["", "x\n", "-1\n"])
def test_an_odd_kernel_value_is_missing_not_healthy(text: str, tree: Path) -> None:
    (tree / "proc/sys/kernel/numa_balancing").write_text(text)
    assert isinstance(numa_balancing.observe(gathered(tree)), Missing)
    findings = list(drift("numa_balancing", numa_balancing.setting, numa_balancing.NumaBalancingWant(), gathered(tree)))
    assert [f.level for f in findings] == [Level.UNKNOWN]


def test_acs_clears_redirect_bits_only_and_only_between_gpus_and_nics(tree: Path) -> None:
    node = gathered(tree)
    changes = pcie_acs.plan(pcie_acs.PcieAcsWant(), pcie_acs.observe(node))  # type: ignore[arg-type]
    rdma = {n.pci for n in node.nics if n.rdma}
    below = {a for d in node.pci if d.class_code >> 8 == 0x0302 or d.address in rdma for a in d.path[:-1]}
    assert {c.address for c in changes} <= below
    assert all(c.mask & ~pcie_acs.REDIRECT == 0 and c.value == 0 for c in changes)
    elsewhere = {d.address for d in node.pci if d.acs_capability and d.address not in below}
    assert elsewhere, "the tree has bridges with ACS above NVMe drives only: those stay as they are"


def test_acs_masks_are_per_bridge_role(tree: Path) -> None:
    node = gathered(tree)
    changes = plan("pcie_acs", node, root_port=0, switch_upstream=0, switch_downstream=0x1D)
    roles = {d.address: d.bridge_role for d in node.pci}
    assert {roles[c.address] for c in changes} == {"switch_downstream"}  # type: ignore[attr-defined]
    assert {c.mask for c in changes} == {0x1D}  # type: ignore[attr-defined]


def _virtual(tree: Path) -> None:
    info = tree / "proc/cpuinfo"
    info.write_text(info.read_text().replace("flags\t\t:", "flags\t\t: hypervisor", 1))


def _vfio(tree: Path) -> None:
    device = next((tree / "sys/bus/pci/devices").iterdir()).resolve()
    driver = tree / "sys/bus/pci/drivers/vfio-pci"
    driver.mkdir(parents=True)
    (device / "driver").unlink(missing_ok=True)
    (device / "driver").symlink_to(driver)


def _translating(tree: Path) -> None:
    next((tree / "sys/kernel/iommu_groups").glob("*/type")).write_text("DMA-FQ\n")


def _lockdown(tree: Path) -> None:
    (tree / "sys/kernel/security").mkdir(parents=True)
    (tree / "sys/kernel/security/lockdown").write_text("none [integrity] confidentiality\n")


@pytest.mark.parametrize(
    ("arrange", "words"),
    [
        (_virtual, "virtual machine"),
        (_vfio, "bound to vfio-pci"),
        (_translating, "1 DMA-FQ groups"),
        (_lockdown, "kernel lockdown"),
    ],
)
def test_acs_refuses_where_the_bits_isolate(arrange: object, words: str, tree: Path) -> None:
    arrange(tree)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=words) as caught:
        plan("pcie_acs", gathered(tree))
    assert caught.value.hint
    findings = list(drift("pcie_acs", pcie_acs.setting, pcie_acs.PcieAcsWant(), gathered(tree)))
    assert len(findings) == 1 and words in findings[0].summary and findings[0].evidence


def test_acs_of_a_config_space_cut_at_64_bytes_is_unreadable(tree: Path) -> None:
    for device in (tree / "sys/bus/pci/devices").iterdir():
        config = device / "config"
        config.write_bytes(config.read_bytes()[:64])
    assert isinstance(pcie_acs.observe(gathered(tree)), Missing)


def test_governor_says_which_are_on_offer(tree: Path) -> None:
    with pytest.raises(ConfigError, match="has no governor schedutil; it offers"):
        plan("cpu_governor", gathered(tree), governor="schedutil")


def test_governor_drift_reads_the_same_for_every_cpu(tree: Path) -> None:
    findings = list(drift("cpu_governor", cpu_governor.setting, cpu_governor.CpuGovernorWant(), gathered(tree)))
    assert len({f.summary for f in findings}) == 1 and len(findings) > 100


LIMITS = "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         {}   {}   bytes\n"


@pytest.mark.parametrize(
    ("soft", "hard", "restarts"), [("8388608", "8388608", 1), ("8388608", "unlimited", 1), ("unlimited", "unlimited", 0)]
)
def test_memlock_is_effective_only_in_the_running_slurmd(soft: str, hard: str, restarts: int, tree: Path) -> None:
    root = Root(str(tree))
    change.execute(plan("memlock", gathered(tree)), root)  # type: ignore[arg-type]
    limits = tree / "proc/@slurmd/limits"
    limits.parent.mkdir()
    limits.write_text(LIMITS.format(soft, hard))
    changes = memlock.plan(memlock.MemlockWant(), memlock.observe(gathered(tree)))  # type: ignore[arg-type]
    assert [getattr(c, "restart", False) for c in changes] == [True] * restarts


@pytest.mark.parametrize(("limit", "refused"), [("infinity", True), ("8388609", True), ("8388608", False), ("65536", False)])
def test_memlock_in_a_container_that_may_not_raise_limits_is_refused_not_tried_for_ever(
    limit: str, refused: bool, tree: Path
) -> None:
    (tree / "proc/1").mkdir(exist_ok=True)
    (tree / "proc/1/status").write_text("Name:\tsystemd\nCapEff:\t000001fffeffffff\n")
    (tree / "proc/1/limits").write_text(LIMITS.format("8388608", "8388608"))
    if refused:
        with pytest.raises(ConfigError, match="out of reach: systemd here has no CAP_SYS_RESOURCE"):
            plan("memlock", gathered(tree), limit=limit)
    else:
        assert plan("memlock", gathered(tree), limit=limit)
    (tree / "proc/1/status").write_text("CapEff:\t000001ffffffffff\n")
    assert plan("memlock", gathered(tree), limit=limit)


def test_persistence_leaves_a_lost_gpu_to_its_own_check_but_not_an_unreadable_mode(tree: Path) -> None:
    node = gathered(tree)
    assert not isinstance(node.gpus, Missing)
    lost = msgspec.structs.replace(node.gpus[0], lost=True, persistence=unreadable("GPU is lost"))
    seen = persistence.observe(msgspec.structs.replace(node, gpus=(lost, *node.gpus[1:])))
    assert isinstance(seen, persistence.Observed) and len(seen.gpus) == 7
    odd = msgspec.structs.replace(node.gpus[0], persistence=unreadable("NVML 999"))
    seen = persistence.observe(msgspec.structs.replace(node, gpus=(odd, *node.gpus[1:])))
    assert isinstance(seen, Missing) and node.gpus[0].pci in seen.detail


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(words=st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=6), masks=st.tuples(*[st.integers(0, 0x7F)] * 3))
def test_acs_plan_never_sets_a_bit_and_is_done_after_one_pass(words: list[int], masks: tuple[int, int, int]) -> None:
    roles = ("root_port", "switch_upstream", "switch_downstream")
    want = pcie_acs.PcieAcsWant(root_port=masks[0], switch_upstream=masks[1], switch_downstream=masks[2])
    bridges = tuple(pcie_acs.Bridge(f"0000:00:{i:02x}.0", roles[i % 3], 0x100, w) for i, w in enumerate(words))
    changes = pcie_acs.plan(want, pcie_acs.Observed(bridges))
    after = {b.address: b.control for b in bridges}
    for c in changes:
        assert c.mask & ~getattr(want, roles[int(c.address[8:10], 16) % 3]) == 0
        after[c.address] = after[c.address] & ~c.mask | c.value
    assert all(after[b.address] & ~b.control == 0 for b in bridges)
    done = pcie_acs.Observed(tuple(msgspec.structs.replace(b, control=after[b.address]) for b in bridges))
    assert pcie_acs.plan(want, done) == ()


def test_a_snapshot_holds_every_file_that_a_setting_reads(undone: tuple[Path, dict[Path, bytes | str]], tmp_path: Path) -> None:
    used = undone[0]
    assert main(["snapshot", str(tmp_path / "copy"), "--root", str(used)]) == 0
    root, copy = Root(str(used)), Root(str(tmp_path / "copy"))
    for name, known in ALL.items():
        for pattern in known.reads:
            paths = [p for p in root.glob(pattern) if root.list(p) is None]
            lost = [p for p in paths if isinstance(root.read_bytes(p), bytes) and not isinstance(copy.read_bytes(p), bytes)]
            assert lost == [], name
