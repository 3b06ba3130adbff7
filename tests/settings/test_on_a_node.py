"""Every setting on a live node: applied once, read back by other programs, kept, brought back after a reboot, drift told.

One node of the lab is provisioned with all of them; what it says at each stage is noted once and judged setting by setting.
What the lab has no real thing for (a boot loader, kernel modules) is said in docs/explanation/what-was-proved-where.md.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from fairlead import settings as setting_list
from tests.lab.host import Host
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.playbooks.test_convergence import Admin, wait
from tests.settings.node_cases import (
    DIVIDED,
    GPU_CASES,
    OTHER_CASES,
    UNITS,
    WHOLE,
    Case,
    Mig,
    Moved,
    Reset,
    divide,
    moved_meanwhile,
    reset,
)

pytestmark = [pytest.mark.rack, pytest.mark.timeout(300)]
PROJECT = Path(__file__).resolve().parents[2]
FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
FILES = 65536 if FILES == resource.RLIM_INFINITY else min(FILES, 65536) - 8
RESTART = "systemctl daemon-reload && systemctl restart slurmd"
CPU = "/sys/devices/system/cpu/cpu0"
HUGE = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
THP = "/sys/kernel/mm/transparent_hugepage"
PYTHON = "/opt/fairlead/current/bin/python"
ASK = "import pynvml as n; n.nvmlInit(); print({n.nvmlDevice%s(n.nvmlDeviceGetHandleByIndex(i)%s) for i in range(8)})"
NVML = f"{PYTHON} -c '{ASK}'"


def drop_in(name: str) -> str:
    return f"/etc/systemd/system/slurmd.service.d/50-fairlead-{name}.conf"


CASES = {
    "cpu_governor": Case(
        'governor = "performance"',
        f"cat {CPU}/cpufreq/scaling_governor",
        "performance\n",
        f"echo powersave > {CPU}/cpufreq/scaling_governor",
    ),
    "cpu_idle": Case(
        "max_exit_latency_microseconds = 50",
        f"cat {CPU}/cpuidle/state1/disable {CPU}/cpuidle/state3/disable",
        "0\n1\n",
        f"echo 0 > {CPU}/cpuidle/state3/disable",
    ),
    "energy_performance": Case(
        'preference = "performance"',
        f"cat {CPU}/cpufreq/energy_performance_preference",
        "performance\n",
        f"echo power > {CPU}/cpufreq/energy_performance_preference",
    ),
    "enroot": Case(
        "",
        "grep -c ^/etc/nccl.conf /etc/enroot/mounts.d/50-fairlead.fstab",
        "1\n",
        "sed -i /nccl.conf/d /etc/enroot/mounts.d/50-fairlead.fstab",
    ),
    "hugepages": Case("pages_2_mib = 64", f"cat {HUGE}", "64\n", f"echo 0 > {HUGE}"),
    "journald": Case(
        "max_use_mib = 100",
        "journalctl -q -b -u systemd-journald -o cat | grep -o '/var/log/journal.*max 100.*M,' | wc -l | sed 's/[1-9].*/some/'",
        "some\n",
        "rm /etc/systemd/journald.conf.d/90-fairlead.conf",
    ),
    "kernel_cmdline": Case(
        'words = ["pci=realloc=on", "pcie_aspm=off"]',
        "tr ' ' '\\n' < /proc/cmdline | grep -c -e ^pci=realloc=on$ -e ^pcie_aspm=off$",
        "2\n",
        "echo GRUB_TIMEOUT=1 >> /etc/default/grub.d/99-fairlead.cfg",
        reboot=True,
    ),
    "kernel_modules": Case(
        "",
        "/sbin/modprobe --showconfig | grep '^blacklist nouveau'",
        "blacklist nouveau\n",
        "rm /etc/modprobe.d/90-fairlead-blacklist.conf",
    ),
    "memlock": Case(
        "",
        "awk '/Max locked/ {print $4}' /proc/$(pidof slurmd)/limits",
        "",  # what the machine that runs the tests can give
        f"sed -i s/LimitMEMLOCK=.*/LimitMEMLOCK=65536/ {drop_in('memlock')} && {RESTART}",
    ),
    "nccl": Case("", "grep -c ^NCCL_SOCKET_IFNAME= /etc/nccl.conf", "1\n", "echo NCCL_IB_TIMEOUT=1 >> /etc/nccl.conf"),
    "nofile": Case(
        f"limit = {FILES}",
        "awk '/Max open/ {print $5}' /proc/$(pidof slurmd)/limits",
        f"{FILES}\n",
        f"sed -i s/LimitNOFILE=.*/LimitNOFILE=1024:2048/ {drop_in('nofile')} && {RESTART}",
    ),
    "numa_balancing": Case("value = 0", "sysctl -n kernel.numa_balancing", "0\n", "sysctl -qw kernel.numa_balancing=1"),
    "nvidia_module": Case(
        "parameters = {NVreg_EnablePCIERelaxedOrderingMode = 1}",
        "grep ^EnablePCIERelaxedOrderingMode /proc/driver/nvidia/params",
        "EnablePCIERelaxedOrderingMode: 1\n",
        "echo 'options nvidia NVreg_EnableMSI=0' >> /etc/modprobe.d/zz-fairlead-nvidia.conf",
        reboot=True,
    ),
    "pcie_acs": Case("", "setpci -s 15:01.0 ECAP_ACS+6.w", "0011\n", "setpci -s 15:01.0 ECAP_ACS+6.w=001d", lost="001d\n"),
    "persistence": Case("", NVML % ("GetPersistenceMode", ""), "{1}\n", NVML % ("SetPersistenceMode", ", 0")),
    "sysctl": Case(
        'values = {"vm.swappiness" = 10, "net.ipv4.tcp_rmem" = "4096 87380 67108864"}',
        "sysctl -n vm.swappiness net.ipv4.tcp_rmem vm.zone_reclaim_mode",  # the last is the profile's
        "10\n4096 87380 67108864\n0\n",
        "sysctl -qw vm.swappiness=60 vm.zone_reclaim_mode=1; echo vm.swappiness=60 > /etc/sysctl.d/90-fairlead-sysctl.conf",
    ),
    "transparent_hugepage": Case("", f"cat {THP}/enabled {THP}/defrag", "always\nmadvise\n", f"echo never > {THP}/enabled"),
    "tuned": Case(
        "", "systemctl is-active tuned; systemctl is-enabled tuned", "inactive\ndisabled\n", "systemctl -q enable --now tuned"
    ),
}
CASES |= GPU_CASES | OTHER_CASES
#: A daemon by the name of tuned. As tuned does, it writes the values of before back when it is stopped.
TUNED = """[Service]
ExecStart=/bin/sh -c 'printf tuned > /proc/$$$$/comm; while sleep 3600; do :; done'
ExecStartPost=/bin/sh -c 'until grep -q tuned /proc/$MAINPID/comm; do sleep 0.01; done'
ExecStop=/bin/sh -c 'echo 60 > /proc/sys/vm/swappiness'
[Install]
WantedBy=multi-user.target
"""


class NodeRun(Struct):
    """What one node said, stage by stage: apply's items by setting, what other programs print, what the agent finds."""

    first: dict[str, Any]
    second: dict[str, Any]
    shown: dict[str, str]
    found_clean: set[str]
    found_tampered: set[str]
    repaired: dict[str, Any]
    shown_repaired: dict[str, str]
    booted: dict[str, Any]
    shown_booted: dict[str, str]
    found_booted: set[str]
    reset: Reset
    moved: Moved
    mig: Mig


