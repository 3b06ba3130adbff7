"""What NVML says about the GPUs of a simulated machine (nvml.json), and the same flattened for the library.

Base units are in the names; a value that NVML could not give is `{"error": CODE}`. Values are written by hand; the
shape of a healthy H100, A100 and L40S follows what `nvidia-smi -q` prints on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from tests.lab.models import Model

NOT_SUPPORTED, GPU_IS_LOST, UNKNOWN = 3, 15, 999
DRIVER_VERSION = "570.172.08"
# Counters that every driver has, and those that came with r575: this one has not got them.
CLOCK_EVENTS = ("sw_power_cap", "thermal", "sync_boost", "board_limit", "reliability")
SLOWDOWN_EVENTS = ("hw_thermal_slowdown", "hw_power_brake_slowdown")
# Counters that only NVLink 5 has
NVLINK5 = ("malformed_packets", "receive_errors", "recoveries_failed", "recoveries", "effective_errors")
# Its bit error rates, as NVML packs them, on a link without errors: 15e-255. Older links have no such key.
NO_ERRORS_SEEN = {"effective_ber_code": 15 << 8 | 255, "symbol_ber_code": 15 << 8 | 255}
# What the driver still answers for a GPU that is lost.
IDENTITY = ("index", "pci", "pci_device_id", "pci_subsystem_id", "uuid", "minor")


def digest(*words: object) -> str:
    """32 hexadecimal digits that depend on nothing but the words."""
    return hashlib.sha256("/".join(str(word) for word in words).encode()).hexdigest()[:32]


def uuid(*words: object) -> str:
    """A UUID (version 4 in form) that depends on nothing but the words."""
    d = digest(*words)
    return f"{d[:8]}-{d[8:12]}-4{d[13:16]}-a{d[17:20]}-{d[20:32]}"


def error(code: int) -> dict[str, int]:
    """A value that NVML could not give."""
    return {"error": code}


def gpu_facts(
    model: Model,
    index: int,
    pci: str,
    *,
    node: str,
    seed: int,
    cpus: str,
    numa: int,
    persistence: int,
) -> dict[str, Any]:
    """One healthy, idle GPU. `index` is the NVML index and the minor number (they are equal on these machines)."""
    g = model.gpu
    zero_counts = ("volatile_corrected", "volatile_uncorrected", "aggregate_corrected", "aggregate_uncorrected")
    sram = [f"{when}_{what}" for when in ("volatile", "aggregate")
            for what in ("corrected", "uncorrected_parity", "uncorrected_secded")]  # fmt: skip
    link = {"active": 1, "version": g.nvlink_version, "remote": "switch",
            "crc_errors": 0, "replay_errors": 0, "recovery_errors": 0,
            **{key: error(NOT_SUPPORTED) for key in NVLINK5}}  # fmt: skip
    return {
        "index": index,
        "pci": pci,
        "pci_device_id": g.product.device << 16 | g.product.vendor,
        "pci_subsystem_id": g.product.subsystem[1] << 16 | g.product.subsystem[0],
        "uuid": "GPU-" + uuid(node, seed, "gpu", index),
        "serial": f"165{int(digest(node, seed, 'serial', index), 16) % 10**10:010d}",
        "minor": index,
        "name": g.name,
        "board_part_number": g.board_part_number,
        "vbios_version": g.vbios_version,
        "inforom_image_version": g.inforom_image_version,
        "architecture": g.architecture,
        "brand": 14,  # NVML_BRAND_NVIDIA, what nvidia-smi prints as "NVIDIA"
        "compute_capability": list(g.compute_capability),
        "cores": g.cores,
        "memory": {"total_bytes": g.memory_bytes, "reserved_bytes": g.reserved_bytes, "used_bytes": 0},
        "bar1": {"total_bytes": g.bar1_bytes, "used_bytes": 1 << 20},
        "persistence_mode": persistence,
        "compute_mode": 0,
        "accounting_mode": 0,
        "mig_mode": {"current": 0, "pending": 0} if g.mig else error(NOT_SUPPORTED),
        "ecc_mode": {"current": 1, "pending": 1},
        "ecc": dict.fromkeys(zero_counts, 0),
        "sram": {**dict.fromkeys(sram, 0), "threshold_exceeded": 0},
        "remap": {"corrected": 0, "uncorrected": 0, "pending": 0, "failed": 0, "histogram": [g.remap_banks, 0, 0, 0, 0]},
        "retired_pages": {key: error(NOT_SUPPORTED) for key in ("single_bit", "double_bit", "pending")},
        "pcie": {"gen_current": g.pcie_generation, "gen_max": g.pcie_generation, "width_current": 16, "width_max": 16,
                 "replays": 0, "transmit_bytes": 0, "receive_bytes": 0},
        "temperature": {"gpu_celsius": 34, "slowdown_celsius": g.slowdown_celsius, "shutdown_celsius": g.shutdown_celsius,
                        "margin_celsius": g.slowdown_celsius - 34,
                        "memory_max_celsius": g.memory_max_celsius or error(NOT_SUPPORTED),
                        "memory_celsius": 40 if g.memory_temperature else error(NOT_SUPPORTED)},
        "power": {"draw_milliwatts": g.idle_milliwatts, "limit_milliwatts": g.power_milliwatts,
                  "default_limit_milliwatts": g.power_milliwatts, "minimum_limit_milliwatts": g.power_minimum_milliwatts,
                  "maximum_limit_milliwatts": g.power_milliwatts, "energy_millijoules": 0},
        "clocks": {"sm_hertz": g.sm_clock * 10**6, "memory_hertz": g.memory_clock * 10**6,
                   "sm_max_hertz": g.sm_clock_maximum * 10**6, "memory_max_hertz": g.memory_clock * 10**6},
        "application_clocks": {f"{prefix}{key}_hertz": clock * 10**6 for prefix in ("", "default_")
                               for key, clock in (("sm", g.sm_clock_maximum), ("memory", g.memory_clock))},
        "mig": {"instances": [], "profiles": []} if g.mig else error(NOT_SUPPORTED),
        "clock_events": {**{f"{name}_nanoseconds": 0 for name in CLOCK_EVENTS},
                         **{f"{name}_nanoseconds": error(NOT_SUPPORTED) for name in SLOWDOWN_EVENTS}},
        "throttle_reasons": 1,  # nvmlClocksEventReasonGpuIdle
        "utilization": {"gpu_percent": 0, "memory_percent": 0},
        "performance_state": 0,
        "recovery_action": 0,
        "inforom_valid": 1,
        # Completed; an HGX H100 with driver 590.48 is in no cluster of several nodes and says nothing of its health.
        "fabric": {"state": 3, "status": 0, "clique_id": g.fabric_clique, "cluster_uuid": g.fabric_cluster,
                   "health_mask": g.fabric_health} if g.fabric else error(NOT_SUPPORTED),
        "nvlink": [dict(link) for _ in range(g.nvlinks)],
        "cpu_affinity": cpus,
        "numa": numa,
        "processes": [],
    }  # fmt: skip


def machine_facts(gpus: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole of nvml.json."""
    return {
        "schema": 1,
        "driver_version": DRIVER_VERSION,
        "nvml_version": f"12.{DRIVER_VERSION}",
        "cuda_driver_version": 12080,
        "gpus": gpus,
    }


