"""Converts NVML's answers in nvml.json form (the NVML worker's snapshot, or TREE/nvml.json) to GPUs. It reads no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from fairlead.host import gpu_details_reader, gpu_health_reader, gpu_load_reader, gpu_state_reader, mig_devices_reader
from fairlead.host.gpu_reader import GPU_IS_LOST, GpuReader, return_text
from fairlead.host.pci import normal_address
from fairlead.model.facts import (
    Driver,
    Ecc,
    Gpu,
    GpuProcess,
    Missing,
    NvLink,
    PcieLink,
    RowRemap,
    unreadable,
)

Parts = Mapping[str, Any]  # one GPU's part of nvml.json, or some keys of it
RATES = {"effective_ber": "effective_ber_code", "symbol_ber": "symbol_ber_code"}  # of NVLink; the keys in nvml.json
LINK_ERRORS = tuple(n for n in NvLink.__struct_fields__ if n not in ("link", "active", "remote", "version", *RATES))


class Converter:
    """Converts one snapshot after another.

    Most parts of a GPU are the same as a second ago. A part or a GPU that has not changed is not converted again.
    """

    def __init__(self, unsupported: Sequence[str] = ()) -> None:
        self._unsupported = frozenset(unsupported)
        self._parts: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._before: dict[int, tuple[Mapping[str, Any], Gpu]] = {}

    def gpus(self, raw: Mapping[str, Any] | Missing | None) -> tuple[Gpu, ...] | Missing:
        """Return all GPUs that NVML lists, lost GPUs included, or Missing if the list cannot be read."""
        entries = _entries(raw)
        return entries if isinstance(entries, Missing) else tuple(self._gpu(e, i) for i, e in enumerate(entries))

    def _part(self, position: int, new: Parts | None, read: GpuReader, make: Callable[[GpuReader], Any], *parts: str) -> Any:
        """Return what ``make`` converts these parts to, or its last result if the parts have not changed.

        ``new``: only these keys of the GPU may differ from the last snapshot. If it is None, any key may differ.
        """
        last = self._parts.get((position, parts[0]))
        if last is not None and new is not None and _top_keys(parts).isdisjoint(new):
            return last[1]
        now = [_raw_part(read.raw, p) for p in parts]
        if last is not None and last[0] == now:
            return last[1]
        built = make(read)
        self._parts[position, parts[0]] = (now, built)
        return built

    def _gpu(self, raw: Mapping[str, Any], position: int) -> Gpu:
        before, gpu = self._before.get(position, (None, None))
        if gpu is not None and before == raw:
            return gpu
        # The GPU was not lost in the last snapshot, so only a changed value can be GPU_IS_LOST.
        alike = gpu is not None and not gpu.lost and before is not None and before.keys() == raw.keys()
        new = {k: v for k, v in raw.items() if before[k] is not v} if alike and before else None
        part = partial(self._part, position, new, GpuReader(raw, self._unsupported))
        gpu = self._built(position, part, lost=is_lost(raw if new is None else new))
        self._before[position] = (dict(raw), gpu)
        return gpu

    def _built(self, position: int, part: Callable[..., Any], *, lost: bool) -> Gpu:
        return Gpu(
            **part(partial(_settled, position), *_SETTLED),
            **part(_basic, *_BASIC),
            lost=lost,
            ecc=part(_ecc, "ecc", "ecc_mode", "sram"),
            remap=part(_remap, "remap"),
            pcie=part(_pcie, "pcie"),
            nvlinks=part(_nvlinks, "nvlink"),
            clock_sm_hertz=part(_clock, "clocks.sm_hertz"),
            throttle_reasons=part(_throttle, "throttle_reasons"),
            utilization_percent=part(_busy, "utilization.gpu_percent"),
            processes=part(_processes, "processes"),
            retired=part(gpu_health_reader.retired, "retired_pages"),
            details=part(gpu_details_reader.details, *gpu_details_reader.PARTS),
            state=part(gpu_state_reader.state, *gpu_state_reader.PARTS),
            load=part(gpu_load_reader.load, *gpu_load_reader.PARTS),
            mig_devices=part(mig_devices_reader.mig_devices, *mig_devices_reader.PARTS),
        )


@lru_cache
def _top_keys(parts: tuple[str, ...]) -> frozenset[str]:
    return frozenset(part.partition(".")[0] for part in parts)


def _raw_part(raw: Mapping[str, Any], part: str) -> Any:
    """Return a part of nvml.json, or one value of the part ("clocks.sm_hertz"). If the part is an error, return the error."""
    head, _, key = part.partition(".")
    value = raw.get(head)
    return value.get(key) if key and isinstance(value, dict) and "error" not in value else value


_SETTLED = (
    "index", "pci", "uuid", "serial", "minor", "name", "persistence_mode", "mig_mode", "recovery_action", "inforom_valid",
)  # fmt: skip


_BASIC = ("memory", "temperature.gpu_celsius", "power.draw_milliwatts", "power.limit_milliwatts", "performance_state")


def _basic(read: GpuReader) -> dict[str, Any]:
    """Return the readings that every GPU has: memory, temperature, power, performance state."""
    return {
        "memory_total_bytes": read.number("memory.total_bytes", "memory_total_bytes"),
        "memory_used_bytes": read.number("memory.used_bytes", "memory_used_bytes"),
        "temperature_celsius": read.number("temperature.gpu_celsius", "temperature_celsius"),
        "power_draw_watts": read.watts("power.draw_milliwatts", "power_draw_watts"),
        "power_limit_watts": read.watts("power.limit_milliwatts", "power_limit_watts"),
        "performance_state": read.number("performance_state", "performance_state"),
    }


def _clock(read: GpuReader) -> int | Missing:
    return read.number("clocks.sm_hertz", "clock_sm_hertz")


def _throttle(read: GpuReader) -> int | Missing:
    return read.number("throttle_reasons", "throttle_reasons")


def _busy(read: GpuReader) -> int | Missing:
    return read.number("utilization.gpu_percent", "utilization_percent")


def _settled(position: int, read: GpuReader) -> dict[str, Any]:
    """Return the values that a GPU's work does not change. Only a fault or a person changes them."""
    index = read.number("index", "index")
    return {
        "pci": _address(read.text("pci", "pci")),
        "index": position if isinstance(index, Missing) else index,
        "uuid": read.text("uuid", "uuid"),
        "serial": read.text("serial", "serial"),
        "minor": read.number("minor", "minor"),
        "name": read.text("name", "name"),
        "persistence": read.flag("persistence_mode", "persistence"),
        "mig_current": read.flag("mig_mode.current", "mig_current"),
        "mig_pending": read.flag("mig_mode.pending", "mig_pending"),
        "recovery_action": read.number("recovery_action", "recovery_action"),
        "inforom_valid": gpu_health_reader.inforom_valid(read),
    }


