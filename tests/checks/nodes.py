"""A healthy 8-GPU node as facts, and ways to break one thing of it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fairlead.model.check_definition import KernelRecord, Past
from fairlead.model.facts import (
    Driver,
    Ecc,
    Gpu,
    Missing,
    Nic,
    Node,
    NvLink,
    PciDevice,
    PcieLink,
    RowRemap,
    Why,
    unreadable,
)
from fairlead.model.gpu_details import GpuDetails
from fairlead.model.gpu_health import AerCounts
from fairlead.model.gpu_load import GpuFabric, GpuLoad, Software
from fairlead.model.gpu_state import GpuState

BOOT = "11111111-2222-3333-4444-555555555555"
ADDRESSES = tuple(f"0000:{bus:02x}:00.0" for bus in (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF))
NA = unreadable("NVML: not supported (3)")
UNSUPPORTED = Missing(Why.UNSUPPORTED, "profile")
ECC = Ecc(
    mode_current=True,
    mode_pending=True,
    volatile_corrected=0,
    volatile_uncorrected=0,
    aggregate_corrected=0,
    aggregate_uncorrected=0,
    sram_threshold_exceeded=False,
)
REMAP = RowRemap(corrected=0, uncorrected=0, pending=False, failed=False, histogram=(640, 0, 0, 0, 0))
DETAILS = GpuDetails(
    board_part_number="692-2G520-0200-000",
    vbios_version="96.00.89.00.01",
    inforom_image_version="G520.0200.00.05",
    architecture=9,
    brand=14,
    compute_major=9,
    cores=16896,
    compute_mode=0,
    accounting_mode=0,
    bar1_bytes=137438953472,
    cpu_affinity="0-55",
    memory_node=0,
)
STATE = GpuState(
    application_sm_hertz=1980000000,
    application_memory_hertz=2619000000,
    application_default_sm_hertz=1980000000,
    application_default_memory_hertz=2619000000,
    clock_memory_max_hertz=2619000000,
    power_minimum_watts=200.0,
    mig_instances=(),
    mig_profiles=(),
)
LOAD = GpuLoad(
    margin_celsius=53,
    slowdown_celsius=89,
    shutdown_celsius=92,
    memory_celsius=40,
    memory_max_celsius=UNSUPPORTED,
    clock_sm_max_hertz=1980000000,
    power_default_watts=700.0,
    fabric=GpuFabric(state=3, status=0, clique=0, cluster="0" * 32, health=0),
)
GEN5 = PcieLink(gen_current=5, gen_max=5, width_current=16, width_max=16, replays=0)
LINKS = tuple(
    NvLink(link=n, active=True, remote="switch", crc_errors=0, replay_errors=0, recovery_errors=0, version=4) for n in range(18)
)
NO_ERRORS = AerCounts(correctable=0, nonfatal=0, fatal=0)


def gpu(position: int = 0, **changes: Any) -> Gpu:
    healthy = Gpu(
        pci=ADDRESSES[position],
        index=position,
        uuid=f"GPU-{position:08d}",
        serial=f"165122300{position}",
        minor=position,
        name="NVIDIA H100 80GB HBM3",
        persistence=True,
        mig_current=False,
        mig_pending=False,
        mig_devices=(),
        ecc=ECC,
        remap=REMAP,
        pcie=GEN5,
        nvlinks=LINKS,
        memory_total_bytes=85520809984,
        memory_used_bytes=0,
        temperature_celsius=34,
        power_draw_watts=70.0,
        power_limit_watts=700.0,
        clock_sm_hertz=1980000000,
        throttle_reasons=1,
        utilization_percent=0,
        performance_state=0,
        recovery_action=0,
        processes=(),
        inforom_valid=True,
        aer=NO_ERRORS,
        port_aer=NO_ERRORS,
        load=LOAD,
        details=DETAILS,
        state=STATE,
    )
    return replace(healthy, **changes)


def endpoint(address: str, *, vendor: int = 0x10DE, class_code: int = 0x030200, link: PcieLink | Missing = GEN5) -> PciDevice:
    port = address.replace("0000:", "0001:")
    return PciDevice(
        address=address,
        vendor=vendor,
        device=0x2330,
        class_code=class_code,
        path=("pci0000:00", port, address),
        numa=0,
        link=link,
    )


def port(address: str, link: PcieLink = GEN5) -> PciDevice:
    return PciDevice(
        address=address.replace("0000:", "0001:"),
        vendor=0x1000,
        device=0xC030,
        class_code=0x060400,
        path=("pci0000:00", address.replace("0000:", "0001:")),
        numa=0,
        link=link,
        bridge_role="switch_downstream",
    )


def node(*changed: Gpu, **changes: Any) -> Node:
    """Eight healthy GPUs; ``changed`` ones take the place of those with their address."""
    by_address = {g.pci: g for g in (gpu(i) for i in range(8))} | {g.pci: g for g in changed}
    healthy = Node(
        name="gpu01",
        boot_id=BOOT,
        uptime_seconds=10000.0,
        virtual=False,
        cpus=(),
        numa=(),
        pci=tuple(d for a in ADDRESSES for d in (port(a), endpoint(a))),
        nics=(),
        driver=Driver(
            module_version="570.172.08",
            library_version="570.172.08",
            nvml_version="12.570.172.08",
            cuda_version=12080,
            software=Software(library_file="570.172.08", open_module=True, kernel=(6, 1), peermem=True, imex_channels=0),
        ),
        gpus=tuple(by_address.values()),
    )
    return replace(healthy, **changes)


def nic(address: str = "0000:19:00.0", **changes: Any) -> Nic:
    made = Nic(
        name="mlx5_0",
        pci=address,
        rdma=True,
        port=1,
        link_layer="InfiniBand",
        state="ACTIVE",
        physical_state="LinkUp",
        rate_gbps=400.0,
    )
    return replace(made, **changes)


def records(*texts: str, seconds: float = 9990.0, boot: str = BOOT, start: int = 100) -> tuple[KernelRecord, ...]:
    return tuple(
        KernelRecord(sequence=start + i, seconds=seconds, priority=3, text=text, boot_id=boot) for i, text in enumerate(texts)
    )


def log(*texts: str, **more: Any) -> Past:
    return Past(available=True, records=records(*texts, **more))
