"""States cost, energy and carbon of GPU time by the site's prices. A line that lacks a price or a factor is left out, with why.

Energy is the difference of the GPUs' energy counters: GPUs only, good to about 5 %. Carbon is a range: kWh x PUE x grid factor,
average and not marginal. Cost is GPU-hours x price: most of what an idle GPU costs is its price, not its energy.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET as NOT_SET
from msgspec import Meta, Struct, UnsetType

from fairlead.jobs.busy_definition import Ladder

JOULES_PER_KWH = 3.6e6
Day = Annotated[str, Meta(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?\Z")]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9 _.:/+-]{0,64}\Z")]
Price = Annotated[float, Meta(ge=0, le=1e6)]


class UsageOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds what a site declares in [usage] of site.toml. A value that is not set leaves its lines out of every report."""

    currency: Annotated[Name, Meta(description="The name of the money, such as EUR.")] = ""
    gpu_hour_price: Annotated[Price | UnsetType, Meta(description="The price of one GPU for one hour.")] = NOT_SET
    kwh_price: Annotated[Price | UnsetType, Meta(description="The price of one kWh.")] = NOT_SET
    pue: Annotated[
        Annotated[float, Meta(ge=1, le=5)] | UnsetType,
        Meta(description="The power usage effectiveness of the machine room: energy of the room over energy of the computers."),
    ] = NOT_SET
    pue_date: Annotated[Day, Meta(description="The day on which somebody measured the PUE, such as 2026-09-30.")] = ""
    grid_low_grams_per_kwh: Annotated[
        Annotated[float, Meta(ge=0, le=3000)] | UnsetType, Meta(description="The low end of the grid's carbon per kWh, in grams.")
    ] = NOT_SET
    grid_high_grams_per_kwh: Annotated[
        Annotated[float, Meta(ge=0, le=3000)] | UnsetType,
        Meta(description="The high end of the grid's carbon per kWh, in grams."),
    ] = NOT_SET
    grid_name: Annotated[Name, Meta(description="Whose figure the grid factor is, such as ENTSO-E DE 2026-Q3.")] = ""
    grid_date: Annotated[Day, Meta(description="The last day that the grid factor is valid for.")] = ""


class CostLine(Struct, frozen=True, kw_only=True):
    """Holds one line of a report. low and high are equal if the line is no range. left_out: why there is no value, or ""."""

    name: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    basis: str = ""
    left_out: str = ""


def cost_lines(sums: Ladder, options: UsageOptions) -> tuple[CostLine, ...]:
    """Return the lines of cost, energy and carbon for these sums."""
    hours = sums.allocated / 3600
    return (
        _priced("cost", hours, "gpu_hour_price", options, f"{hours:,.1f} GPU-hours"),
        _priced("cost of idle time", sums.zero / 3600, "gpu_hour_price", options, "GPU-hours at 0 %")
        if sums.seen
        else CostLine(name="cost of idle time", left_out="no record measured a GPU"),
        *_energy(sums, options),
    )


def _priced(name: str, amount: float, key: str, options: UsageOptions, basis: str) -> CostLine:
    """Return amount x price. ``key``: which price of the options."""
    price = getattr(options, key)
    if isinstance(price, UnsetType):
        return CostLine(name=name, left_out=f"usage.{key} is not set in site.toml")
    basis = f"{basis} x {price:g}" + ("" if options.currency else "; usage.currency is not set")
    return CostLine(name=name, unit=options.currency, low=amount * price, high=amount * price, basis=basis)


def _energy(sums: Ladder, options: UsageOptions) -> tuple[CostLine, ...]:
    if not sums.energy_seen:
        why = "no GPU gave the value of its energy counter (MIG devices have none)"
        return (CostLine(name="energy of GPUs", left_out=why),)
    kwh = sums.energy_joules / JOULES_PER_KWH
    part = min(1.0, sums.energy_seen / sums.allocated) if sums.allocated else 0.0
    counted = f"energy counters of the GPUs, over {part:.1%} of the allocated time"
    lines = [CostLine(name="energy of GPUs", unit="kWh", low=kwh, high=kwh, basis=counted)]
    lines.append(_priced("price of this energy", kwh, "kwh_price", options, f"{kwh:,.1f} kWh"))
    if isinstance(options.pue, UnsetType) or not options.pue_date:
        key = "pue" if isinstance(options.pue, UnsetType) else "pue_date"
        lines.append(CostLine(name="energy with the machine room", left_out=f"usage.{key} is not set in site.toml"))
        lines.append(CostLine(name="carbon", left_out=f"usage.{key} is not set in site.toml"))
        return tuple(lines)
    room = kwh * options.pue
    basis = f"PUE {options.pue:g} of {options.pue_date}; hosts and network are not measured"
    lines.append(CostLine(name="energy with the machine room", unit="kWh", low=room, high=room, basis=basis))
    lines.append(_carbon(room, options))
    return tuple(lines)


def _carbon(kwh: float, options: UsageOptions) -> CostLine:
    ends = [options.grid_low_grams_per_kwh, options.grid_high_grams_per_kwh]
    known = [value for value in ends if not isinstance(value, UnsetType)]
    if len(known) < 2 or not options.grid_date:
        key = "grid_date" if len(known) == 2 else "grid_low_grams_per_kwh or usage.grid_high_grams_per_kwh"
        return CostLine(name="carbon", left_out=f"usage.{key} is not set in site.toml")
    basis = f"PUE {options.pue:g} of {options.pue_date}; grid {options.grid_name or 'factor'} until {options.grid_date}, average"
    return CostLine(name="carbon", unit="kg", low=kwh * min(known) / 1000, high=kwh * max(known) / 1000, basis=basis)
