"""Writes a machine tree: the attributes of a machine that fairlead reads, as files and links below a folder.

``gather`` returns the same Node for the tree as for the machine, except for two kinds of values. Values that the kernel refused
to give have no file (the speed of an interface that is down). In a redacted tree, serials, UUIDs and addresses differ.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fairlead.errors import HostError
from fairlead.host import config_space, kernel, modinfo
from fairlead.host.activity_sums import PART as ACTIVITY
from fairlead.host.host_facts_reader import FILE as HOST_FILE
from fairlead.host.host_facts_reader import HostReader, read_recorded, recorded_of
from fairlead.host.ports import MLX5_COUNTERS
from fairlead.host.process import read_text
from fairlead.host.redact import Redactor
from fairlead.host.root import LEFT_OUT, Root
from fairlead.host.software import FOLDERS, LIBRARY
from fairlead.model.facts import Missing
from fairlead.model.host_facts import Wanted

_PCI = "/sys/bus/pci/devices/*"
_IB = "/sys/class/infiniband/*"
_EDAC = "/sys/devices/system/edac/mc"
_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"
_KFD = "/sys/class/kfd/kfd/topology/nodes"
_UNIQUE = re.compile(r"^unique_id \d+$", re.MULTILINE)  # an AMD GPU's serial
_COUNTERS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards", "port_rcv_data",
    "port_xmit_data", "local_link_integrity_errors", "excessive_buffer_overrun_errors",
)  # fmt: skip
IMEX_NODES = "/etc/nvidia-imex/nodes_config.cfg"
DAEMONS = ("nv-fabricmanage", "nvidia-imex")  # at most 15 characters, as in /proc/PID/comm
# kernels before 2.6.26 have these masks instead of the lists
MASKS = {
    f"{_CPU}/cpu[0-9]*/topology/thread_siblings": "thread_siblings_list",
    f"{_CPU}/cpu[0-9]*/cache/index[0-9]/shared_cpu_map": "shared_cpu_list",
    f"{_NODE}/node[0-9]*/cpumap": "cpulist",
}
FILES = (
    *(f"{_PCI}/{a}" for a in (
        "config", "vendor", "device", "class", "subsystem_vendor", "subsystem_device", "numa_node", "local_cpulist",
        "current_link_speed", "max_link_speed", "current_link_width", "max_link_width", "enable", "irq", "resource",
        "aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal",
    )),
    "/sys/bus/pci/slots/*/address",
    *MASKS,
    f"{_CPU}/online", f"{_CPU}/possible", f"{_CPU}/present",
    *(f"{_CPU}/cpu[0-9]*/topology/{a}" for a in ("core_id", "physical_package_id", "thread_siblings_list", "core_cpus_list")),
    f"{_CPU}/cpu[0-9]*/cpufreq/scaling_governor", f"{_CPU}/cpu[0-9]*/cpufreq/scaling_available_governors",
    f"{_CPU}/cpu[0-9]*/cache/index[0-9]/level", f"{_CPU}/cpu[0-9]*/cache/index[0-9]/shared_cpu_list",
    *(f"{_NODE}/{a}" for a in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory")),
    *(f"{_NODE}/node[0-9]*/{a}" for a in ("cpulist", "meminfo", "distance")),
    *(f"{_IB}/{a}" for a in ("fw_ver", "hca_type", "board_id", "node_guid", "node_desc")),
    *(f"{_IB}/ports/*/{a}" for a in ("state", "phys_state", "rate", "link_layer", "lid")),
    *(f"{_IB}/ports/*/counters/{a}" for a in _COUNTERS),
    *(f"{_IB}/ports/*/hw_counters/{a}" for a in (*MLX5_COUNTERS, "out_of_sequence")),
    *(f"/sys/class/net/*/{a}" for a in (
        "operstate", "address", "mtu", "speed", "type", "carrier_changes", "carrier_down_count", "carrier_up_count",
    )),
    *(f"{_EDAC}/mc[0-9]*/{a}" for a in ("mc_name", "ce_count", "ue_count", "ce_noinfo_count", "ue_noinfo_count")),
    *(f"{_EDAC}/mc[0-9]*/{d}[0-9]*/dimm_{a}" for d in ("dimm", "rank") for a in ("label", "ce_count", "ue_count")),
    *(f"/sys/class/nvme/nvme[0-9]*/{a}" for a in ("state", "model")),
    "/sys/fs/ext4/*/errors_count",
    f"{_CPU}/smt/control", f"{_CPU}/smt/active",
    "/sys/kernel/mm/hugepages/*/nr_hugepages", "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/mm/transparent_hugepage/defrag", f"{_CPU}/cpu[0-9]*/cpufreq/energy_performance_preference",
    f"{_CPU}/cpu[0-9]*/cpufreq/energy_performance_available_preferences",
    *(f"{_CPU}/cpu[0-9]*/cpuidle/state[0-9]*/{a}" for a in ("name", "latency", "disable")),
    "/proc/sys/vm/swappiness", "/proc/sys/net/core/[rw]mem_max", "/proc/sys/net/ipv4/tcp_[rw]mem",
    "/proc/sys/net/ipv4/tcp_congestion_control", "/proc/sys/net/ipv4/tcp_available_congestion_control",
    "/proc/sys/fs/nr_open", "/proc/driver/nvidia/params",
    f"{_IB}/ports/*/gids/*", f"{_IB}/ports/*/gid_attrs/types/*", "/sys/class/net/*/dev_port",
    "/sys/class/net/*/bonding/slaves",
    f"{_KFD}/[0-9]*/properties", f"{_KFD}/[0-9]*/io_links/[0-9]*/properties",
    "/sys/kernel/iommu_groups/*/type",
    "/sys/module/nvidia*/version", "/sys/module/nvidia*/parameters/*",
    "/sys/class/dmi/id/sys_vendor", "/sys/class/dmi/id/product_name", "/sys/hypervisor/type",
    "/proc/1/mountinfo",
    "/proc/cmdline", "/proc/cpuinfo", "/proc/meminfo", "/proc/version", "/proc/uptime", "/proc/modules", "/proc/mounts",
    "/proc/net/route", "/proc/net/if_inet6", "/proc/net/ipv6_route",
    "/proc/sys/kernel/numa_balancing", "/proc/sys/vm/zone_reclaim_mode",
    "/proc/sys/kernel/random/boot_id", "/proc/driver/nvidia/version", "/proc/driver/nvidia/gpus/*/information",
    "/sys/kernel/mm/memory_peers/*/version", "/etc/nccl.conf", IMEX_NODES,
)  # fmt: skip
LINKS = (
    f"{_PCI}/driver", f"{_PCI}/physfn", f"{_PCI}/iommu_group", f"{_IB}/device", "/sys/class/net/*/device",
    "/sys/class/nvme/nvme[0-9]*/device",
    "/sys/class/net/*/master",
    "/sys/kernel/iommu_groups/*/devices/*",
)  # fmt: skip
#: Each file of a setting begins with _OURS. A redacted tree keeps these files, except the file that names a site's time servers.
_OURS, _NAMES_SERVERS = b"# Written by fairlead", b"(setting time_sync)"
MODINFO = f"{modinfo.PREFIX}nvidia"
_KMSG_MAX_BYTES = 16 << 20
_SKIPPED_WHEN_REDACTED = (
    "/node_desc", "/proc/sys/kernel/hostname", "/etc/nccl.conf", "/proc/net/if_inet6", "/proc/net/ipv6_route",
)  # fmt: skip


def snapshot(root: Root, nvml: Mapping[str, Any] | Missing, target: Path, *, redact: bool, reads: Iterable[str] = ()) -> None:
    """Write the machine at ``root``, with NVML's answers, as a tree into ``target``, which is made if it does not exist.

    reads: further files that checks and settings read (``Setting.reads``; globs, and the paths of ``process.read_text``).

    redact: replace serials, UUIDs, MAC addresses and GUIDs, and leave out files that name people and servers. Of ``reads``, all
    files below /etc are left out, except files that fairlead has written. The tree's file ``left-out`` lists them, so that they
    count in the tree as unreadable and not as absent.

    Raises HostError when ``target`` cannot be written.
    """
    try:
        _Writer(root, nvml, os.fspath(target), redact).write(reads)
    except OSError as e:
        raise HostError(f"{e.filename or target}: {e.strerror or e}") from e


class _Writer:
    def __init__(self, root: Root, nvml: Mapping[str, Any] | Missing, target: str, redact: bool) -> None:
        self._root = root
        self._nvml = nvml
        self._target = os.path.realpath(target)
        self._redactor = Redactor(nvml) if redact else None
        self._left_out: set[str] = set(root.left_out)

    def write(self, reads: Iterable[str]) -> None:
        os.makedirs(self._target, exist_ok=True)
        for pattern in FILES:
            instead = MASKS.get(pattern)
            for path in self._root.glob(pattern):
                if instead and self._root.exists(f"{os.path.dirname(path)}/{instead}"):
                    continue
                if self._redactor is None or not path.endswith(_SKIPPED_WHEN_REDACTED):
                    self._copy(path)
        for pattern in LINKS:
            for path in self._root.glob(pattern, dangling=True):
                os.makedirs(self._at(self._unresolved(path)), exist_ok=True)
        for folder in (
            "/sys/bus/pci/devices",
            "/sys/class/net",
            "/sys/class/infiniband",
            "/sys/class/nvme",
            "/sys/fs/ext4",
            _EDAC,
        ):
            if self._root.exists(folder):  # an empty folder means that there is no device, but an absent folder does not
                os.makedirs(self._at(self._unresolved(folder)), exist_ok=True)
            for name in self._root.names(folder):
                os.makedirs(self._at(self._unresolved(f"{folder}/{name}")), exist_ok=True)
        if self._redactor is None:
            self._put("/proc/sys/kernel/hostname", kernel.node_name(self._root) + "\n")
        if self._root.is_live:
            self._put("/proc/uptime", f"{kernel.uptime_seconds(self._root):.2f} 0.00\n")
        for folder in FOLDERS:  # only the name of the library's file is read
            if isinstance(self._root.readlink(f"{folder}/{LIBRARY}"), str):
                self._put(self._unresolved(f"{folder}/{LIBRARY}"), "")
        self._put_processes()
        for pattern in dict.fromkeys(reads):
            self._put_read(pattern)
        if self._left_out:
            self._put(f"/{LEFT_OUT}", "".join(f"{path}\n" for path in sorted(self._left_out)))
        parameters = modinfo.text(self._root, MODINFO)
        if isinstance(parameters, str):
            self._put(MODINFO, parameters)
        self._put("/dev/nodes", self._device_nodes())
        self._put("/dev/kmsg", self._kernel_log())
        self._put("/nvml.json", self._nvml_json())
        self._put(f"/{HOST_FILE}", self._host_json())
        self._put("/README.md", self._readme())

    def _unresolved(self, path: str) -> str:
        """Make in the tree every symbolic link on the way to ``path``, and return ``path`` with all of these links resolved."""
        done: list[str] = []
        todo = [c for c in reversed(path.split("/")) if c]
        for _ in range(200):
            if not todo:
                break
            name = todo.pop()
            if name == "..":
                del done[-1:]
                continue
            if name == ".":
                continue
            here = "/" + "/".join([*done, name])
            link = self._root.readlink(here)
            if not isinstance(link, str):
                done.append(name)
                continue
            if link.startswith("/"):
                link = os.path.relpath(link, "/" + "/".join(done))
            at = self._at(here)
            os.makedirs(os.path.dirname(at), exist_ok=True)
            if not os.path.lexists(at):
                os.symlink(link, at)
            todo.extend(c for c in reversed(link.split("/")) if c)
        return "/" + "/".join(done)

    def _at(self, path: str) -> str:
        return self._target + path

    def _copy(self, path: str) -> None:
        if self._root.list(path) is not None:
            return  # ``path`` is a folder
        if "/cache/index" in path and self._root.read_line(f"{os.path.dirname(path)}/level") != "3":
            return
        data = self._root.read_bytes(path)
        if not isinstance(data, bytes) or ("/gids/" in path and not data.strip(b"0:\n")):  # a free entry of the table
            return
        unresolved = self._unresolved(path)
        if self._redactor is not None:
            data = _without_serial(data) if path.endswith("/config") else self._redacted(path, data)
        at = self._at(unresolved)
        os.makedirs(os.path.dirname(at), exist_ok=True)
        with open(at, "wb") as f:
            f.write(data)

    def _redacted(self, path: str, data: bytes) -> bytes:
        assert self._redactor is not None  # noqa: S101  (the only caller asked)
        text = data.decode("utf-8", "replace")
        if path.startswith(_KFD):
            text = _UNIQUE.sub("unique_id 0", text)
        if "/gids/" in path:
            return self._redactor.gid(text).encode()
        special = {
            "/proc/net/route": self._redactor.route,
            "/proc/mounts": self._redactor.mounts,
            "/proc/1/mountinfo": self._redactor.mountinfo,
            IMEX_NODES: _numbered,
        }
        return special.get(path, self._redactor.text)(text).encode()

    def _put(self, path: str, text: str) -> None:
        at = self._at(path)
        os.makedirs(os.path.dirname(at), exist_ok=True)
        with open(at, "w", encoding="utf-8") as f:
            f.write(text)

    def _put_processes(self) -> None:
        """Write ``stat`` of the daemons in ``DAEMONS``, and ``cgroup`` of the processes on the GPUs."""
        for name in DAEMONS:
            text = read_text(self._root, path := f"/proc/@{name}/stat")
            if isinstance(text, str):
                self._put(path, text)
        gpus = self._nvml.get("gpus") if isinstance(self._nvml, Mapping) else None
        listed = [g.get("processes") for g in gpus if isinstance(g, Mapping)] if isinstance(gpus, list) else []
        for process in (p for some in listed if isinstance(some, list) for p in some if isinstance(p, Mapping)):
            text = self._root.read_text(path := f"/proc/{process.get('pid')}/cgroup")
            if isinstance(text, str):
                self._put(path, text)

    def _put_read(self, pattern: str) -> None:
        """Write the files that a check or a setting declared. The text of a special path (``/@...``,
        ``/proc/@...``) is written to a file of that name."""
        if pattern.startswith(("/@", "/proc/@")):
            text = read_text(self._root, pattern)
            if isinstance(text, str):
                self._put(pattern, text if self._redactor is None else self._redactor.text(text))
            return
        for path in self._root.glob(pattern):
            if os.path.lexists(self._at(path)):
                continue
            if self._redactor is not None and pattern.startswith("/etc/") and not self._is_ours(path):
                self._left_out.add(path)
            else:
                self._copy(path)

    def _is_ours(self, path: str) -> bool:
        """Return whether fairlead has written this file and the file names no servers."""
        head = self._root.read_bytes(path, 120, head=True)
        return isinstance(head, bytes) and head.startswith(_OURS) and _NAMES_SERVERS not in head

    def _device_nodes(self) -> str:
        recorded = self._root.read_text("/dev/nodes")
        if isinstance(recorded, str):
            return recorded
        lines = []
        for path in (*self._root.glob("/dev/nvidia*"), *self._root.glob("/dev/infiniband/*")):
            info = os.stat(self._root.join(path))
            if stat.S_ISCHR(info.st_mode):
                number = f"{os.major(info.st_rdev)} {os.minor(info.st_rdev)}"
                lines.append(f"{path.removeprefix('/dev/')} c {number} {stat.S_IMODE(info.st_mode):04o}\n")
        return "".join(lines)

    def _kernel_log(self) -> str:
        """Return the records of the kernel log, or "" if it is a FIFO, because records read here would be lost to the agent."""
        at = self._root.join("/dev/kmsg")
        try:
            mode = os.stat(at).st_mode
            if not (stat.S_ISCHR(mode) or stat.S_ISREG(mode)):
                return ""
            data = _kernel_records(at) if stat.S_ISCHR(mode) else self._root.read_bytes("/dev/kmsg", _KMSG_MAX_BYTES)
        except OSError:
            return ""
        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else ""
        return text if self._redactor is None else self._redactor.kmsg(text)

    def _nvml_json(self) -> str:
        raw: Any = self._nvml
        if isinstance(raw, Missing):
            raw = {"schema": 1, "error": 999, "call": raw.detail}
        raw = _without_activity(raw)
        return json.dumps(raw if self._redactor is None else self._redactor.value(raw), indent=1) + "\n"

    def _host_json(self) -> str:
        """Return the content of ``host.json``: the facts that are not in files. The ``host.json`` of a machine tree is copied."""
        if not self._root.is_live:
            path = os.path.join(self._root.path, HOST_FILE)
            recorded = read_recorded(path)
            raw: Any = {"schema": 1} if isinstance(recorded, Missing) else recorded
        else:
            raw = recorded_of(HostReader(self._root, Wanted(mounts=("/",), units=True), once=True).read(()))
        return json.dumps(raw if self._redactor is None else self._redactor.host(raw), indent=1) + "\n"

    def _readme(self) -> str:
        how = "serials, UUIDs and addresses replaced" if self._redactor is not None else "not redacted: it names this machine"
        what = "this machine" if self._root.is_live else "another machine tree"
        return (
            f"# {os.path.basename(self._target)}: a recorded machine\n\n"
            f"Written by `fairlead snapshot` from {what}; {how}.\n"
            "`sys/`, `proc/` and `dev/` follow the kernel's layout, `nvml.json` holds what NVML said.\n"
        )


def _without_activity(raw: Any) -> Any:
    """Return NVML's answers without the sums of what the GPUs did. They are of one worker process, and not of the machine."""
    if isinstance(raw, dict):
        return {key: _without_activity(value) for key, value in raw.items() if key != ACTIVITY}
    return [_without_activity(value) for value in raw] if isinstance(raw, list) else raw


def _numbered(text: str) -> str:
    """Replace each line of the text by an address for documentation (RFC 5737)."""
    return "".join(f"192.0.2.{n % 256}\n" for n, line in enumerate(text.splitlines(), 1) if line.strip())


def _kernel_records(at: str) -> bytes:
    fd = os.open(at, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    records: list[bytes] = []
    size = 0
    try:
        while size < _KMSG_MAX_BYTES:
            try:
                record = os.read(fd, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue
            level = record.partition(b",")[0]
            if level.isdigit() and int(level) >> 3 == 0:
                records.append(record)
                size += len(record)
    finally:
        os.close(fd)
    return b"".join(records)


def _without_serial(config: bytes) -> bytes:
    """Return config space with the Device Serial Number capability (PCI_EXT_CAP_ID_DSN) zeroed."""
    offset = config_space.find_extended(lambda at, size: config[at : at + size], config_space.EXT_CAP_ID_DSN)
    if not isinstance(offset, int) or offset + 12 > len(config):
        return config
    return config[: offset + 4] + bytes(8) + config[offset + 12 :]
