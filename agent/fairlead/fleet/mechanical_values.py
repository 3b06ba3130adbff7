"""Reads from a node's facts the values that wear out or are damaged slowly, for the service record and the early warning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fairlead.fleet.service_record import DAY_SECONDS, Point
from fairlead.model.device import device_of, readable_gpus
from fairlead.model.facts import Gpu, Missing, Node, NvLink, PcieLink, RowRemap
from fairlead.model.gpu_load import REASONS

ROWS, SPARE_BANKS, REPLAYS = "rows.uncorrected", "banks.used_spare_rows", "pcie.replays"
LANES, LANES_MAX, LINKS = "pcie.lanes", "pcie.lanes_max", "nvlink.active"
LOADED, SLOWED, CAP = "load.seconds", "load.slowed_seconds", "power.cap_watts"
LINK_ERRORS = "nvlink.errors"
#: The rates after correction of the worst NVLink of a GPU, from NVLink 5 on (NVML fields 220 and 222).
EFFECTIVE_BER, SYMBOL_BER = "nvlink.effective_ber", "nvlink.symbol_ber"
#: The rate before correction. The agent does not read it; a site may add it to recorded inputs. NVML's field for it (218) is
#: marked "do not use" in NVIDIA's binding, and its successor (293) is one of the fields whose numbers changed with the driver.
BER = "link.ber"
#: Values that say something new by any change. The others are sums, of which one value a week is enough.
DAILY = frozenset((ROWS, SPARE_BANKS, LANES, LANES_MAX, LINKS, CAP, BER, EFFECTIVE_BER, SYMBOL_BER))
#: Reasons by which hardware or heat slows the clocks. The power cap is not among them.
SLOWING = frozenset(("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"))
WEEK_DAYS = 7
KEEP_DAYS = 35


def values_of(node: Node) -> Iterator[tuple[str, str, float]]:
    """Yield (device, name, value) of each value that could be read."""
    for gpu in readable_gpus(node):
        for name, value in _of_gpu(gpu):
            if type(value) in (int, float):
                yield device_of(gpu), name, float(value)  # type: ignore[arg-type]


def _of_gpu(gpu: Gpu) -> Iterator[tuple[str, object]]:
    if isinstance(gpu.remap, RowRemap):
        yield ROWS, gpu.remap.uncorrected
        if not isinstance(gpu.remap.histogram, Missing):
            yield SPARE_BANKS, sum(gpu.remap.histogram[2:])
    if isinstance(gpu.pcie, PcieLink):
        yield from ((REPLAYS, gpu.pcie.replays), (LANES, gpu.pcie.width_current), (LANES_MAX, gpu.pcie.width_max))
    if not isinstance(gpu.nvlinks, Missing) and gpu.nvlinks and not any(isinstance(n.active, Missing) for n in gpu.nvlinks):
        yield LINKS, sum(bool(n.active) for n in gpu.nvlinks)
        errors = [count for link in gpu.nvlinks if (count := _link_errors(link)) is not None]
        if len(errors) == len(gpu.nvlinks):  # a sum without one of the links would seem to grow when that link can be read
            yield LINK_ERRORS, sum(errors)
        up = [link for link in gpu.nvlinks if link.active]
        yield EFFECTIVE_BER, _worst([link.effective_ber for link in up])
        yield SYMBOL_BER, _worst([link.symbol_ber for link in up])
    yield LOADED, gpu.load.seen.busy_seconds
    slow = [seconds for (_, name), seconds in zip(REASONS, gpu.load.seen.reasons_seconds, strict=True) if name in SLOWING]
    yield SLOWED, max(slow, default=0.0)  # one time may have several reasons
    yield CAP, gpu.power_limit_watts


def _worst(rates: Sequence[float | Missing]) -> float | None:
    """Return the highest rate; None if one is not known, because the worst link may be that one."""
    known = [rate for rate in rates if not isinstance(rate, Missing)]
    return max(known) if known and len(known) == len(rates) else None


def _link_errors(link: NvLink) -> int | None:
    """Return the errors after correction of NVLink 5, or the CRC errors and replays of older links; None if that is not known."""
    if not isinstance(link.effective_errors, Missing):
        return link.effective_errors
    if isinstance(link.crc_errors, Missing) or isinstance(link.replay_errors, Missing):
        return None
    return link.crc_errors + link.replay_errors


def with_values(
    known: Mapping[str, Mapping[str, tuple[Point, ...]]], new: Iterator[tuple[str, str, float]], unix: float
) -> dict[str, dict[str, tuple[Point, ...]]]:
    """Return the values with those of now: at most one a day of each, if it has changed, and one a week if not. Days to come are
    those of before the clock went back."""
    day = int(unix // DAY_SECONDS)
    found = {device: dict(of) for device, of in known.items()}
    for device, name, value in new:
        kept = [p for p in found.get(device, {}).get(name, ()) if p[0] >= day - KEEP_DAYS]
        points, later = [p for p in kept if p[0] <= day], [p for p in kept if p[0] > day]
        last = points[-1] if points else (-WEEK_DAYS, 0.0)
        if day - last[0] >= WEEK_DAYS or (day > last[0] and name in DAILY and value != last[1]):
            points.append((day, value))
        found.setdefault(device, {})[name] = (*points, *later)
    return {device: of for device, of in found.items() if any(points for points in of.values())}
