"""Writes the notes on a job as text: a line of cost, a line of carbon, the advice, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairlead.jobs.advice import Advice
from fairlead.jobs.cost_and_energy import CostLine
from fairlead.jobs.job_notes import JobNotes
from fairlead.model.plain_text import printable

#: The lines of cost in a job's report, and whether the way they were computed is shown. --json has the others too.
_SHOWN = {"cost": True, "cost of idle time": False, "price of this energy": True}


def notes_text(notes: JobNotes) -> list[str]:
    """Return the lines to follow a job's report. All text comes from fairlead or from the site's own file."""
    known = {line.name: line for line in notes.costs if not line.left_out}
    prices = "   ".join(_cost(known[name], basis) for name, basis in _SHOWN.items() if name in known)
    out = [prices, _cost(known["carbon"], True) if "carbon" in known else "", *_left_out(notes.costs)]
    out += [line for each in notes.advice for line in _advice(each)]
    return [f"  {printable(line)}" for line in (*out, *(f"left out: {why}" for why in notes.left_out)) if line]


def _cost(line: CostLine, basis: bool) -> str:
    low, high = _amount(line.low or 0.0), _amount(line.high or 0.0)
    value = low if low == high else f"{low} to {high}"
    return f"{line.name} {value} {line.unit}".rstrip() + (f" ({line.basis})" if basis else "")


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _left_out(costs: Sequence[CostLine]) -> Iterator[str]:
    """Yield the names of lines without a value, one line for each reason."""
    names: dict[str, list[str]] = {}
    for line in costs:
        if line.left_out:
            names.setdefault(line.left_out, []).append(line.name)
    for why, of_why in names.items():
        yield f"left out: {', '.join(of_why)}: {why}"


def _advice(each: Advice) -> Iterator[str]:
    yield f"advice: {each.evidence} ({each.rule}: {each.threshold}); {each.text}"
    for found in each.not_counted[:4]:
        where = f" {found.pci}" if found.pci else ""
        yield f"not counted against you: {found.check} ({found.level}) on {found.node}{where} while the job ran"
