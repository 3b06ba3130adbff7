"""Cases of ``test_on_a_node``: what is set on GPUs and PCIe devices, interrupts, services, the clock's program."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from tests.lab.host import Host
from tests.playbooks.admin import Admin, wait

PYTHON = "/opt/fairlead/current/bin/python"
ASK = "import pynvml as n; n.nvmlInit(); print({str(n.nvmlDevice%s(n.nvmlDeviceGetHandleByIndex(i)%s)) for i in range(8)})"
NVML = f"{PYTHON} -c '{ASK}'"
NIC = "18:00.0"
LISTS = "for n in /proc/irq/*/smp_affinity_list; do cat $n; done | sort -u"
SERVICES = "for u in idler noisy wanted; do systemctl is-active $u; systemctl is-enabled $u; done 2>/dev/null"
CLOCK = "systemctl is-active chrony ntpsec; systemctl is-enabled ntpsec; tail -n1 /etc/chrony/conf.d/90-fairlead.conf"


class Case(Struct, frozen=True):
    """``declares``: TOML. ``shows``: a command that is not ours, and what it prints once the setting is effective.
    ``tamper``: what somebody does by hand. ``reboot``: effective only after one. ``lost``: what is printed after a reset of the
    device, which is like ``tamper``."""

    declares: str
    shows: str
    prints: str
    tamper: str
    reboot: bool = False
    lost: str = ""


GPU_CASES = {
    "clocks": Case(
        "sm_megahertz = [900, 1200]",
        NVML % ("GetClockInfo", ", 1"),
        "{'900'}\n",
        NVML % ("SetGpuLockedClocks", ", 1500, 1500"),
    ),
    "compute_mode": Case(
        'compute = "exclusive_process"', NVML % ("GetComputeMode", ""), "{'3'}\n", NVML % ("SetComputeMode", ", 0")
    ),
    "ecc_mode": Case("enabled = false", NVML % ("GetEccMode", ""), "{'[0, 0]'}\n", NVML % ("SetEccMode", ", 1"), reboot=True),
    "power_limit": Case(
        "watts = 500", NVML % ("GetPowerManagementLimit", ""), "{'500000'}\n", NVML % ("SetPowerManagementLimit", ", 650000")
    ),
}
OTHER_CASES = {
    "irq_affinity": Case('cpus = "0"', LISTS, "0\n", "echo 0-1 > /proc/irq/70/smp_affinity_list"),
    "pcie_aspm": Case("", "cat /sys/module/pcie_aspm/parameters/policy", "performance\n",
                      "echo powersave > /sys/module/pcie_aspm/parameters/policy"),
    "pcie_max_read_request": Case("nic_bytes = 4096", f"lspci -vvv -s {NIC} | grep -o MaxReadReq.*", "MaxReadReq 4096 bytes\n",
                                  f"setpci -s {NIC} CAP_EXP+8.w=2000:7000", lost="MaxReadReq 512 bytes\n"),
    "pcie_relaxed_ordering": Case("nic = false", f"lspci -vvv -s {NIC} | grep -o -m1 RlxdOrd[+-]", "RlxdOrd-\n",
                                  f"setpci -s {NIC} CAP_EXP+8.w=0010:0010", lost="RlxdOrd+\n"),
    "services": Case('off = ["idler.service"]\nmasked = ["noisy.service"]\non = ["wanted.service"]', SERVICES,
                     "inactive\ndisabled\ninactive\nmasked\nactive\nenabled\n", "systemctl -q enable --now idler"),
    "time_sync": Case('servers = ["192.0.2.1"]', CLOCK, "active\ninactive\ndisabled\nserver 192.0.2.1 iburst\n",
                      "systemctl -q enable --now ntpsec; rm /etc/chrony/conf.d/90-fairlead.conf"),
}  # fmt: skip
#: Daemons by these names, which do nothing, and the file by which Debian's chrony reads drop-ins.
UNITS = """
for name in idler noisy wanted chrony ntpsec; do
    text='[Service]\\nExecStart=/bin/sleep infinity\\n[Install]\\nWantedBy=multi-user.target\\n'
    printf "$text" > /usr/lib/systemd/system/$name.service
done
mkdir -p /etc/chrony
echo 'confdir /etc/chrony/conf.d' > /etc/chrony/chrony.conf
systemctl daemon-reload
systemctl -q enable --now idler noisy chrony ntpsec
"""
#: A daemon by the name of irqbalance, which moves an interrupt once more while it is being stopped.
BALANCER = """[Service]
ExecStart=/bin/sh -c 'printf irqbalance > /proc/$$$$/comm; while sleep 3600; do :; done'
ExecStartPost=/bin/sh -c 'until grep -q irqbalance /proc/$MAINPID/comm; do sleep 0.01; done'
ExecStop=/bin/sh -c 'echo 1 > /proc/irq/70/smp_affinity_list'
[Install]
WantedBy=multi-user.target
"""
INSTANCES = f"""{PYTHON} -c '
import pynvml as n
n.nvmlInit()
for i in range(8):
    h, found = n.nvmlDeviceGetHandleByIndex(i), []
    for j in range(n.nvmlDeviceGetMaxMigDeviceCount(h)):
        try:
            found.append(n.nvmlDeviceGetGpuInstanceId(n.nvmlDeviceGetMigDeviceHandleByIndex(h, j)))
        except n.NVMLError_NotFound:
            pass
    print(n.nvmlDeviceGetMigMode(h), len(found))
