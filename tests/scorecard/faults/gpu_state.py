"""NVLink, PCIe errors, retired pages, MIG, InfoROM, identity, and readings that went dark.

NVML: docs.nvidia.com/deploy/nvml-api; AER: Linux Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats.
"""

from __future__ import annotations

from tests.lab.machines import read_nvml
from tests.lab.trees import MACHINES
from tests.scorecard.entry import Anew, Call, Document, Elapse, Fault, File, Kernel, Nvml, Sweeps
from tests.scorecard.running import TREE

API = "NVML API reference (docs.nvidia.com/deploy/nvml-api)"
AER = "Linux Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats"
LIMITS = "NVIDIA/DCGM, dcgm_gpu_hardware_limits.h"
GPUS = read_nvml(MACHINES / TREE)["gpus"]
NOT_SUPPORTED, UNKNOWN = {"error": 3}, {"error": 999}
LINKS = "NVML, nvmlDeviceGetNvLinkState; NVIDIA Fabric Manager user guide"


def aer(kind: str, count: int) -> str:
    """A file of AER statistics with one kind of error."""
    name, total = {"correctable": ("BadTLP", "COR"), "fatal": ("DLP", "FATAL"), "nonfatal": ("CmpltTO", "NONFATAL")}[kind]
    return f"{name} {count}\nTOTAL_ERR_{total} {count}\n"


def grows(gpu: int, key: str, by: int, seconds: int = 600) -> tuple:
    """A counter that grows by so much in so much time."""
    return (Nvml(gpu, key, 5), Anew(), Sweeps(1, thorough=True), Elapse(seconds), Nvml(gpu, key, 5 + by))


def unchanged(gpu: int, key: str, at: int, seconds: int = 600) -> tuple:
    """One that is high and stays so."""
    return (Nvml(gpu, key, at), Anew(), Sweeps(1, thorough=True), Elapse(seconds), Nvml(gpu, key, at))


def aer_grows(gpu: int, kind: str, before: int, after: int) -> tuple:
    path = f"/sys/bus/pci/devices/{{gpu{gpu}}}/aer_dev_{kind}"
    return (File(path, aer(kind, before)), Anew(), Sweeps(1, thorough=True), Elapse(600), File(path, aer(kind, after)))


OLD = (
    Document({"unsupported": ["remap"]}),
    *(Nvml(3, f"remap.{k}", NOT_SUPPORTED) for k in ("corrected", "uncorrected", "pending", "failed")),
)


def retired(single: int, double: int, pending: int) -> tuple:
    """A GPU before Ampere, with so many pages retired."""
    counts = {"single_bit": single, "double_bit": double, "pending": pending}
    return (*(Nvml(3, f"retired_pages.{key}", value) for key, value in counts.items()), *OLD, Anew())


