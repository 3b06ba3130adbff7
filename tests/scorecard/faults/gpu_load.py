"""Clocks, heat, power, fabric, leftovers, and the driver's software.

Clock event reasons: nvml.h, nvmlClocksEventReason*; fabric: nvml.h, nvmlGpuFabricInfo_v2_t.
"""

from __future__ import annotations

from tests.scorecard.entry import Anew, Document, Fast, Fault, File, Nvml, Run, Sweeps

API = "NVML API reference (docs.nvidia.com/deploy/nvml-api)"
REASONS = "nvml.h, nvmlClocksEventReasons"
RDMA = "NVIDIA GPUDirect RDMA documentation (docs.nvidia.com/datacenter/cloud-native/gpu-operator)"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so"
PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.172.08  Wed Jul 16 12:00:00 UTC 2025\nGCC version:  gcc version 12.2.0\n"
)
END = 'for p in /proc/[0-9]*; do [ "$(cat $p/comm 2>/dev/null)" = %s ] && kill ${p#/proc/}; done; true'
#: In one go: to look through /proc takes a busy machine longer than the check waits for another start.
AGAIN = 'old=; for p in /proc/[0-9]*; do [ "$(cat $p/comm 2>/dev/null)" = %s ] && old="$old ${p#/proc/}"; done; kill $old; %s'
BEGIN = "cp -n /bin/sleep /run/score/%s; setsid /run/score/%s infinity </dev/null >/dev/null 2>&1 &"
MANAGER = BEGIN % ("nv-fabricmanager", "nv-fabricmanager")
IMEX = "nvidia-imex"


def loaded(gpu: int, *, reasons: int, hertz: int = 1_980_000_000, percent: int | dict[str, int] = 98, mig: int = 0) -> tuple:
    """A GPU under load for minutes, with these reasons for its clocks."""
    modes = (Nvml(gpu, "mig_mode.current", mig), Nvml(gpu, "mig_mode.pending", mig)) if mig else ()
    return (Fast(), Nvml(gpu, "utilization.gpu_percent", percent), Nvml(gpu, "throttle_reasons", reasons),
            Nvml(gpu, "clocks.sm_hertz", hertz), *modes)  # fmt: skip


def imex(lines: str) -> tuple:
    return (Run(BEGIN % (IMEX, IMEX), END % IMEX), File("/etc/nvidia-imex/nodes_config.cfg", lines),
            Document({"checks": {"imex": {"required": True, "channels_min": 0, "nodes_expected": 2}}}))  # fmt: skip