def lose(gpu: dict[str, Any], code: int = GPU_IS_LOST) -> None:
    """Make every value of one GPU unreadable except what identifies it."""
    for key in gpu:
        if key not in IDENTITY:
            gpu[key] = error(code)


def flatten(nvml: Mapping[str, Any]) -> str:
    """nvml.json as the `key=value` lines that the simulated library reads.

    `gpus[0].ecc.volatile_corrected` becomes `gpu.0.ecc.volatile_corrected=0`, list elements get their number, and
    `{"error": 3}` becomes `error 3`. `gpus=N` says how many there are.
    """
    lines = [f"gpus={len(nvml['gpus'])}"]
    lines += _lines("", {key: value for key, value in nvml.items() if key != "gpus"})
    for number, gpu in enumerate(nvml["gpus"]):
        lines += _lines(f"gpu.{number}", gpu)
    return "\n".join(lines) + "\n"


def _lines(prefix: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if value.keys() == {"error"}:
            yield f"{prefix}=error {value['error']}"
            return
        for key, below in value.items():
            yield from _lines(f"{prefix}.{key}" if prefix else key, below)
    elif isinstance(value, list):
        yield f"{prefix}.count={len(value)}"
        for number, below in enumerate(value):
            yield from _lines(f"{prefix}.{number}", below)
    else:
        text = str(int(value) if isinstance(value, bool) else value)
        if "\n" in text:
            raise ValueError(f"{prefix}: a value must be one line")
        yield f"{prefix}={text}"
