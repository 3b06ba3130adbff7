"""GPUs from NVML's answers in nvml.json form (the NVML worker's snapshot, or TREE/nvml.json). Pure conversion.

A value NVML could not give is ``{"error": CODE}`` with CODE an nvmlReturn_t. Only the hardware profile's
``unsupported`` makes that Missing(UNSUPPORTED); all else is Missing(UNREADABLE). Anything malformed is Missing too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from fairlead.host import gpu_details, gpu_health, gpu_load, gpu_state
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
    Why,
    unreadable,
)

GPU_IS_LOST = 15
Parts = Mapping[str, Any]  # a GPU's part of nvml.json, or some of it
LINK_ERRORS = tuple(name for name in NvLink.__struct_fields__ if name not in ("link", "active", "remote", "version"))
# nvml.h, nvmlReturn_t
RETURN_NAMES = {
    1: "UNINITIALIZED", 2: "INVALID_ARGUMENT", 3: "NOT_SUPPORTED", 4: "NO_PERMISSION", 5: "ALREADY_INITIALIZED",
    6: "NOT_FOUND", 7: "INSUFFICIENT_SIZE", 8: "INSUFFICIENT_POWER", 9: "DRIVER_NOT_LOADED", 10: "TIMEOUT",
    11: "IRQ_ISSUE", 12: "LIBRARY_NOT_FOUND", 13: "FUNCTION_NOT_FOUND", 14: "CORRUPTED_INFOROM", 15: "GPU_IS_LOST",
    16: "RESET_REQUIRED", 17: "OPERATING_SYSTEM", 18: "LIB_RM_VERSION_MISMATCH", 19: "IN_USE", 20: "MEMORY",
    21: "NO_DATA", 22: "VGPU_ECC_NOT_SUPPORTED", 23: "INSUFFICIENT_RESOURCES", 24: "FREQ_NOT_SUPPORTED",
    25: "ARGUMENT_VERSION_MISMATCH", 26: "DEPRECATED", 27: "NOT_READY", 28: "GPU_NOT_FOUND", 29: "INVALID_STATE",
    999: "UNKNOWN",
}  # fmt: skip


def return_text(code: int) -> str:
    """ "NVML NOT_SUPPORTED (3)"."""
    return f"NVML {RETURN_NAMES.get(code, 'ERROR')} ({code})"


class Reader:
    """Typed values out of one GPU's part of nvml.json."""

    __slots__ = ("_unsupported", "raw")

    def __init__(self, raw: Mapping[str, Any], unsupported: frozenset[str] = frozenset()) -> None:
        self.raw = raw
        self._unsupported = unsupported

    def missing(self, field: str, why: str | int) -> Missing:
        """Missing for a field of Gpu (dotted); ``why`` is an NVML return code or a sentence."""
        if isinstance(why, int):
            group = field.partition(".")[0]
            declared = field in self._unsupported or group in self._unsupported
            return Missing(Why.UNSUPPORTED if declared and why != GPU_IS_LOST else Why.UNREADABLE, return_text(why))
        return unreadable(why)

    def look(self, path: str, field: str) -> Any:
        """What is at a dotted path of nvml.json, or Missing."""
        value: Any = self.raw
        for key in path.split("."):
            if not isinstance(value, dict):
                return self.missing(field, f"nvml: {path} is not there")
            if "error" in value:
                break
            if key not in value:
                return self.missing(field, f"nvml: {path} is not there")
            value = value[key]
        if isinstance(value, dict) and "error" in value:
            code = value["error"]
            return self.missing(field, code if type(code) is int else f"nvml: {path}: error is no number")
        return value

    def number(self, path: str, field: str) -> int | Missing:
        value = self.look(path, field)
        if isinstance(value, Missing) or type(value) is int:
            return value
        if isinstance(value, bool):
            return int(value)
        return self.missing(field, f"nvml: {path} is {type(value).__name__}, not a number")

    def flag(self, path: str, field: str) -> bool | Missing:
        value = self.number(path, field)
        return value if isinstance(value, Missing) else value != 0

    def text(self, path: str, field: str) -> str | Missing:
        value = self.look(path, field)
        if isinstance(value, Missing) or (isinstance(value, str) and value):
            return value
        return self.missing(field, f"nvml: {path} is {'empty' if value == '' else type(value).__name__}")

    def watts(self, path: str, field: str) -> float | Missing:
        value = self.number(path, field)
        return value if isinstance(value, Missing) else value / 1000

    def items(self, path: str, field: str) -> list[Any] | Missing:
        value = self.look(path, field)
        return value if isinstance(value, (list, Missing)) else self.missing(field, f"nvml: {path} is not a list")