FAULTS = (
    Fault("throttle-heat", "slowed by heat under load", "gpu_throttle", "drain", loaded(0, reasons=0x48, hertz=1_200_000_000),
          loaded(0, reasons=0x04, hertz=1_700_000_000), "held at its power limit under full load", REASONS, says="heat (hardware)"),
    Fault("throttle-hardware", "slowed by the hardware, not by heat", "gpu_throttle", "drain", loaded(1, reasons=0x08),
          loaded(1, reasons=0x08, percent=0), "the same at idle, as nvml.h says of changes of state", REASONS, says="slowed by its hardware"),
    Fault("throttle-software", "slowed by heat, by software", "gpu_throttle", "warn", loaded(2, reasons=0x20),
          loaded(2, reasons=0x20, percent=0), "the same without load", REASONS, says="heat (software)"),
    Fault("clocks-low", "clocks stuck low under load", "gpu_clocks", "drain", loaded(3, reasons=0, hertz=600_000_000),
          loaded(3, reasons=1, hertz=345_000_000, percent=0), "low clocks of an idle GPU", f"{API}, nvmlDeviceGetClockInfo", says="slowly under load"),
    Fault("throttle-mig", "slowed by heat in MIG mode, where nothing tells the load", "gpu_throttle", "drain",
          loaded(2, reasons=0x48, hertz=1_200_000_000, percent={"error": 3}, mig=1),
          loaded(2, reasons=0x49, hertz=1_200_000_000, percent={"error": 3}, mig=1), "the same while nothing runs", REASONS, says="heat (hardware)"),
    Fault("clocks-left", "application clocks were left low", "gpu_clocks", "drain", (Nvml(3, "application_clocks.sm_hertz", 345_000_000), Anew()),
          (Nvml(3, "application_clocks.sm_hertz", 1_095_000_000), Nvml(3, "application_clocks.default_sm_hertz", 1_095_000_000), Anew()),
          "a board whose own are below its highest", f"{API}, nvmlDeviceGetDefaultApplicationsClock", says="application clock"),
    Fault("power-brake", "the power brake is on", "gpu_power_brake", "drain", loaded(4, reasons=0x88, hertz=600_000_000),
          loaded(4, reasons=0x04, hertz=1_700_000_000), "held at its power limit", REASONS, says="power brake"),
    Fault("power-limit", "the power limit was lowered", "gpu_power_limit", "drain", (Nvml(5, "power.limit_milliwatts", 400_000),),
          (Nvml(5, "power.default_limit_milliwatts", 400_000), Nvml(5, "power.limit_milliwatts", 400_000), Anew()),
          "a board that comes with that limit", f"{API}, nvmlDeviceGetPowerManagementDefaultLimit", says="400 W"),
    Fault("too-hot", "past the slowdown temperature", "gpu_temperature", "drain",
          (Nvml(6, "temperature.gpu_celsius", 92), Nvml(6, "temperature.margin_celsius", -3)),
          (Nvml(6, "temperature.gpu_celsius", 78), Nvml(6, "temperature.margin_celsius", 11)), "warm, as under load",
          f"{API}, nvmlDeviceGetMarginTemperature", says="GPU"),
    Fault("hot", "three degrees below the slowdown", "gpu_temperature", "warn",
          (Nvml(6, "temperature.gpu_celsius", 86), Nvml(6, "temperature.margin_celsius", 3)),
          (Nvml(6, "temperature.gpu_celsius", 80), Nvml(6, "temperature.margin_celsius", 9)), "nine degrees below it",
          f"{API}, nvmlDeviceGetMarginTemperature", says="GPU"),
    Fault("memory-hot", "the memory is too hot", "gpu_temperature", "drain",
          (Document({"checks": {"gpu_temperature": {"memory_max_celsius": 95}}}), Nvml(7, "temperature.memory_celsius", 97)),
          (Document({"checks": {"gpu_temperature": {"memory_max_celsius": 95}}}), Nvml(7, "temperature.memory_celsius", 80)),
          "80 degrees, as under load", API, says="memory"),
    Fault("fabric-not-joined", "a GPU has not joined its NVLink fabric", "gpu_fabric", "drain", (Nvml(0, "fabric.state", 1),),
          (Nvml(0, "fabric.state", 3), Nvml(0, "fabric.status", 0)), "it has", "nvml.h, nvmlGpuFabricState_t", says="has not begun to join"),
    Fault("fabric-degraded", "the fabric's bandwidth is degraded", "gpu_fabric", "drain", (Nvml(1, "fabric.health_mask", 1),),
          (Nvml(1, "fabric.health_mask", 2),), "the driver says that it is not", "nvml.h, NVML_GPU_FABRIC_HEALTH_MASK", says="degraded"),
    Fault("fabric-clique", "a GPU is in another clique than the rest", "gpu_fabric", "drain", (Nvml(2, "fabric.clique_id", 7),),
          tuple(Nvml(gpu, "fabric.clique_id", 7) for gpu in range(8)), "all of them are in that clique",
          "nvml.h, nvmlGpuFabricInfo_t.cliqueId", says="clique"),
    Fault("fabric-manager", "the fabric manager has ended", "fabric_manager", "drain",
          (Run(END % "nv-fabricmanage", MANAGER, about="fabric manager"),),
          (Run(AGAIN % ("nv-fabricmanage", MANAGER), about="fabric manager"),), "it was started again",
          "NVIDIA Fabric Manager user guide; NVIDIA/NVSentinel pull request 891", says="does not run"),
    Fault("imex-nodes", "IMEX lists one node instead of two", "imex", "drain", imex("10.0.0.1\n"),
          imex("# the domain\n10.0.0.1\n10.0.0.2\n"), "it lists two, and a comment", "NVIDIA IMEX service user guide", says="names 1 nodes"),
    Fault("imex-daemon", "the IMEX daemon does not run", "imex", "drain",
          (Document({"checks": {"imex": {"required": True, "channels_min": 0}}}), File("/etc/nvidia-imex/nodes_config.cfg", "10.0.0.1\n")),
          (Document({"checks": {"imex": {"required": True, "channels_min": 0, "daemon": False}}}), File("/etc/nvidia-imex/nodes_config.cfg", "10.0.0.1\n")),
          "a site whose scheduler starts it for each job", "NVIDIA IMEX service user guide", says="does not run"),
    Fault("no-peermem", "adapters do not reach GPU memory", "gpu_direct_rdma", "drain",
          (File("/sys/module/nvidia_peermem", None), File("/proc/driver/nvidia/version", PROPRIETARY)),
          (File("/proc/driver/nvidia/version", PROPRIETARY),),
          "proprietary modules too, with nvidia_peermem", RDMA, says="nvidia_peermem is not loaded"),
    Fault("memory-held", "memory of a GPU is in use and no process has it", "gpu_leftovers", "drain",
          (Nvml(3, "memory.used_bytes", 40 << 30),), (Nvml(3, "memory.used_bytes", 600 << 20),), "600 MiB, as services leave",
          f"{API}, nvmlDeviceGetMemoryInfo_v2", says="no process has it"),
    Fault("process-gone", "a GPU is held by a process that has ended", "gpu_leftovers", "drain",
          (Nvml(4, "processes.0.type", "C"), Nvml(4, "processes.0.pid", 4_000_000), Nvml(4, "processes.0.used_bytes", 1 << 30), Nvml(4, "processes.count", 1)),
          (Nvml(4, "processes.0.type", "C"), Nvml(4, "processes.0.pid", 4_000_000), Nvml(4, "processes.0.used_bytes", 1 << 30), Nvml(4, "processes.count", 1), Sweeps(1), Nvml(4, "processes.count", 0)),
          "one that the driver lets go of a moment later", f"{API}, nvmlDeviceGetComputeRunningProcesses", twin_said="have ended",
          says="have ended"),
    Fault("driver-on-disk", "the driver was upgraded on disk, without a reboot", "driver_library", "drain",
          (Run(f"touch {LIBRARY}.580.95.05; ln -sfn libnvidia-ml.so.580.95.05 {LIBRARY}.1", f"ln -sfn libnvidia-ml.so.570.172.08 {LIBRARY}.1", about="library"),),
          (Run(f"touch {LIBRARY}.580.95.05; ln -sfn libnvidia-ml.so.570.172.08 {LIBRARY}.1", about="library"),),
          "both libraries are there, and the link leads to the right one", "NVIDIA driver README, Installed Components", says="library on disk"),
    Fault("driver-branch", "another driver than the site wants", "driver_version", "drain",
          (Document({"checks": {"driver_version": {"wanted": "580"}}}), File("/sys/module/nvidia/version", "570.172.08\n")),
          (Document({"checks": {"driver_version": {"wanted": "570"}}}), File("/sys/module/nvidia/version", "570.172.08\n")),
          "any of that branch", "NVIDIA data center driver documentation, Driver Lifecycle", says="is wanted"),
)  # fmt: skip