def items(result: dict[str, Any]) -> dict[str, Any]:
    assert result["apply"], result
    return {item["setting"]: item for item in result["apply"]["items"]}


def applied(host: Host) -> dict[str, Any]:
    """The items of an apply on the node itself, as `fairlead provision` has it run there."""
    said = host.run("/usr/local/bin/fairlead apply --json", check=False).stdout
    return {item["setting"]: item for item in json.loads(said)["items"]}


def shows(host: Host) -> dict[str, str]:
    """What each case's program prints, all in one shell: a subshell each, its output after a line with its number."""
    script = "".join(
        f"echo '@@@ {number}'\n({case.shows}\n) 2>/dev/null </dev/null\n" for number, case in enumerate(CASES.values())
    )
    printed = re.split(r"^@@@ \d+\n", host.run("sh -s", check=False, stdin=script).stdout, flags=re.MULTILINE)[1:]
    return dict(zip(CASES, printed, strict=True))


def drift(host: Host, awaited: set[str] = frozenset()) -> set[str]:  # type: ignore[assignment]
    """The settings that the running agent names; it is asked to look now, and has time until it names the ``awaited`` ones."""
    found: set[str] = set()

    def named() -> bool:
        nonlocal found
        try:
            said = json.loads(host.path("/run/fairlead/status.json").read_text())
        except FileNotFoundError:
            return False
        found = {f["check"].removeprefix("setting.") for f in said["findings"] if f["check"].startswith("setting.")}
        return str(said["pid"]) == pid and found >= awaited

    pid = host.run("systemctl show -p MainPID --value fairlead-agent").stdout.strip()
    host.run("systemctl kill -s USR1 fairlead-agent")
    with contextlib.suppress(AssertionError):  # what is not named is said by name
        wait(named, 60)
    return found