class Converter:
    """Converts one snapshot after another. Most parts of a GPU say the same as a second ago:
    those are not made anew, nor is a GPU of which all do."""

    def __init__(self, unsupported: Sequence[str] = ()) -> None:
        self._unsupported = frozenset(unsupported)
        self._seen: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._whole: dict[int, tuple[Mapping[str, Any], Gpu]] = {}

    def gpus(self, raw: Mapping[str, Any] | Missing | None) -> tuple[Gpu, ...] | Missing:
        """All GPUs that NVML lists, lost ones included."""
        entries = _entries(raw)
        return entries if isinstance(entries, Missing) else tuple(self._gpu(e, i) for i, e in enumerate(entries))

    def _part(self, position: int, new: Parts | None, read: Reader, make: Callable[[Reader], Any], *parts: str) -> Any:
        """What ``make`` makes of these parts, and made of them before if they say the same. new: what may say something else
        than before; None: all."""
        seen = self._seen.get((position, parts[0]))
        if seen is not None and new is not None and _heads(parts).isdisjoint(new):
            return seen[1]
        now = [_said(read.raw, p) for p in parts]
        if seen is not None and seen[0] == now:
            return seen[1]
        made = make(read)
        self._seen[position, parts[0]] = (now, made)
        return made

    def _gpu(self, raw: Mapping[str, Any], position: int) -> Gpu:
        before, gpu = self._whole.get(position, (None, None))
        if gpu is not None and before == raw:
            return gpu
        # what has not changed says as little of a loss as it did
        alike = gpu is not None and not gpu.lost and before is not None and before.keys() == raw.keys()
        new = {k: v for k, v in raw.items() if before[k] is not v} if alike and before else None
        part = partial(self._part, position, new, Reader(raw, self._unsupported))
        gpu = self._made(position, part, lost=is_lost(raw if new is None else new))
        self._whole[position] = (dict(raw), gpu)
        return gpu

    def _made(self, position: int, part: Callable[..., Any], *, lost: bool) -> Gpu:
        return Gpu(
            **part(partial(_still, position), *_STILL),
            **part(_vital, *_VITAL),
            lost=lost,
            ecc=part(_ecc, "ecc", "ecc_mode", "sram"),
            remap=part(_remap, "remap"),
            pcie=part(_pcie, "pcie"),
            nvlinks=part(_nvlinks, "nvlink"),
            clock_sm_hertz=part(_clock, "clocks.sm_hertz"),
            throttle_reasons=part(_throttle, "throttle_reasons"),
            utilization_percent=part(_busy, "utilization.gpu_percent"),
            processes=part(_processes, "processes"),
            retired=part(gpu_health.retired, "retired_pages"),
            details=part(gpu_details.details, *gpu_details.PARTS),
            state=part(gpu_state.state, *gpu_state.PARTS),
            load=part(gpu_load.load, *gpu_load.PARTS),
        )


@lru_cache
def _heads(parts: tuple[str, ...]) -> frozenset[str]:
    return frozenset(part.partition(".")[0] for part in parts)


def _said(raw: Mapping[str, Any], part: str) -> Any:
    """A part of nvml.json, or one value of it; all of the part where that is an error as a whole."""
    head, _, key = part.partition(".")
    value = raw.get(head)
    return value.get(key) if key and isinstance(value, dict) and "error" not in value else value


