"""The driver's software of a machine tree, beside the kernel module: its library's file, peer memory, the fabric manager."""

from __future__ import annotations

from pathlib import Path

from tests.lab.gpufacts import DRIVER_VERSION
from tests.lab.models import FABRIC_MANAGER, IMEX, Model
from tests.lab.pcitree import put

LIBRARY = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so"


def write_software(tree: Path, m: Model) -> None:
    """Files below usr/, proc/ and sys/."""
    library = tree / f"{LIBRARY}.{DRIVER_VERSION}"
    library.parent.mkdir(parents=True)
    library.touch()
    (tree / f"{LIBRARY}.1").symlink_to(library.name)
    if m.infiniband_rate:
        put(tree / "sys/module/nvidia_peermem/version", DRIVER_VERSION)
    for number, daemon in enumerate(m.daemons):
        write_daemon(tree, daemon, 2211 + number)
    if IMEX in m.daemons:
        put(tree / "etc/nvidia-imex/nodes_config.cfg", "10.0.0.1\n10.0.0.2")


def write_daemon(tree: Path, name: str, pid: int, state: str = "S") -> None:
    """A process called ``name`` that does nothing, as proc_pid_stat(5) begins."""
    put(tree / f"proc/@{name}/stat", f"{pid} ({name}) {state} 1 {pid} {pid} 0 -1 4194560 0 0 0 0 12 7 0 0 20 0 18 0 2190")


def write_process(tree: Path, pid: int, group: str) -> None:
    """A process in a control group of the v2 hierarchy."""
    put(tree / f"proc/{pid}/cgroup", f"0::{group}")


def has_fabric_manager(tree: Path) -> bool:
    """Whether one runs on this machine."""
    return (tree / f"proc/@{FABRIC_MANAGER}").is_dir()


def write_fabric_manager_unit(units: Path) -> None:
    """A unit for hosts with systemd whose process has the fabric manager's name, and does nothing."""
    (units / "nvidia-fabricmanager.service").write_text(
        "[Unit]\nDescription=A process with the name of the fabric manager\nBefore=fairlead-agent.service\n"
        "[Service]\n"
        "ExecStart=/bin/sh -c 'echo nv-fabricmanager >/proc/$$$$/comm; while sleep 3600; do :; done'\n"
        "ExecStartPost=/bin/sh -c 'until grep -q nv-fabric /proc/$MAINPID/comm; do sleep 0.01; done'\n"
    )
    wanted = units / "multi-user.target.wants"
    wanted.mkdir(exist_ok=True)
    (wanted / "nvidia-fabricmanager.service").symlink_to("/etc/systemd/system/nvidia-fabricmanager.service")
