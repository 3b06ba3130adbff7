"""Kernel settings by their own rules: what is refused, what waits for a reboot, who else writes the value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead import config
from fairlead.errors import ConfigError
from fairlead.model import cpufreq, slurmd_limit
from fairlead.model import sysctl_files as precedence
from fairlead.model.change import BootLoader, Disruption, File, KernelValue, Layer, Module, Reboot, Unit
from fairlead.model.facts import Cpu, Missing, Node, unreadable
from fairlead.settings import (
    cpu_idle,
    energy_performance,
    hugepages,
    journald,
    kernel_cmdline,
    kernel_modules,
    memlock,
    nofile,
    numa_balancing,
    nvidia_module,
    sysctl,
    transparent_hugepage,
)
from tests.checks.nodes import node as some_node


def texts(files: dict[str, str | Missing | None]) -> Node:
    """A node of one CPU with these files."""
    return replace(some_node(), texts=files, cpus=(Cpu(id=0, package=0, core=0, numa=0, l3=0, siblings=(0,)),))


# -- sysctl


def seen(**more: str) -> sysctl.Observed:
    files: dict[str, str | Missing | None] = {
        "/proc/sys/vm/swappiness": "60\n",
        "/proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
        "/proc/sys/net/ipv4/tcp_congestion_control": "cubic\n",
        sysctl.CONGESTION: "reno cubic\n",
        "/proc/sys/kernel/numa_balancing": "1\n",
        "/proc/sys/kernel/core_pattern": "core\n",
        "/proc/sys/kernel/pid_max": "4194304\n",
        sysctl.FILE: None,
        **more,
    }
    observed = sysctl.observe(texts(files))
    assert isinstance(observed, sysctl.Observed)
    return observed


REFUSED = [
    ("net.ipv4.tcp_congestion_control", "brr", "no congestion control 'brr'", "it has reno cubic"),
    ("vm.swappiness", "lots", "not a number from 0 to 200", "admin-guide"),
    ("vm.swappiness", 201, "not a number from 0 to 200", "admin-guide"),
    ("vm.swapiness", 10, "this kernel has no such parameter", "sysctl -a"),
    ("net.ipv4.tcp_rmem", "4096 131072", "not a minimum, default and maximum", "three"),
    ("net.ipv4.tcp_rmem", "9 8 7", "not a minimum, default and maximum", "three"),
    ("kernel.numa_balancing", 0, "has a setting of its own", "settings.numa_balancing"),
    ("kernel.pid_max", "many", "holds one \\(4194304\\)", "give a number"),
]


@pytest.mark.parametrize(("key", "value", "words", "hint"), REFUSED)
def test_a_sysctl_that_the_kernel_would_not_take_is_refused_with_file_and_key(
    key: str, value: str | int, words: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=rf"node.json: settings.sysctl.values.{key}: .*{words}") as caught:
        sysctl.plan(sysctl.SysctlWant(values={key: value}), seen())
    assert hint in caught.value.hint


@pytest.mark.parametrize("fabric", ["roce", "aws-efa"])
def test_network_buffers_of_a_fabric_are_declared_beside_the_hardware_s_and_checked(fabric: str) -> None:
    declared = config.profile_document("n1", "hgx-h100", fabric).settings["sysctl"]
    assert isinstance(declared, sysctl.SysctlWant)
    assert {"vm.zone_reclaim_mode", "net.core.rmem_max", "net.core.wmem_max"} <= set(declared.values)
    assert ("net.ipv4.neigh.default.gc_thresh3" in declared.values) is (fabric == "roce")
    here = seen(**{sysctl.proc_path(key): "1024\n" for key in declared.values})
    assert {c.layer for c in sysctl.plan(declared, here)} == {Layer.EFFECTIVE, Layer.PERSISTED}
    assert set(declared.values) <= set(sysctl.RANGES), "each by the kernel's own range"
    typo = replace(declared, values={**declared.values, "net.core.rmem_max": "64M"})
    with pytest.raises(ConfigError, match=r"net\.core\.rmem_max: '64M' is not a number from 2304"):
        sysctl.plan(typo, here)


def test_sysctls_are_made_effective_first_and_persisted_after() -> None:
    want = sysctl.SysctlWant(values={"vm.swappiness": 10, "net.ipv4.tcp_rmem": "4096 87380  67108864"})
    changes = sysctl.plan(want, seen())
    assert [type(c) for c in changes] == [KernelValue, KernelValue, File]
    assert [c.layer for c in changes] == [Layer.EFFECTIVE, Layer.EFFECTIVE, Layer.PERSISTED]
    assert changes[0].value == "4096 87380 67108864" and changes[0].before == "4096 131072 6291456"  # type: ignore[union-attr]
    done = seen(**{"/proc/sys/vm/swappiness": "10", "/proc/sys/net/ipv4/tcp_rmem": "4096 87380 67108864",
                   sysctl.FILE: sysctl.content(want)})  # fmt: skip
    assert sysctl.plan(want, done) == ()


def test_a_file_that_nothing_is_declared_in_any_more_goes() -> None:
    (gone,) = sysctl.plan(sysctl.SysctlWant(), seen(**{sysctl.FILE: "vm.swappiness = 10\n"}))
    assert isinstance(gone, File) and gone.content is None
    assert sysctl.plan(sysctl.SysctlWant(), seen()) == ()


def test_a_later_file_is_named() -> None:
    late = {"/etc/sysctl.d/99-site.conf": "vm/swappiness=1\n"}
    with pytest.raises(ConfigError, match=r"/etc/sysctl.d/99-site.conf: vm.swappiness: sets 1 and is read after"):
        sysctl.plan(sysctl.SysctlWant(values={"vm.swappiness": 10}), seen(**late))


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("vm.swappiness", "vm/swappiness"),
        ("net.ipv4.conf.eth0/200.rp_filter", "net/ipv4/conf/eth0.200/rp_filter"),
        ("net/ipv4/conf/eth0.200/rp_filter", "net/ipv4/conf/eth0.200/rp_filter"),
    ],
)
def test_dots_and_slashes_of_a_key(key: str, path: str) -> None:
    assert precedence.proc_path(key) == f"/proc/sys/{path}"


@given(st.dictionaries(st.sampled_from([f"{d}{n}.conf" for d in precedence.DIRECTORIES for n in ("10-a", "90-x", "99-z")]),
                       st.text(max_size=80)))  # fmt: skip
def test_sysctl_files_of_any_text_never_raise(files: dict[str, str]) -> None:
    for path, _ in precedence.later_writers(files, "/etc/sysctl.d/90-x.conf", ["vm.swappiness"]).values():
        assert path.endswith("99-z.conf")


LOST = unreadable("EIO")


def test_a_file_that_may_say_otherwise_and_cannot_be_read_is_not_taken_for_none() -> None:
    grub = {kernel_cmdline.CMDLINE: "quiet\n", kernel_cmdline.GRUB: "x", kernel_cmdline.FILE: None, kernel_cmdline.GRUB_CFG: None}
    grub |= dict.fromkeys((kernel_cmdline.GRUB2_CFG, kernel_cmdline.GRUBENV, kernel_cmdline.KMOD_COMMON))
    nvidia = {nvidia_module.MODINFO: MODINFO, nvidia_module.FILE: None, nvidia_module.PARAMS: None}
    numa = {numa_balancing.VALUE: "0\n", numa_balancing.FILE: None}
    late = "/etc/sysctl.d/99-site.conf"
    assert sysctl.observe(texts({sysctl.FILE: None, late: LOST})) == LOST
    assert numa_balancing.observe(texts({**numa, late: LOST})) == LOST
    assert kernel_cmdline.observe(texts({**grub, "/etc/default/grub.d/zz.cfg": LOST})) == LOST
    assert nvidia_module.observe(texts({**nvidia, "/etc/modprobe.d/zzz.conf": LOST})) == LOST


def test_a_cpu_that_has_lost_its_energy_hint_is_not_left_out() -> None:
    path = cpufreq.FOLDER.format(0) + energy_performance.NAME
    two = tuple(Cpu(id=n, package=0, core=n, numa=0, l3=0, siblings=(n,)) for n in (0, 1))
    seen = energy_performance.observe(replace(texts({path: "performance\n"}), cpus=two))
    assert isinstance(seen, Missing) and "cpu1/" in seen.detail


# -- huge pages, idle states, energy hints


def test_thp_on_a_kernel_without_it_and_with_fewer_choices() -> None:
    empty = transparent_hugepage.observe(texts({transparent_hugepage.ENABLED: None, transparent_hugepage.DEFRAG: None}))
    with pytest.raises(ConfigError, match="CONFIG_TRANSPARENT_HUGEPAGE"):
        transparent_hugepage.plan(transparent_hugepage.TransparentHugepageWant(), empty)  # type: ignore[arg-type]
    files = {transparent_hugepage.ENABLED: "[always] never\n", transparent_hugepage.DEFRAG: "[always] madvise never\n"}
    observed = transparent_hugepage.observe(texts(dict(files)))
    with pytest.raises(ConfigError, match="no choice madvise; it offers always never"):
        transparent_hugepage.plan(transparent_hugepage.TransparentHugepageWant(enabled="madvise"), observed)  # type: ignore[arg-type]
    for odd in ("", "a b\n", "[a] [b]\n"):
        assert isinstance(transparent_hugepage.observe(texts({**files, transparent_hugepage.DEFRAG: odd})), Missing)


def test_huge_pages_of_a_size_that_is_not_there() -> None:
    path = f"{hugepages.FOLDER}/hugepages-2048kB/nr_hugepages"
    observed = hugepages.observe(texts({path: "0\n"}))
    with pytest.raises(ConfigError, match=r"no huge pages of 1048576 KiB \(it has: 2048 KiB\)"):
        hugepages.plan(hugepages.HugepagesWant(pages_1_gib=4), observed)  # type: ignore[arg-type]
    (change,) = hugepages.plan(hugepages.HugepagesWant(pages_2_mib=4), observed)  # type: ignore[arg-type]
    assert change.disruption is Disruption.IDLE and change.value == "4"
    assert isinstance(hugepages.observe(texts({path: unreadable("EIO")})), Missing)


def test_idle_states_are_judged_by_latency_and_switched_on_again() -> None:
    folder = "/sys/devices/system/cpu/cpu0/cpuidle"
    files: dict[str, str | Missing | None] = {}
    for state, (latency, off) in enumerate(((0, 0), (2, 1), (190, 0))):
        files |= {f"{folder}/state{state}/latency": f"{latency}\n", f"{folder}/state{state}/disable": f"{off}\n"}
    observed = cpu_idle.observe(texts(files))
    changes = cpu_idle.plan(cpu_idle.CpuIdleWant(max_exit_latency_microseconds=50), observed)  # type: ignore[arg-type]
    assert [(c.path[-15:], c.value) for c in changes] == [("/state1/disable", "0"), ("/state2/disable", "1")]
    assert len({c.why for c in changes}) == 1
    del files[f"{folder}/state2/disable"]
    assert isinstance(cpu_idle.observe(texts(files)), Missing)
    with pytest.raises(ConfigError, match="no CPU has idle states"):
        cpu_idle.plan(cpu_idle.CpuIdleWant(), cpu_idle.observe(texts({})))  # type: ignore[arg-type]


def test_energy_hints_where_there_are_none_or_not_this_one() -> None:
    want = energy_performance.EnergyPerformanceWant(preference="power")
    with pytest.raises(ConfigError, match="no CPU has energy_performance_preference"):
        energy_performance.plan(want, cpufreq.ObservedCpufreq(()))
    with pytest.raises(ConfigError, match="has no preference power; it offers default performance"):
        energy_performance.plan(want, cpufreq.ObservedCpufreq(((0, "default", ("default", "performance")),)))


# -- tuned, modules, limits, journal


def test_modules_are_loaded_now_and_at_boot_and_a_loaded_blacklisted_one_waits_for_a_reboot() -> None:
    files: dict[str, str | Missing | None] = {
        kernel_modules.LOADED: "nouveau 2400256 1 - Live 0x0\nnvidia_uvm 1 0 - Live 0x0\n",
        kernel_modules.LOAD: None,
        kernel_modules.BLACKLIST: None,
    }
    want = kernel_modules.KernelModulesWant(load=("nvidia-peermem", "nvidia-uvm"))
    changes = kernel_modules.plan(want, kernel_modules.observe(texts(files)))  # type: ignore[arg-type]
    assert [type(c) for c in changes] == [Module, File, File, Reboot]
    assert changes[0].name == "nvidia-peermem"  # type: ignore[union-attr]
    assert "blacklist nouveau\n" in changes[2].content  # type: ignore[union-attr, operator]
    assert changes[3].disruption is Disruption.REBOOT


@pytest.mark.parametrize(
    ("most", "ceiling", "words"),
    [(65536, None, "above fs.nr_open"), (1048576, 20000, "no CAP_SYS_RESOURCE and a hard limit of 20000")],
)
def test_open_files_that_the_kernel_or_a_container_cannot_give_are_refused(most: int, ceiling: int | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        nofile.plan(nofile.NofileWant(), nofile.Observed(None, None, most, ceiling))


def test_open_files_take_effect_with_a_restart_of_slurmd_on_an_idle_node() -> None:
    want = nofile.NofileWant()
    changes = nofile.plan(want, nofile.Observed(slurmd_limit.content("nofile", f"LimitNOFILE={want.limit}"), 524288, 1048576))
    assert [(type(c), c.disruption) for c in changes] == [(Unit, Disruption.IDLE)]
    assert nofile.plan(want, nofile.Observed(slurmd_limit.content("nofile", f"LimitNOFILE={want.limit}"), 131072, 1048576)) == ()


@given(st.text())
def test_limits_of_any_text(text: str) -> None:
    for name in (nofile.NAME, memlock.NAME):
        slurmd_limit.parse(text, name)
        line = f"{name}            1024                 unlimited               files\n"
        assert slurmd_limit.parse(line, name) == ("1024", "infinity")
        assert slurmd_limit.parse(f"{text}\n{line}", name) is not None


def test_a_kernel_without_modules_loads_none_and_says_so() -> None:
    none = dict.fromkeys(kernel_modules.setting.reads)
    seen = kernel_modules.observe(texts(none))
    assert isinstance(seen, kernel_modules.Observed)
    unread = kernel_modules.observe(texts(none | {kernel_modules.LOADER: "/sbin/modprobe\n"}))
    assert isinstance(unread, Missing) and "/proc/modules: no such file" in unread.detail
    assert [type(c) for c in kernel_modules.plan(kernel_modules.KernelModulesWant(), seen)] == [File]
    with pytest.raises(ConfigError, match="no loadable modules here"):
        kernel_modules.plan(kernel_modules.KernelModulesWant(load=("nvidia_peermem",)), seen)


def test_a_drop_in_of_the_journal_that_is_read_later_is_named_unless_another_hides_it() -> None:
    late = "/usr/lib/systemd/journald.conf.d/lab.conf"
    files: dict[str, str | Missing | None] = {journald.FILE: None, late: "[Journal]\nStorage=volatile\n#SystemMaxUse=1M\n"}
    with pytest.raises(ConfigError, match=rf"{late}: Storage: says volatile and is read after"):
        journald.plan(journald.JournaldWant(), journald.observe(texts(files)))  # type: ignore[arg-type]
    files["/etc/systemd/journald.conf.d/lab.conf"] = "[Journal]\nForwardToSyslog=no\n"
    assert journald.plan(journald.JournaldWant(), journald.observe(texts(files)))  # type: ignore[arg-type]
    files["/etc/systemd/journald.conf.d/zz.conf"] = LOST
    assert isinstance(journald.observe(texts(files)), Missing)


def test_the_journal_is_restarted_with_its_file() -> None:
    changes = journald.plan(journald.JournaldWant(), journald.Observed(None))
    assert [type(c) for c in changes] == [File, Unit, Unit]
    assert journald.plan(journald.JournaldWant(), journald.Observed(journald.content(journald.JournaldWant()))) == ()


# -- the kernel command line

GRUB_CFG = "menuentry 'a' {\n\tlinux\t/boot/vmlinuz-6.1 root=/dev/md0 ro quiet iommu=pt\n}\n"


@pytest.mark.parametrize(
    ("line", "word", "good"),
    [
        ("ro iommu=pt", "iommu=pt", True),
        ("iommu=pt iommu=off", "iommu=pt", False),
        ("iommu=off iommu=pt", "iommu=pt", True),
        ("pci=nomsi pci=realloc=on,noaer", "pci=realloc=on", True),
        ("pci=nomsi", "pci=realloc=on", False),
        ("pci=realloc=on pci=realloc=off", "pci=realloc=on", False),
        ("pci=realloc=off,noaer pci=realloc=on", "pci=realloc=on", True),
        ("console=tty0 console=ttyS0", "console=tty0", True),
        ("quiet", "quiet", True),
        ("", "quiet", False),
    ],
)
def test_the_last_word_wins_but_pci_options_add_up(line: str, word: str, good: bool) -> None:
    assert kernel_cmdline.in_force(tuple(line.split()), word) is good


def boot(**files: str | None) -> kernel_cmdline.Observed:
    paths: dict[str, str | Missing | None] = {kernel_cmdline.CMDLINE: "ro quiet\n", kernel_cmdline.FILE: None,
             kernel_cmdline.GRUB: "x", kernel_cmdline.GRUB_CFG: GRUB_CFG.replace(" iommu=pt", "")}  # fmt: skip
    paths |= dict.fromkeys((kernel_cmdline.GRUB2_CFG, kernel_cmdline.GRUBENV, kernel_cmdline.KMOD_COMMON))
    observed = kernel_cmdline.observe(texts({**paths, **files}))
    assert isinstance(observed, kernel_cmdline.Observed)
    return observed


WORDS = kernel_cmdline.KernelCmdlineWant(words=("iommu=pt",))


def test_grub_gets_a_drop_in_its_menu_made_anew_and_a_reboot() -> None:
    changes = kernel_cmdline.plan(WORDS, boot())
    assert [(type(c), c.layer.value) for c in changes] == [
        (File, "persisted"),
        (BootLoader, "persisted"),
        (Reboot, "pending_reboot"),
    ]
    half = boot(**{kernel_cmdline.FILE: kernel_cmdline.content(WORDS.words)})
    assert [type(c) for c in kernel_cmdline.plan(WORDS, half)] == [BootLoader, Reboot]  # killed before update-grub
    made = boot(**{kernel_cmdline.FILE: kernel_cmdline.content(WORDS.words), kernel_cmdline.GRUB_CFG: GRUB_CFG})
    assert [type(c) for c in kernel_cmdline.plan(WORDS, made)] == [Reboot]
    up = boot(**{kernel_cmdline.FILE: kernel_cmdline.content(WORDS.words), kernel_cmdline.GRUB_CFG: GRUB_CFG,
                 kernel_cmdline.CMDLINE: "ro quiet iommu=pt\n"})  # fmt: skip
    assert kernel_cmdline.plan(WORDS, up) == ()


def test_a_drop_in_that_grub_reads_later_is_named() -> None:
    with pytest.raises(ConfigError, match=r"zz-site.cfg: GRUB_CMDLINE_LINUX_DEFAULT: is read after"):
        kernel_cmdline.plan(WORDS, boot(**{"/etc/default/grub.d/zz-site.cfg": 'GRUB_CMDLINE_LINUX_DEFAULT=""\n'}))
    assert kernel_cmdline.plan(WORDS, boot(**{"/etc/default/grub.d/50-cloudimg-settings.cfg": "GRUB_CMDLINE_LINUX=x\n"}))


def test_boot_entries_are_grubby_s() -> None:
    entry = "title Rocky\nversion 5.14\nlinux /vmlinuz-5.14\noptions root=/dev/sda1 ro {}\n"
    entries = {f"/boot/loader/entries/{n}.conf": entry.format(w) for n, w in (("a", "iommu=pt"), ("b", ""))}
    changes = kernel_cmdline.plan(WORDS, boot(**entries))
    assert [type(c) for c in changes] == [BootLoader, Reboot]
    assert changes[0].tool == "grubby" and changes[0].words == ("iommu=pt",)  # type: ignore[union-attr]


def test_an_unknown_boot_loader_is_said() -> None:
    with pytest.raises(ConfigError, match="this boot loader is not known here"):
        kernel_cmdline.plan(WORDS, boot(**{kernel_cmdline.GRUB: None, kernel_cmdline.GRUB_CFG: None}))


# -- the NVIDIA module

MODINFO = "NVreg_EnablePCIERelaxedOrderingMode:x (uint)\nNVreg_EnableStreamMemOPs:y (uint)\nNVreg_RegistryDwords:z (charp)\n"


def module(**files: str | None) -> nvidia_module.Observed:
    paths: dict[str, str | Missing | None] = {nvidia_module.MODINFO: MODINFO, nvidia_module.FILE: None,
             nvidia_module.PARAMS: 'EnablePCIERelaxedOrderingMode: 0\nRegistryDwords: ""\n'}  # fmt: skip
    observed = nvidia_module.observe(texts({**paths, **files}))
    assert isinstance(observed, nvidia_module.Observed)
    return observed


def test_an_nvreg_name_that_the_module_does_not_have_is_an_error_with_the_right_one() -> None:
    want = nvidia_module.NvidiaModuleWant(parameters={"NVreg_SetPCIERelaxedOrdering": 1})
    with pytest.raises(ConfigError, match="NVreg_SetPCIERelaxedOrdering: the NVIDIA module has no such parameter"):
        nvidia_module.plan(want, module())
    near = nvidia_module.NvidiaModuleWant(parameters={"NVreg_EnablePCIRelaxedOrdering": 1})
    with pytest.raises(ConfigError) as caught:
        nvidia_module.plan(near, module())
    assert "NVreg_EnablePCIERelaxedOrderingMode" in caught.value.hint


def test_a_parameter_is_persisted_now_and_effective_after_the_driver_was_loaded_anew() -> None:
    want = nvidia_module.NvidiaModuleWant(parameters={"NVreg_EnablePCIERelaxedOrderingMode": 1})
    changes = nvidia_module.plan(want, module())
    assert [type(c) for c in changes] == [File, Reboot]
    text = changes[0].content  # type: ignore[union-attr]
    loaded = module(**{nvidia_module.FILE: text, nvidia_module.PARAMS: "EnablePCIERelaxedOrderingMode: 1\n"})
    assert nvidia_module.plan(want, loaded) == ()
    not_loaded = module(**{nvidia_module.FILE: text, nvidia_module.PARAMS: None})
    assert nvidia_module.plan(want, not_loaded) == ()


def test_minus_one_is_what_params_prints_unsigned() -> None:
    want = nvidia_module.NvidiaModuleWant(parameters={"NVreg_EnableStreamMemOPs": -1})
    observed = module(**{nvidia_module.PARAMS: "EnableStreamMemOPs: 4294967295\n"})
    assert [type(c) for c in nvidia_module.plan(want, observed)] == [File]


def test_another_modprobe_file_that_is_read_later_is_named() -> None:
    want = nvidia_module.NvidiaModuleWant(parameters={"NVreg_EnableStreamMemOPs": 1})
    later = {"/etc/modprobe.d/zzz.conf": "options nvidia NVreg_EnableStreamMemOPs=0\n"}
    with pytest.raises(ConfigError, match=r"zzz.conf: NVreg_EnableStreamMemOPs: sets 0 and is read after"):
        nvidia_module.plan(want, module(**later))
    earlier = {"/etc/modprobe.d/nvidia.conf": "options nvidia NVreg_EnableStreamMemOPs=0\n"}
    assert nvidia_module.plan(want, module(**earlier))


def test_a_module_that_comes_back_after_a_reboot_comes_from_the_initramfs() -> None:
    want = kernel_modules.KernelModulesWant()
    for text, said in ((None, False), ("blacklist nouveau\n", True)):
        observed = kernel_modules.Observed(frozenset({"nouveau"}), None, text)
        (why,) = [c.why for c in kernel_modules.plan(want, observed) if isinstance(c, Reboot)]
        assert ("dracut --force" in why and "update-initramfs -u" in why) is said