@pytest.fixture(scope="module")
def node_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeRun]:
    with Rack(nodes_wanted=1, name=own_name("settings")) as rack:
        (host,) = rack.nodes
        host.run("mv /etc/systemd/journald.conf.d/lab.conf /etc/systemd/journald.conf.d/00-lab.conf; : > /etc/default/grub")
        # As everywhere but in the lab: without it a journal stays in memory, whatever is declared.
        flush = "systemd-journal-flush.service"
        host.run(f"rm /etc/systemd/system/{flush}; systemctl daemon-reload; systemctl start {flush}")
        host.run("cat > /etc/systemd/system/tuned.service", stdin=TUNED)
        host.run("systemctl -q enable --now tuned")
        host.run("sh -es", stdin=UNITS)
        admin = Admin(rack, tmp_path_factory.mktemp("admin"))
        declared = "\n".join(
            f"[classes.h100.settings.{n}]\n{case.declares}" for n, case in CASES.items() if n not in ("memlock", "nccl")
        )
        agent = '[classes.h100.agent]\nkmsg_path = "/etc/fairlead-sim/kmsg"\ninterval_seconds = 0.5\n'
        admin.write_site(more=agent + declared)
        first = items(admin.provision(code=75)["gpu1"])
        shown = shows(host)
        second = applied(host)
        found_clean = drift(host)
        host.run("/usr/local/bin/fairlead hold --reason 'a person tries something'")  # else the agent would take back some of it
        host.run("sh -es", stdin="".join(f"(\n{case.tamper}\n) </dev/null\n" for case in CASES.values()))
        found_tampered = drift(host, set(CASES))
        repaired = applied(host)
        shown_repaired = shows(host)
        host.reboot()
        host.run("systemctl is-system-running --wait", check=False)
        shown_booted = shows(host)
        booted = applied(host)
        yield NodeRun(
            first=first,
            second=second,
            shown=shown,
            found_clean=found_clean,
            found_tampered=found_tampered,
            repaired=repaired,
            shown_repaired=shown_repaired,
            booted=booted,
            shown_booted=shown_booted,
            found_booted=drift(host),
            reset=reset(host, CASES, drift),
            moved=moved_meanwhile(host),
            mig=divide(host, admin),
        )


def test_every_setting_has_its_case() -> None:
    assert {*CASES, "mig", "driver"} == set(setting_list.load())  # driver: tests/driver, with real packages


