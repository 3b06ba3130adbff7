"""What NVML and the PCI bus say of a GPU: presence, answers, memory errors, row remapping, its link.

NVML: nvml.h of the CUDA toolkit and docs.nvidia.com/deploy/nvml-api; memory errors:
docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt.
"""

from __future__ import annotations

from tests.scorecard.entry import Anew, Call, Document, Elapse, Fault, File, Nvml, Sweeps

API = "NVML API reference (docs.nvidia.com/deploy/nvml-api)"
MEMORY = "NVIDIA GPU memory error management guide (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt)"
SYSFS = "Linux Documentation/ABI/testing/sysfs-bus-pci"
DEVICE = "/sys/bus/pci/devices/{gpu%d}"
SWITCH = "/sys/bus/pci/devices/0000:16:00.0"  # above the first GPU
NOT_SUPPORTED, LOST, UNKNOWN = {"error": 3}, 15, {"error": 999}
BMC = (
    ("vendor", "0x1a03\n"),
    ("device", "0x2000\n"),
    ("class", "0x030000\n"),
    ("numa_node", "0\n"),
    ("config", b"\x03\x1a" + bytes(254)),
)
ECC = ("volatile_corrected", "volatile_uncorrected", "aggregate_corrected", "aggregate_uncorrected")


def link(gpu: int, *, width: int = 16, speed: str = "32.0 GT/s PCIe", gen: int = 5) -> tuple:
    """The link as NVML and sysfs agree on it."""
    return (Nvml(gpu, "pcie.width_current", width), Nvml(gpu, "pcie.gen_current", gen),
            File(f"{DEVICE % gpu}/current_link_width", f"{width}\n"), File(f"{DEVICE % gpu}/current_link_speed", f"{speed}\n"))  # fmt: skip