'"""
DIVIDED, WHOLE = "[1, 1] 3\n" * 8, "[0, 0] 0\n" * 8
GEOMETRY = 'geometry = ["3g.40gb", "2g.20gb", "1g.10gb"]'


GOVERNOR = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"


class Reset(Struct, frozen=True):
    """What other programs print after a reset of PCIe devices: ``while_suppressed``, as a person's hold suppresses what the agent
    would do; and ``shown``, after that. Also the agent's ``journal``, and the governor, which somebody set at the same time."""

    while_suppressed: dict[str, str]
    shown: dict[str, str]
    journal: str
    other: str


def reset(host: Host, cases: dict[str, Case], drift: Callable[[Host, set[str]], set[str]]) -> Reset:
    """Bring the power-on values back, as a reset does, on a node that a person holds, until the agent has seen it; then let go
    of it."""
    lost = {name: case for name, case in cases.items() if case.lost}

    def shown() -> dict[str, str]:
        return {name: host.run(case.shows).stdout for name, case in lost.items()}

    host.run(f"echo powersave > {GOVERNOR}")
    for case in lost.values():
        host.run(case.tamper)
    drift(host, set(lost))
    while_suppressed = shown()
    host.run("/usr/local/bin/fairlead hold --release && systemctl kill -s USR1 fairlead-agent")
    with contextlib.suppress(AssertionError):  # what did not come back is said by name
        wait(lambda: shown() == {name: case.prints for name, case in lost.items()}, 90)
    journal = host.run("journalctl -b -o cat -u fairlead-agent -u fairlead-reapply").stdout
    return Reset(while_suppressed, shown(), journal, host.run(f"cat {GOVERNOR}").stdout)


class Moved(Struct, frozen=True):
    """What one apply did where irqbalance moved an interrupt after the first look: its item, its exit code, and where the
    interrupts may go then."""

    item: dict[str, Any]
    code: int
    shown: str


def moved_meanwhile(host: Host) -> Moved:
    host.run("cat > /etc/systemd/system/irqbalance.service", stdin=BALANCER)
    host.run("systemctl daemon-reload; systemctl -q enable --now irqbalance")
    done = host.run("/usr/local/bin/fairlead apply --json --only irq_affinity", check=False)
    shown = host.run(LISTS).stdout
    return Moved(json.loads(done.stdout)["items"][0], done.returncode, shown)


class Mig(Struct, frozen=True):
    """What became of MIG on a node: apply's item while jobs may come, on the drained node, after a reboot; what nvidia-ml-py
    sees at each stage; apply's item of a sysctl that no kernel knows, and the provision report's words."""

    before: dict[str, Any]
    shown_before: str
    drained: dict[str, Any]
    shown: str
    booted: dict[str, Any]
    shown_booted: str
    refused: dict[str, Any]
    congestion: str


def divide(host: Host, admin: Admin) -> Mig:
    """Declare MIG on a node that runs, drain it (no job is there), apply, reboot; then declare a sysctl with a slip in it."""

    def item(name: str, **how: int) -> dict[str, Any]:
        items: list[dict[str, Any]] = admin.provision(**how)["gpu1"]["apply"]["items"]
        return next(i for i in items if i["setting"] == name)

    admin.write_site(more=f"[classes.h100.settings.mig]\n{GEOMETRY}\n")
    before, shown_before = item("mig", code=75), host.run(INSTANCES).stdout
    apply = "/opt/fairlead/current/bin/fairlead apply --drained --only mig --json"
    drained = json.loads(host.run(apply).stdout)["items"][0]
    shown = host.run(INSTANCES).stdout
    host.reboot()
    host.run("systemctl is-system-running --wait", check=False)
    shown_booted = host.run(INSTANCES).stdout
    booted = json.loads(host.run(apply.replace("--drained ", "")).stdout)["items"][0]
    admin.write_site(more='[classes.h100.settings.sysctl]\nvalues = {"net.ipv4.tcp_congestion_control" = "brr"}\n')
    report = json.loads(admin.run("provision", "--site", str(admin.site), "--json", code=69).stdout)
    refused = next(i for i in report["nodes"][0]["apply"]["items"] if i["setting"] == "sysctl")
    looks = "cat /proc/sys/net/ipv4/tcp_congestion_control; grep -c tcp_cong /etc/sysctl.d/90-fairlead-sysctl.conf"
    congestion = host.run(looks, check=False)
    return Mig(before, shown_before, drained, shown, booted, shown_booted, refused, congestion.stdout)