_STILL = (
    "index", "pci", "uuid", "serial", "minor", "name", "persistence_mode", "mig_mode", "recovery_action", "inforom_valid",
)  # fmt: skip


_VITAL = ("memory", "temperature.gpu_celsius", "power.draw_milliwatts", "power.limit_milliwatts", "performance_state")


def _vital(read: Reader) -> dict[str, Any]:
    """What every GPU can say."""
    return {
        "memory_total_bytes": read.number("memory.total_bytes", "memory_total_bytes"),
        "memory_used_bytes": read.number("memory.used_bytes", "memory_used_bytes"),
        "temperature_celsius": read.number("temperature.gpu_celsius", "temperature_celsius"),
        "power_draw_watts": read.watts("power.draw_milliwatts", "power_draw_watts"),
        "power_limit_watts": read.watts("power.limit_milliwatts", "power_limit_watts"),
        "performance_state": read.number("performance_state", "performance_state"),
    }


def _clock(read: Reader) -> int | Missing:
    return read.number("clocks.sm_hertz", "clock_sm_hertz")


def _throttle(read: Reader) -> int | Missing:
    return read.number("throttle_reasons", "throttle_reasons")


def _busy(read: Reader) -> int | Missing:
    return read.number("utilization.gpu_percent", "utilization_percent")


def _still(position: int, read: Reader) -> dict[str, Any]:
    """The facts of a GPU that a fault or a person changes, not its work."""
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
        "inforom_valid": gpu_health.inforom_valid(read),
    }


def gpus(raw: Mapping[str, Any] | Missing | None, unsupported: Sequence[str] = ()) -> tuple[Gpu, ...] | Missing:
    """All GPUs of one snapshot. ``unsupported``: dotted Gpu fields the profile excuses."""
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
    """The driver's versions: ``module_version`` as the kernel says it, the rest as NVML does."""
    if raw is None:
        raw = unreadable("NVML was not asked")
    if isinstance(raw, Missing):
        return Driver(module_version=module_version, library_version=raw, nvml_version=raw, cuda_version=raw)
    read = Reader(raw)
    code = raw.get("error")
    return Driver(
        module_version=module_version,
        library_version=read.text("driver_version", "driver_version"),
        nvml_version=read.text("nvml_version", "nvml_version"),
        cuda_version=read.number("cuda_driver_version", "cuda_driver_version"),
        init_code=code if type(code) is int else 0,
    )


def is_lost(raw: Mapping[str, Any]) -> bool:
    """Whether any of the answers about this GPU was GPU_IS_LOST."""
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


def _ecc(read: Reader) -> Ecc | Missing:
    """Missing as a whole only when nothing of it can be read, for one reason."""
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


def _remap(read: Reader) -> RowRemap | Missing:
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


def _pcie(read: Reader) -> PcieLink | Missing:
    whole = read.look("pcie", "pcie")
    if isinstance(whole, Missing):
        return whole
    return PcieLink(
        gen_current=read.number("pcie.gen_current", "pcie.gen_current"),
        gen_max=read.number("pcie.gen_max", "pcie.gen_max"),
        width_current=read.number("pcie.width_current", "pcie.width_current"),
        width_max=read.number("pcie.width_max", "pcie.width_max"),
        replays=read.number("pcie.replays", "pcie.replays"),
    )


def _nvlinks(read: Reader) -> tuple[NvLink, ...] | Missing:
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
        return NvLink(link=number, active=whole, **dict.fromkeys(LINK_ERRORS, whole))  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key in ("active", *LINK_ERRORS, "version"):
        value = raw.get(key)
        if type(value) is not int:
            code = value.get("error") if isinstance(value, dict) else None
            why = code if type(code) is int else f"nvml: nvlink.{number}.{key} is not a number"
            value = missing("nvlinks" if key == "active" else f"nvlinks.{key}", why)
        values[key] = value
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


def _processes(read: Reader) -> tuple[GpuProcess, ...] | Missing:
    """Compute processes; used_bytes -1 where the driver does not say (NVML_VALUE_NOT_AVAILABLE)."""
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