def gpus(raw: Mapping[str, Any] | Missing | None, unsupported: Sequence[str] = ()) -> tuple[Gpu, ...] | Missing:
    """Return all GPUs of one snapshot. ``unsupported``: dotted fields of Gpu that the profile lists as unsupported."""
    return Converter(unsupported).gpus(raw)


def _entries(raw: Mapping[str, Any] | Missing | None) -> list[Mapping[str, Any]] | Missing:
    if raw is None:
        return unreadable("NVML was not asked")
    if isinstance(raw, Missing):
        return raw
    if "error" in raw:
        code = raw["error"]
        return unreadable(f"{return_text(code) if type(code) is int else 'NVML failed'} from {raw.get('call', 'nvmlInit_v2')}")
    entries = raw.get("gpus")
    if isinstance(entries, dict) and type(entries.get("error")) is int:
        return unreadable(f"{return_text(entries['error'])} from nvmlDeviceGetCount_v2")
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        return unreadable("nvml: gpus is not a list of tables")
    return entries


def driver(raw: Mapping[str, Any] | Missing | None, module_version: str | Missing) -> Driver:
    """Return the driver's versions: ``module_version`` as the kernel reports it, the other versions as NVML reports them."""
    if raw is None:
        raw = unreadable("NVML was not asked")
    if isinstance(raw, Missing):
        return Driver(module_version=module_version, library_version=raw, nvml_version=raw, cuda_version=raw)
    read = GpuReader(raw)
    code = raw.get("error")
    return Driver(
        module_version=module_version,
        library_version=read.text("driver_version", "driver_version"),
        nvml_version=read.text("nvml_version", "nvml_version"),
        cuda_version=read.number("cuda_driver_version", "cuda_driver_version"),
        init_code=code if type(code) is int else 0,
    )


def is_lost(raw: Mapping[str, Any]) -> bool:
    """Return whether any of the answers about this GPU was GPU_IS_LOST."""
    for part in (raw, *raw.values()):
        if type(part) is dict:
            if part.get("error") == GPU_IS_LOST:
                return True
            for value in part.values():
                if type(value) is dict and value.get("error") == GPU_IS_LOST:
                    return True
    return False


def _address(text: str | Missing) -> str:
    try:
        return "" if isinstance(text, Missing) else normal_address(text)
    except ValueError:
        return ""


def _ecc(read: GpuReader) -> Ecc | Missing:
    """Return the ECC modes and counters, or one Missing if none of them can be read and the reason is the same for all."""
    values: tuple[Any, ...] = (
        read.flag("ecc_mode.current", "ecc.mode_current"),
        read.flag("ecc_mode.pending", "ecc.mode_pending"),
        read.number("ecc.volatile_corrected", "ecc.volatile_corrected"),
        read.number("ecc.volatile_uncorrected", "ecc.volatile_uncorrected"),
        read.number("ecc.aggregate_corrected", "ecc.aggregate_corrected"),
        read.number("ecc.aggregate_uncorrected", "ecc.aggregate_uncorrected"),
        read.flag("sram.threshold_exceeded", "ecc.sram_threshold_exceeded"),
    )
    first = values[0]
    if isinstance(first, Missing) and all(v == first for v in values):
        return first
    return Ecc(
        mode_current=values[0],
        mode_pending=values[1],
        volatile_corrected=values[2],
        volatile_uncorrected=values[3],
        aggregate_corrected=values[4],
        aggregate_uncorrected=values[5],
        sram_threshold_exceeded=values[6],
    )


