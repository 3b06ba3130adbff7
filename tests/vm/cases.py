"""What is declared for the guest, setting by setting, and the programs of others that read each value back from its kernel."""

from __future__ import annotations

from msgspec import Struct

HUGE = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
THP = "/sys/kernel/mm/transparent_hugepage/enabled"
#: The root ports above the switches (x3130, Texas Instruments 104c:8232): the only bridges of QEMU with ACS between two GPUs.
PORTS = "for u in $(lspci -Dn -d 104c:8232 | cut -d' ' -f1); do basename $(dirname $(realpath /sys/bus/pci/devices/$u)); done"
ACS = f"for p in $({PORTS}); do setpci -s $p ECAP_ACS+6.w; done"
#: ReqRedir, CmpltRedir and EgressCtrl.
REDIRECTS = f"{ACS} | while read -r word; do echo $((0x$word & 0x2c)); done | sort -u"
#: Each interrupt of each network adapter: where it may go and where it goes now.
INTERRUPTS = """for d in $(lspci -Dn -d ::0200 | cut -d' ' -f1); do for n in $(ls /sys/bus/pci/devices/$d/msi_irqs); do
cat /proc/irq/$n/smp_affinity_list /proc/irq/$n/effective_affinity_list; done; done | tr , '\\n' | grep . | sort -u"""
#: An interrupt of the adapter that is in use. Interrupts that no driver has requested have no file below /proc/irq.
ONE_INTERRUPT = """for n in $(ls /sys/bus/pci/devices/$(lspci -Dn -d 1af4:1000 | cut -d' ' -f1)/msi_irqs); do
[ ! -e /proc/irq/$n/smp_affinity_list ] || echo $n; done | tail -n1"""


class Case(Struct, frozen=True):
    """One setting. ``declares`` is TOML, and ``shows`` is a command of others that prints ``prints`` once it is effective.
    ``tamper`` is what a person does by hand. ``reboot`` means that it is effective only after a reboot."""

    declares: str
    shows: str
    prints: str
    tamper: str
    reboot: bool = False


CASES = {
    "hugepages": Case("pages_2_mib = 32", f"cat {HUGE}", "32\n", f"echo 0 > {HUGE}"),
    "irq_affinity": Case('cpus = "0,2"', INTERRUPTS, "0\n2\n", f"echo 3 > /proc/irq/$({ONE_INTERRUPT})/smp_affinity_list"),
    "journald": Case(
        'storage = "persistent"\nmax_use_mib = 100\nkeep_free_mib = 128',
        "journalctl -q -b -u systemd-journald -o cat | grep /var/log/journal | grep -o 'max [0-9.]*[KMGT]' | tail -n1",
        "max 100M\n",
        "rm /etc/systemd/journald.conf.d/90-fairlead.conf && systemctl restart systemd-journald",
    ),
    "kernel_cmdline": Case(
        'words = ["iommu=pt", "intel_iommu=on"]',
        "tr ' ' '\\n' < /proc/cmdline | grep -c -x -e iommu=pt -e intel_iommu=on",
        "2\n",
        "sed -i 's/ iommu=pt//' /etc/default/grub.d/99-fairlead.cfg /boot/grub/grub.cfg",
        reboot=True,
    ),
    # bochs is to QEMU's displays what nouveau is to NVIDIA's GPUs: udev loads it because of the device.
    "kernel_modules": Case(
        'load = ["msr"]\nblacklist = ["nouveau", "bochs"]',
        "lsmod | grep -o -w -e ^msr -e ^bochs",
        "msr\n",
        "rmmod msr; rm /etc/modules-load.d/90-fairlead.conf",
        reboot=True,
    ),
    "memlock": Case(
        "",
        "awk '/Max locked/ {print $4}' /proc/$(pidof slurmd)/limits",
        "unlimited\n",
        # What is done for nofile makes systemd read this file too, and starts slurmd again.
        "sed -i s/LimitMEMLOCK=.*/LimitMEMLOCK=65536/ /etc/systemd/system/slurmd.service.d/50-fairlead-memlock.conf",
    ),
    "nofile": Case(
        "limit = 131072",
        "awk '/Max open/ {print $5}' /proc/$(pidof slurmd)/limits",
        "131072\n",
        "sed -i s/LimitNOFILE=.*/LimitNOFILE=1024:2048/ /etc/systemd/system/slurmd.service.d/50-fairlead-nofile.conf"
        " && systemctl daemon-reload && systemctl restart slurmd",
    ),
    "numa_balancing": Case("value = 0", "sysctl -n kernel.numa_balancing", "0\n", "sysctl -qw kernel.numa_balancing=1"),
    "pcie_acs": Case("", REDIRECTS, "0\n", f"for p in $({PORTS}); do setpci -s $p ECAP_ACS+6.w=001d; done"),
    "pcie_aspm": Case(
        "",
        "grep -o '\\[.*\\]' /sys/module/pcie_aspm/parameters/policy",
        "[performance]\n",
        "echo powersave > /sys/module/pcie_aspm/parameters/policy",
    ),
    "services": Case(
        'off = ["apt-daily.timer", "e2scrub_all.timer"]',
        "systemctl is-active apt-daily.timer e2scrub_all.timer; systemctl is-enabled apt-daily.timer e2scrub_all.timer",
        "inactive\ninactive\ndisabled\ndisabled\n",
        "systemctl -q enable --now e2scrub_all.timer",
    ),
    "sysctl": Case(
        'values = {"vm.zone_reclaim_mode" = 0, "vm.swappiness" = 1, "net.core.somaxconn" = 8192}',
        "sysctl -n vm.zone_reclaim_mode vm.swappiness net.core.somaxconn",
        "0\n1\n8192\n",
        "sysctl -qw vm.swappiness=60 net.core.somaxconn=128",
    ),
    "time_sync": Case(
        'service = "systemd-timesyncd"\nservers = ["127.0.0.1"]',
        "systemctl is-active systemd-timesyncd; timedatectl show-timesync -p SystemNTPServers",
        "active\nSystemNTPServers=127.0.0.1\n",
        "systemctl -q disable --now systemd-timesyncd",
    ),
    "transparent_hugepage": Case('enabled = "madvise"', f"grep -o '\\[.*\\]' {THP}", "[madvise]\n", f"echo never > {THP}"),
    # Without this line tuned would write the values of /etc/sysctl.d again, and so undo what was tampered with before.
    "tuned": Case(
        "",
        "systemctl is-active tuned; systemctl is-enabled tuned",
        "inactive\ndisabled\n",
        "echo 'reapply_sysctl = 0' >> /etc/tuned/tuned-main.conf; systemctl -q enable --now tuned",
    ),
}
#: A guest has no cpufreq, and NCCL needs no network here. QEMU's devices keep their read requests (see qemu.py).
OTHERS = """
cpu_governor = { managed = false }
pcie_max_read_request = { managed = false }

nccl = { network = false }
"""


def declared() -> str:
    """Return the TOML of all cases, below ``[classes.vm.settings]``."""
    tables = [f"[classes.vm.settings.{name}]\n{case.declares}" for name, case in CASES.items()]
    return "\n".join([OTHERS, *tables])