def test_what_a_reset_took_away_is_applied_again_by_itself_once_nobody_holds_the_node(node_run: NodeRun) -> None:
    """ACS, read requests and relaxed ordering; nothing else that drifted at the same time is touched."""
    names = ("pcie_acs", "pcie_max_read_request", "pcie_relaxed_ordering")
    assert node_run.reset.while_suppressed == {name: CASES[name].lost for name in names}, "while it is held nothing is changed"
    assert node_run.reset.shown == {name: CASES[name].prints for name in names}, node_run.reset.journal
    assert "applying_settings_again_after_a_reset" in node_run.reset.journal
    assert node_run.reset.other == "powersave\n", "only what a reset takes away, and only that"


def test_interrupts_that_irqbalance_moved_until_it_was_stopped_are_where_they_are_wanted_after_one_run(node_run: NodeRun) -> None:
    assert node_run.moved.shown == CASES["irq_affinity"].prints
    assert (node_run.moved.item["state"], node_run.moved.item["effective"], node_run.moved.code) == ("changed", "yes", 0)
    assert any(step["target"] == "irqbalance.service" and step["done"] for step in node_run.moved.item["steps"])


def test_mig_waits_for_a_drained_node_and_is_there_again_after_a_reboot(node_run: NodeRun) -> None:
    mig = node_run.mig
    assert (mig.before["state"], mig.before["pending"], mig.shown_before) == ("deferred", "drain", WHOLE)
    assert "Gres=" in mig.before["message"]
    assert (mig.drained["state"], mig.drained["effective"], mig.drained["persisted"]) == ("changed", "yes", "boot")
    assert mig.shown == DIVIDED
    assert mig.shown_booted == DIVIDED, "made again before slurmd starts"
    assert mig.booted["state"] == "same"


def test_a_sysctl_with_a_slip_in_it_is_refused_with_file_and_key_and_nothing_is_written(node_run: NodeRun) -> None:
    mig = node_run.mig
    assert mig.refused["state"] == "refused"
    assert "settings.sysctl.values.net.ipv4.tcp_congestion_control: " in mig.refused["message"]
    assert "no congestion control 'brr'" in mig.refused["message"] and mig.refused["hint"].startswith("it has ")
    assert mig.congestion.split() == ["cubic", "0"]


@pytest.mark.parametrize("name", CASES)
def test_a_setting_is_made_effective_kept_told_repaired_and_there_after_a_reboot(name: str, node_run: NodeRun) -> None:
    case, volatile = CASES[name], setting_list.load()[name].volatile
    waits = {"state": "deferred", "effective": "no", "pending": "reboot"}
    done = {"effective": "yes", "pending": ""}

    def said(item: dict[str, Any]) -> dict[str, str]:
        return {key: item[key] for key in (waits if case.reboot else done)}

    assert node_run.first[name]["state"] == ("deferred" if case.reboot else "changed")
    assert said(node_run.first[name]) == (waits if case.reboot else done)
    assert node_run.first[name]["persisted"] == ("boot" if volatile else "yes")
    assert all(step["done"] for step in node_run.first[name]["steps"] if step["disruption"] != "reboot")
    assert not any(step["done"] for step in node_run.second[name]["steps"]), "a second run changes nothing"
    assert node_run.second[name]["state"] == ("deferred" if case.reboot else "same")
    assert (name in node_run.found_clean) is case.reboot
    assert name in node_run.found_tampered
    assert any(step["done"] for step in node_run.repaired[name]["steps"])
    assert (node_run.booted[name]["state"], node_run.booted[name]["effective"]) == ("same", "yes")
    assert name not in node_run.found_booted
    for stage in (node_run.shown, node_run.shown_repaired, node_run.shown_booted):
        if case.prints and not (case.reboot and stage is not node_run.shown_booted):
            assert stage[name] == case.prints
    if case.reboot:
        assert node_run.shown[name] != case.prints and node_run.shown_repaired[name] != case.prints
    assert node_run.shown[name] == node_run.shown_repaired[name]