def _remap(read: GpuReader) -> RowRemap | Missing:
    corrected = read.number("remap.corrected", "remap.corrected")
    uncorrected = read.number("remap.uncorrected", "remap.uncorrected")
    pending = read.flag("remap.pending", "remap.pending")
    failed = read.flag("remap.failed", "remap.failed")
    for value in (corrected, uncorrected, pending, failed):
        if isinstance(value, Missing):
            return value
    histogram = read.items("remap.histogram", "remap.histogram")
    if isinstance(histogram, list) and not all(type(v) is int for v in histogram):
        histogram = unreadable("nvml: remap.histogram does not hold numbers")
    assert not isinstance(corrected, Missing) and not isinstance(uncorrected, Missing)  # noqa: S101  (narrows for mypy)
    return RowRemap(
        corrected=corrected,
        uncorrected=uncorrected,
        pending=pending is True,
        failed=failed is True,
        histogram=histogram if isinstance(histogram, Missing) else tuple(histogram),
    )


def _pcie(read: GpuReader) -> PcieLink | Missing:
    whole = read.value("pcie", "pcie")
    if isinstance(whole, Missing):
        return whole
    return PcieLink(
        gen_current=read.number("pcie.gen_current", "pcie.gen_current"),
        gen_max=read.number("pcie.gen_max", "pcie.gen_max"),
        width_current=read.number("pcie.width_current", "pcie.width_current"),
        width_max=read.number("pcie.width_max", "pcie.width_max"),
        replays=read.number("pcie.replays", "pcie.replays"),
    )


def _nvlinks(read: GpuReader) -> tuple[NvLink, ...] | Missing:
    links = read.items("nvlink", "nvlinks")
    if isinstance(links, Missing):
        return links
    if not links:
        return read.missing("nvlinks", 3)
    return tuple(_nvlink(i, link, read.missing) for i, link in enumerate(links))


def _nvlink(number: int, raw: Any, missing: Callable[[str, str | int], Missing]) -> NvLink:
    if not isinstance(raw, dict):
        return NvLink(link=number, active=missing("nvlinks", f"nvml: nvlink.{number} is no table"))
    if "error" in raw:
        code = raw["error"]
        whole = missing("nvlinks", code if type(code) is int else "nvml: error is no number")
        return NvLink(link=number, active=whole, **dict.fromkeys((*LINK_ERRORS, *RATES), whole))  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key in ("active", *LINK_ERRORS, "version"):
        value = raw.get(key)
        if type(value) is not int:
            code = value.get("error") if isinstance(value, dict) else None
            why = code if type(code) is int else f"nvml: nvlink.{number}.{key} is not a number"
            value = missing("nvlinks" if key == "active" else f"nvlinks.{key}", why)
        values[key] = value
    values |= {name: _rate(f"nvlink.{number}.{key}", raw[key], missing) for name, key in RATES.items() if key in raw}
    active = values.pop("active")
    remote = raw.get("remote", "")
    if isinstance(remote, dict) and type(remote.get("error")) is int:
        values["version"] = missing("nvlinks.version", remote["error"])
    return NvLink(
        link=number,
        active=active if isinstance(active, Missing) else active != 0,
        remote=remote if isinstance(remote, str) else "",
        **values,
    )


def _rate(path: str, code: object, missing: Callable[[str, str | int], Missing]) -> float | Missing:
    """Return the bit error rate that NVML packs into 12 bits: the mantissa in bits 8 to 11, the negative exponent of ten in bits
    0 to 7 (nvml.h, NVML_NVLINK_BER_*). A rate of 0 does not exist there: the least is 15e-255."""
    if isinstance(code, dict) and type(code.get("error")) is int:
        return missing("nvlinks", code["error"])
    if type(code) is not int or not 0 < code >> 8 < 16:
        return missing("nvlinks", f"nvml: {path} holds no rate")
    return float(f"{code >> 8}e-{code & 255}")


def _processes(read: GpuReader) -> tuple[GpuProcess, ...] | Missing:
    """Return the compute processes. ``used_bytes`` is -1 if the driver reports no value (NVML_VALUE_NOT_AVAILABLE)."""
    entries = read.items("processes", "processes")
    if isinstance(entries, Missing):
        return entries
    found = []
    for entry in entries:
        pid = entry.get("pid") if isinstance(entry, dict) else None
        if type(pid) is not int:
            return unreadable("nvml: processes holds an entry without a pid")
        used = entry.get("used_bytes")
        found.append(GpuProcess(pid, used if type(used) is int else -1))
    return tuple(found)