FAULTS = (
    Fault("gpu-lost", "NVML: GPU is lost", "gpu_count", "drain", (Call("lost", (1,)),),
          (Document({"unsupported": ["load.memory_celsius"]}), Nvml(1, "temperature.memory_celsius", NOT_SUPPORTED),
           Call("error", (1, "nvmlDeviceGetFanSpeed", 3), about="lost")),
          "a sensor that this board does not have (NOT_SUPPORTED)", f"{API}, NVML_ERROR_GPU_IS_LOST", says="lost"),
    Fault("gpu-handle-lost", "NVML: not even a handle", "gpu_count", "drain", (Call("handle_lost", (6,)),),
          (Call("delay", ("nvmlDeviceGetHandleByIndex", 100, 6), about="handle_lost"),), "the handle comes, 100 ms late",
          f"{API}, nvmlDeviceGetHandleByIndex", fresh=True, says="lost"),
    Fault("gpu-off-pci", "a GPU is not on the PCI bus", "gpu_count", "drain",
          (File("/sys/bus/pci/devices/{gpu5}", None),),
          tuple(File(f"/sys/bus/pci/devices/0000:03:00.0/{name}", text) for name, text in BMC),
          "one display adapter more, of the board's management controller", SYSFS, says="7 of 8"),
    Fault("gpu-too-many", "nine GPUs were declared, eight are there", "gpu_count", "drain",
          (Document({"checks": {"gpu_count": {"expected": 9}}}), Nvml(0, "utilization.gpu_percent", 0)),
          (Document({"checks": {"gpu_count": {"expected": 8}}}), Nvml(0, "utilization.gpu_percent", 0)),
          "eight were declared", "the hardware profile", says="8 of 9"),
    Fault("nvml-silent", "NVML does not answer: no driver behind it", "nvml_responsive", "drain",
          (Call("error", (None, "nvmlDeviceGetCount", 999), about="nvmlDeviceGetCount"),),
          (Call("delay", ("nvmlDeviceGetCount", 200), about="nvmlDeviceGetCount"),), "it answers 200 ms late",
          f"{API}, nvmlReturn_t", says="NVML does not answer"),
    Fault("nvml-hang", "an NVML call does not come back", "nvml_responsive", "drain",
          (Call("hang", ("nvmlDeviceGetFieldValues", 4)),), (Call("delay", ("nvmlDeviceGetFieldValues", 300, 4)),),
          "the same call takes 300 ms (a busy driver)", "NVIDIA/open-gpu-kernel-modules issue 1333", says="does not come back",
          ),
    Fault("nvml-crash", "the library kills its process again and again", "nvml_responsive", "drain",
          (Call("crash", ("nvmlDeviceGetTemperature", 2)), Call("crash", ("nvmlDeviceGetTemperatureV", 2))),
          (Call("error", (2, "nvmlDeviceGetTemperatureV", 13)),), "an older driver does not have the newer call (FUNCTION_NOT_FOUND)",
          "NVIDIA/go-nvml issue 152", says="died"),
    Fault("driver-mismatch", "driver module and library of different versions", "driver_library", "drain",
          (File("/sys/module/nvidia/version", "580.95.05\n"),), (File("/sys/module/nvidia/version", "570.172.08\n"),),
          "the file is written again with the version that the library has", f"{API}, NVML_ERROR_LIB_RM_VERSION_MISMATCH",
          says="is loaded, but its library"),
    Fault("gpu-mute", "one GPU answers no call", "nvml_responsive", "drain",
          (Call("error", (7, "*", 999), about="every call of one GPU"),),
          (Call("delay", ("*", 2, 7), about="every call of one GPU"),), "every call of that GPU takes 2 ms longer",
          f"{API}, NVML_ERROR_UNKNOWN", says="answers no NVML call"),
    Fault("ecc-volatile", "uncorrectable ECC errors since the driver loaded", "ecc", "drain",
          (Nvml(0, "ecc.volatile_uncorrected", 2),),
          (Nvml(0, "ecc.volatile_uncorrected", 0), Nvml(0, "ecc.aggregate_uncorrected", 2)),
          "the same two errors, repaired by a reset since: only the life's count has them", MEMORY, says="2 uncorrectable"),
    Fault("ecc-aggregate", "a hundred uncorrectable ECC errors in the board's life", "ecc", "warn",
          (Nvml(1, "ecc.aggregate_uncorrected", 100),), (Nvml(1, "ecc.aggregate_uncorrected", 1),),
          "one in its life", MEMORY, says="in the life"),
    Fault("ecc-sram", "SRAM errors past NVIDIA's threshold", "ecc", "drain", (Nvml(2, "sram.threshold_exceeded", 1),),
          (Nvml(2, "sram.threshold_exceeded", 0), Nvml(2, "sram.aggregate_corrected", 3)), "corrected SRAM errors below it",
          f"{API}, nvmlEccSramErrorStatus_t.bThresholdExceeded", says="threshold"),
    Fault("ecc-off", "ECC is off", "ecc", "drain",
          (Nvml(3, "ecc_mode.pending", 0), Nvml(3, "ecc_mode.current", 0)),
          (Document({"checks": {"ecc": {"required": False}}}), Nvml(3, "ecc_mode.pending", 0), Nvml(3, "ecc_mode.current", 0), Anew()),
          "the site says that it wants none", f"{API}, nvmlDeviceGetEccMode", says="ECC is off"),
    Fault("ecc-pending-off", "ECC goes off at the next reset", "ecc", "warn", (Nvml(4, "ecc_mode.pending", 0),),
          (Document({"checks": {"ecc": {"required": False}}}), Nvml(4, "ecc_mode.current", 0), Nvml(4, "ecc_mode.pending", 0), Anew()), "the site says that it wants none",
          f"{API}, nvmlDeviceGetEccMode", says="goes off"),
    Fault("ecc-dark", "ECC counters that were readable are N/A", "ecc", "drain",
          tuple(Nvml(6, f"ecc.{key}", UNKNOWN) for key in ECC),
          (Document({"unsupported": ["ecc"]}), *(Nvml(6, f"ecc.{key}", NOT_SUPPORTED) for key in ECC)),
          "a kind of GPU without these counters, as its profile says", "driver 550.90.07 after a double bit error; " + MEMORY,
          fresh=True, says="cannot be read any more"),
    Fault("ecc-rate", "corrected ECC errors at 5,000 a second", "ecc", "warn",
          (Nvml(5, "ecc.volatile_corrected", 1000), Anew(), Sweeps(1, thorough=True), Elapse(600), Nvml(5, "ecc.volatile_corrected", 3_001_000)),
          (Nvml(5, "ecc.volatile_corrected", 3_000_000), Anew(), Sweeps(1, thorough=True), Elapse(600), Nvml(5, "ecc.volatile_corrected", 3_000_040)),
          "as many in all, and forty new ones in ten minutes", "NVIDIA/NVSentinel issue 1748", says="too fast"),
    Fault("remap-pending", "row remapping is pending", "row_remap", "drain",
          (Nvml(0, "remap.uncorrected", 1), Nvml(0, "remap.pending", 1)),
          (Nvml(0, "remap.uncorrected", 1), Nvml(0, "remap.pending", 0)), "a row was remapped and the reset is done", MEMORY,
          says="pending"),
    Fault("remap-failed", "row remapping failed", "row_remap", "drain", (Nvml(1, "remap.failed", 1),),
          (Nvml(1, "remap.failed", 0), Nvml(1, "remap.corrected", 2)), "two rows remapped for corrected errors", MEMORY,
          says="failed"),
    Fault("remap-banks", "banks with no spare row left", "row_remap", "warn",
          (Nvml(2, "remap.histogram.0", 2558), Nvml(2, "remap.histogram.4", 2)),
          (Nvml(2, "remap.histogram.0", 2558), Nvml(2, "remap.histogram.1", 2)), "two banks that have used one spare row", MEMORY,
          says="spare rows"),
    Fault("remap-512", "512 rows remapped for uncorrectable errors", "row_remap", "warn",
          (Nvml(3, "remap.uncorrected", 512),), (Nvml(3, "remap.uncorrected", 4),), "four of them", MEMORY, says="512 rows"),
    Fault("remap-dark", "row remapping was readable and is N/A", "row_remap", "drain",
          (Nvml(4, "remap.corrected", UNKNOWN), Nvml(4, "remap.pending", UNKNOWN)),
          (Document({"unsupported": ["remap", "retired"]}), Nvml(4, "remap.corrected", NOT_SUPPORTED), Nvml(4, "remap.pending", NOT_SUPPORTED)),
          "a kind of GPU without it, as its profile says", API, fresh=True, says="cannot be read any more"),
    Fault("pcie-width", "a GPU's link is x8", "pcie_link", "drain", link(2, width=8),
          (Document({"checks": {"pcie_link": {"gpu_width": 8}}}), *link(2, width=8)), "a chassis that gives each GPU eight lanes",
          "PCI Express Base Specification, Link Status", says="is x8"),
    Fault("pcie-speed-busy", "a GPU's link is generation 1 under load", "pcie_link", "drain",
          (Nvml(3, "utilization.gpu_percent", 98), *link(3, speed="2.5 GT/s PCIe", gen=1)),
          (Nvml(3, "utilization.gpu_percent", 0), *link(3, speed="2.5 GT/s PCIe", gen=1)),
          "generation 1 at idle: the link saves power", "PCI Express Base Specification, ASPM; NVIDIA driver, performance state 8",
          says="generation 1 under load"),
    Fault("pcie-nic-width", "an adapter's link is x8", "pcie_nic", "drain",
          (File("/sys/class/infiniband/mlx5_0/device/current_link_width", "8\n"),),
          (File("/sys/class/infiniband/mlx5_0/device/max_link_width", "8\n"),
           File("/sys/class/infiniband/mlx5_0/device/current_link_width", "8\n"), Anew()), "an adapter that has no more than eight lanes", SYSFS,
          says="is x8"),
    Fault("pcie-switch-width", "a PCIe switch's link to the processor is x8", "pcie_switch", "drain",
          (File(f"{SWITCH}/current_link_width", "8\n"),),
          (File("/sys/bus/pci/devices/0000:15:01.0/max_link_width", "8\n"), File(f"{SWITCH}/current_link_width", "8\n"), Anew()),
          "a root port that has no more than eight lanes", SYSFS, says="is x8"),
    Fault("pcie-dark", "a link that was readable is N/A", "pcie_link", "drain",
          (Nvml(4, "pcie.width_current", UNKNOWN), File(f"{DEVICE % 4}/current_link_width", None)),
          (Document({"unsupported": ["pcie.width_current"]}), Nvml(4, "pcie.width_current", NOT_SUPPORTED)),
          "a kind of GPU whose driver does not say it, and the kernel does", SYSFS, fresh=True,
          says="cannot be read any more"),
    Fault("recovery-nvml", "the driver's advice without a log line: reset", "xid", "drain", (Nvml(5, "recovery_action", 1),),
          (Nvml(5, "recovery_action", 0),), "no advice", f"{API}, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; NVIDIA/DCGM issue 263",
          says="reset"),
)  # fmt: skip