FAULTS = (
    Fault("nvlink-down", "an NVLink is down", "nvlink", "drain", (Nvml(0, "nvlink.3.active", 0),),
          (Nvml(0, "mig_mode.current", 1), Nvml(0, "mig_mode.pending", 1), Nvml(0, "nvlink.3.active", 0)),
          "a GPU in MIG mode, where links may be trained off", LINKS, says="17 of 18 NVLinks"),
    Fault("nvlink-crc", "NVLink CRC errors at 2,000 a second", "nvlink", "drain", grows(2, "nvlink.4.crc_errors", 1_200_000),
          unchanged(2, "nvlink.4.crc_errors", 1_200_000), "as many, from long ago", LIMITS, says="CRC errors"),
    Fault("nvlink-recoveries", "an NVLink retrains again and again", "nvlink", "warn", grows(3, "nvlink.5.recovery_errors", 6),
          unchanged(3, "nvlink.5.recovery_errors", 6), "six times in all, none lately", LIMITS, says="recoveries"),
    Fault("nvlink-dark", "the state of an NVLink was readable and is not", "nvlink", "unknown", (Nvml(4, "nvlink.6.active", UNKNOWN),),
          (Nvml(4, "nvlink.6.malformed_packets", NOT_SUPPORTED), Nvml(4, "nvlink.6.active", 1)),
          "a counter that NVLink 4 does not have", API, fresh=True, says="NVLink state"),
    Fault("pcie-replays", "PCIe replays at 200 a minute", "pcie_errors", "warn", grows(0, "pcie.replays", 2000),
          unchanged(0, "pcie.replays", 2000), "as many, from the time when the link trained", LIMITS, says="PCIe replays"),
    Fault("aer-correctable", "correctable AER errors at 12,000 an hour", "pcie_errors", "warn", aer_grows(1, "correctable", 3, 2003),
          aer_grows(1, "correctable", 2000, 2003), "as many in all, three of them new", AER, says="correctable PCIe errors"),
    Fault("aer-fatal", "a fatal AER error", "pcie_errors", "drain", aer_grows(2, "fatal", 0, 1), aer_grows(2, "fatal", 1, 1),
          "one that was counted before the driver came up", AER, says="fatal PCIe error"),
    Fault("aer-fatal-log", "a fatal AER error in the kernel log", "pcie_errors", "drain",
          (Kernel("pcieport 0000:15:01.0: AER: Uncorrected (Fatal) error received: {gpu4}"),),
          (Kernel("pcieport 0000:15:01.0: AER: Uncorrected (Non-Fatal) error received: {gpu4}"),), "one that was not fatal",
          "Linux drivers/pci/pcie/aer.c", says="fatal PCIe error"),
    Fault("retired-pending", "retirement of a memory page is pending (before Ampere)", "retired_pages", "drain",
          retired(1, 0, 1),
          retired(1, 0, 0),
          "a page that is retired and out of use", "NVIDIA Dynamic Page Retirement (docs.nvidia.com/deploy/dynamic-page-retirement)",
          fresh=True, says="pending"),
    Fault("retired-many", "sixty-four pages are retired", "retired_pages", "drain",
          retired(60, 4, 0),
          retired(3, 1, 0),
          "four of them", LIMITS, fresh=True, says="64 memory pages"),
    Fault("mig-pending", "MIG goes on at the next reset", "mig_mode", "warn", (Nvml(5, "mig_mode.pending", 1),),
          (Nvml(5, "mig_mode.current", 1), Nvml(5, "mig_mode.pending", 1)), "MIG is on, and stays so, where nothing is declared",
          "NVIDIA Multi-Instance GPU user guide", says="goes on"),
    Fault("mig-drift", "MIG is on where it is declared off", "mig_mode", "drain",
          (Document({"checks": {"mig_mode": {"expected": False}}}), Nvml(6, "mig_mode.current", 1), Nvml(6, "mig_mode.pending", 1)),
          (Nvml(6, "mig_mode.current", 1), Nvml(6, "mig_mode.pending", 1)), "a site that has not declared it",
          "NVIDIA Multi-Instance GPU user guide", says="declared off"),
    Fault("inforom", "the InfoROM is corrupted", "inforom", "drain",
          (Call("error", (7, "nvmlDeviceValidateInforom", 14)), Anew()),
          (Call("delay", ("nvmlDeviceValidateInforom", 20, 7)), Anew()), "its flash takes 20 ms to read",
          f"{API}, NVML_ERROR_CORRUPTED_INFOROM", says="InfoROM"),
    Fault("board-swapped", "another board sits in the slot", "gpu_identity", "warn",
          (Sweeps(1, thorough=True), Nvml(1, "serial", "1659999999999"), Nvml(1, "uuid", "GPU-11111111-2222-3333-4444-555555555555"), Elapse(300)),
          (Sweeps(1, thorough=True), Nvml(1, "serial", GPUS[1]["serial"]), Elapse(300)), "the same board after a boot of the agent",
          f"{API}, nvmlDeviceGetSerial", fresh=True, says="another card"),
    Fault("boards-exchanged", "two boards have changed places", "gpu_identity", "warn",
          (Sweeps(1, thorough=True), Nvml(2, "serial", GPUS[3]["serial"]), Nvml(3, "serial", GPUS[2]["serial"]), Elapse(300)),
          (Sweeps(1, thorough=True), Nvml(2, "serial", GPUS[2]["serial"]), Nvml(3, "serial", GPUS[3]["serial"]), Elapse(300)),
          "they have not", f"{API}, nvmlDeviceGetSerial", fresh=True, says="moved"),
    Fault("sensor-dark", "a sensor that was readable is N/A", "gpu_readings", "unknown",
          (Nvml(2, "temperature.memory_celsius", UNKNOWN),),
          (Document({"unsupported": ["load.memory_celsius"]}), Nvml(2, "temperature.memory_celsius", NOT_SUPPORTED)),
          "a kind of GPU without it, as its profile says", API, fresh=True, says="no longer answers"),
    Fault("reset-required", "NVML says that a GPU must be reset", "gpu_readings", "drain",
          (Call("error", (5, "*", 16), about="every call of one GPU"),), (Call("delay", ("*", 1, 5), about="every call of one GPU"),),
          "every call of that GPU takes 1 ms longer", f"{API}, NVML_ERROR_RESET_REQUIRED", fresh=True, says="must be reset"),
)  # fmt: skip
