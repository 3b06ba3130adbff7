"""Puts the figures of a fleet together for a period: incidents, availability, lost job time, MTTF, trend, lemons, early
warning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from fairlead.fleet import early_warning, incident_rates, lemons, score_card
from fairlead.fleet.availability import Availability, availability
from fairlead.fleet.early_warning import Distance
from fairlead.fleet.incident_rates import DAY_SECONDS, LostTime, Month, Mttf, Rate
from fairlead.fleet.incidents import Ended, FleetHistory, Incident, by_machine, history_of
from fairlead.fleet.job_exposure import FleetJob, JobExposure
from fairlead.fleet.lemons import Exposed, LemonList
from fairlead.fleet.machines import Fleet, FleetMachine, fleet_of
from fairlead.fleet.node_events import NodeOut, Whose
from fairlead.fleet.score_card import NodeWeek, ScoreCard
from fairlead.fleet.service_merge import joined
from fairlead.fleet.service_record import CLEAR, ServiceRecord, Span

WEEK_SECONDS = 7 * DAY_SECONDS
SCORE_WEEKS = 104
SIZES = (1, 4, 16, 64, 256, 1024)


class FleetInput(Struct, frozen=True, kw_only=True):
    """Holds what a report is made of, apart from jobs. events: None if Slurm's events are not known. owned: the nodes that Slurm
    has, or None if that is not known. groups: of a node, such as "switch leaf3". troubles: what could not be read."""

    records: tuple[ServiceRecord, ...]
    events: tuple[NodeOut, ...] | None = None
    owned: tuple[str, ...] | None = None
    groups: Mapping[str, tuple[str, ...]] = {}
    troubles: tuple[str, ...] = ()


class Timeframe(Struct, frozen=True, kw_only=True):
    """Holds the period and the months of the trend, each with name, begin and end in Unix time. now: when the report is made."""

    name: str
    begin_unix: float
    end_unix: float
    months: tuple[tuple[str, float, float], ...]
    now: float


class ClassFigures(Struct, frozen=True, kw_only=True):
    """Holds the figures of one class of nodes. rate: of all incidents over watched node-days. in_jobs: of incidents that began
    while a job was there, over allocated node-days. causes: by check."""

    name: str
    nodes: int
    rate: Rate
    in_jobs: Rate
    causes: tuple[Rate, ...]
    mttf: tuple[Mttf, ...]


class FleetReport(Struct, frozen=True, kw_only=True):
    """Holds all figures. jobs: how many runs were read. unrecorded: nodes that Slurm has and that gave no service record."""

    timeframe: Timeframe
    nodes: int
    unrecorded: tuple[str, ...]
    incidents: tuple[Incident, ...]
    touched: tuple[tuple[int, ...], ...]
    users: tuple[int, ...]
    classes: tuple[ClassFigures, ...]
    availability: Availability
    by_events: bool
    lost: LostTime
    jobs: int
    months: tuple[Month, ...]
    lemons: LemonList
    distances: tuple[Distance, ...]
    card: ScoreCard
    troubles: tuple[str, ...]


def report(found: FleetInput, jobs: Iterable[FleetJob], frame: Timeframe) -> FleetReport:
    """Return the report of a period."""
    fleet = fleet_of(found.records, found.events or (), frame.now)
    history = history_of(fleet, found.events or (), frame.now)
    end = min(frame.end_unix, frame.now)
    begin = min(frame.begin_unix, end - lemons.WINDOW_DAYS * DAY_SECONDS)
    exposure = JobExposure(history.incidents, begin, end)
    exposure.add(jobs)
    jobs_span, trouble = _jobs_span(exposure, begin, end)
    chosen = [n for n, i in enumerate(history.incidents) if frame.begin_unix <= i.begin_unix < end]
    recorded = {name for machine in fleet.machines for _, name in machine.names}
    made = lemons.lemons(_exposed(fleet, history, exposure, found.groups, jobs_span))
    return FleetReport(
        timeframe=frame,
        nodes=len(fleet.machines),
        unrecorded=tuple(sorted(set(found.owned or ()) - recorded)),
        incidents=tuple(history.incidents[n] for n in chosen),
        touched=tuple(tuple(sorted(exposure.touched[n])) for n in chosen),
        users=tuple(len(exposure.users[n]) for n in chosen),
        classes=tuple(_classes(fleet, history, exposure, (frame.begin_unix, end), jobs_span)),
        availability=_availability(found, fleet, history, frame.begin_unix, end),
        by_events=found.events is not None,
        lost=incident_rates.lost_time(exposure.lost, frame.begin_unix, end),
        jobs=exposure.jobs,
        months=tuple(_months(fleet, history, frame)),
        lemons=made,
        distances=tuple(_distances(fleet, end)),
        card=score_card.score_card(node_weeks(fleet, history, end)),
        troubles=(*found.troubles, *trouble, *fleet.troubles, *history.troubles),
    )


def _jobs_span(exposure: JobExposure, begin: float, end: float) -> tuple[Span, tuple[str, ...]]:
    """Return the time of which jobs are known. Outside of it, allocated time and touched jobs are not known, and never zero."""
    if not exposure.jobs:
        return (begin, begin), ("no job is known: figures over allocated time, lost jobs and lemons are left out",)
    first, last = max(begin, exposure.first_unix), min(end, exposure.last_unix)
    words = []
    if first > begin + DAY_SECONDS:
        days = (end - first) / DAY_SECONDS
        words.append(f"jobs are known only {days:.0f} days back: figures over allocated time begin there")
    if last < end - DAY_SECONDS:
        days = (end - last) / DAY_SECONDS
        words.append(f"jobs are missing for the last {days:.0f} days: figures over allocated time end there")
    return (first if first > begin + DAY_SECONDS else begin, last if last < end - DAY_SECONDS else end), tuple(words)


def _spans(machine: FleetMachine) -> tuple[Span, ...]:
    return joined(machine.record.watched)


def watched_days(machine: FleetMachine, begin: float, end: float) -> float:
    """Return the node-days in which an agent watched a machine between two times."""
    return sum(max(0.0, min(last, end) - max(first, begin)) for first, last in _spans(machine)) / DAY_SECONDS


def allocated_days(machine: FleetMachine, exposure: JobExposure, begin: float, end: float) -> float:
    """Return the node-days in which a machine had a job, under each of its names in its time."""
    total = 0.0
    for at, (since, name) in enumerate(machine.names):
        first = begin if at == 0 else max(begin, since)
        last = end if at + 1 == len(machine.names) else min(end, machine.names[at + 1][0])
        total += exposure.seconds(name, first, last) if first < last else 0.0
    return total / DAY_SECONDS


def _classes(fleet: Fleet, history: FleetHistory, exposure: JobExposure, period: Span, jobs_span: Span) -> list[ClassFigures]:
    begin, end = period
    first, last = max(begin, jobs_span[0]), min(end, jobs_span[1])
    keys = {machine.key for machine in fleet.machines}
    names = sorted({machine.record.node_class for machine in fleet.machines})
    found = []
    for name in names:
        of = [machine for machine in fleet.machines if machine.record.node_class == name]
        own = [
            n
            for n, i in enumerate(history.incidents)
            if begin <= i.begin_unix < end and i.machine in keys and i.node_class == name
        ]
        watched = sum(watched_days(machine, begin, end) for machine in of)
        allocated = sum(allocated_days(machine, exposure, first, last) for machine in of)
        incidents = [history.incidents[n] for n in own]
        touched = sum(bool(exposure.touched[n]) for n in own if first <= history.incidents[n].begin_unix < last)
        in_jobs = Rate(name="while a job was there", count=touched, node_days=allocated)
        every = incident_rates.rates(incidents, lambda i: "all", watched)
        found.append(
            ClassFigures(
                name=name or "unknown class",
                nodes=len(of),
                rate=every[0] if every else Rate(name="all", count=0, node_days=watched),
                in_jobs=in_jobs,
                causes=tuple(incident_rates.rates(incidents, lambda i: i.check, watched)),
                mttf=tuple(incident_rates.mttf(in_jobs, [n for n in SIZES if n <= len(of)])),
            )
        )
    return found


def _availability(found: FleetInput, fleet: Fleet, history: FleetHistory, begin: float, end: float) -> Availability:
    if found.events is not None:
        names = set(found.owned) if found.owned is not None else {machine.node for machine in fleet.machines}
        return availability(dict.fromkeys(names, ((begin, end),)), found.events, begin, end)
    return availability({machine.node: _spans(machine) for machine in fleet.machines}, history.outs, begin, end)


def _months(fleet: Fleet, history: FleetHistory, frame: Timeframe) -> list[Month]:
    keys = {machine.key for machine in fleet.machines}
    incidents = [i for i in history.incidents if i.machine in keys]

    def days(begin: float, end: float) -> float:
        return sum(watched_days(machine, begin, min(end, frame.now)) for machine in fleet.machines)

    def changes(begin: float, end: float) -> tuple[str, ...]:
        counts: dict[str, int] = {}
        for machine in fleet.machines:
            versions = machine.record.versions
            for before, after in pairwise(versions):
                if begin <= after.since_unix < end:
                    if before.driver != after.driver:
                        name = f"driver {before.driver or 'unknown'} to {after.driver or 'unknown'}"
                        counts[name] = counts.get(name, 0) + 1
                    if before.checks != after.checks:
                        name = f"check set {before.checks or 'unknown'} to {after.checks or 'unknown'}"
                        counts[name] = counts.get(name, 0) + 1
        return tuple(f"{name} on {count} nodes" for name, count in sorted(counts.items(), key=lambda c: (-c[1], c[0])))

    return [m for m in incident_rates.months(incidents, frame.months, days, changes) if m.rate.node_days > 0 or m.rate.count]


# -- lemons ----------------------------------------------------------------------------------------


def _exposed(
    fleet: Fleet, history: FleetHistory, exposure: JobExposure, groups: Mapping[str, tuple[str, ...]], jobs_span: Span
) -> list[Exposed]:
    end = jobs_span[1]
    begin = max(end - lemons.WINDOW_DAYS * DAY_SECONDS, jobs_span[0])
    of: dict[str, list[tuple[Incident, frozenset[str]]]] = {}
    for n, incident in enumerate(history.incidents):
        if begin <= incident.begin_unix < end:
            # a job that Slurm's accounting does not know still has a user, whom nobody knows
            users = frozenset(exposure.users[n]) or frozenset(f"job {job}" for job in incident.jobs)
            of.setdefault(incident.machine, []).append((incident, users))
    return [
        Exposed(
            machine=machine.key,
            node=machine.node,
            node_class=machine.record.node_class,
            node_days=allocated_days(machine, exposure, begin, end),
            incidents=tuple(of.get(machine.key, ())),
            groups=groups.get(machine.node, ()),
            driver_days=_driver_days(machine, exposure, begin, end),
        )
        for machine in fleet.machines
    ]


def _driver_days(machine: FleetMachine, exposure: JobExposure, begin: float, end: float) -> dict[str, float]:
    found: dict[str, float] = {}
    versions = machine.record.versions
    for at, each in enumerate(versions):
        first = max(begin, each.since_unix)
        last = versions[at + 1].since_unix if at + 1 < len(versions) else end
        if each.driver and first < min(last, end):
            days = allocated_days(machine, exposure, first, min(last, end))
            found[each.driver] = found.get(each.driver, 0.0) + days
    return found


# -- early warning ---------------------------------------------------------------------------------


def _distances(fleet: Fleet, end: float) -> list[Distance]:
    day = int(end // DAY_SECONDS)
    found = [d for m in fleet.machines if early_warning.possible(m.record.values) for d in _of(m, day)]
    return sorted(found, key=lambda d: (d.reaches_unix is None, d.reaches_unix or 0.0, -d.used, d.node, d.device))


def _of(machine: FleetMachine, day: int) -> list[Distance]:
    slots = {card.serial: card.pci for card in machine.record.cards}
    return [
        replace(d, device=f"{slots[d.device]} (card {d.device})" if d.device in slots else d.device)
        for d in early_warning.distances(machine.node, machine.record.values, day)
    ]


def node_weeks(fleet: Fleet, history: FleetHistory, end: float) -> list[NodeWeek]:
    """Return the weeks of each machine that an agent watched, up to ``end``, for the score card."""
    last = int(end // WEEK_SECONDS)
    of = by_machine(history.incidents)
    found = []
    for machine in fleet.machines:
        incidents = of.get(machine.key, [])
        spans = _spans(machine)
        if not spans:
            continue
        first = max(last - SCORE_WEEKS, int(spans[0][0] // WEEK_SECONDS) + 1)
        measured = early_warning.possible(machine.record.values)
        people = _people(machine, history)
        for week in range(first, last):
            begin = week * WEEK_SECONDS
            if not any(a <= begin < b for a, b in spans):
                continue
            if any(i.begin_unix < begin and (i.end_unix is None or i.end_unix > begin) for i in incidents):
                continue
            scores: dict[str, float] = {}
            if measured:
                for d in early_warning.distances(machine.node, machine.record.values, int(begin // DAY_SECONDS) - 1):
                    scores[d.signal] = max(scores.get(d.signal, 0.0), d.used)
            here = [i for i in incidents if begin <= i.begin_unix < begin + WEEK_SECONDS]
            found.append(
                NodeWeek(
                    node=machine.key,
                    week=week,
                    scores=scores,
                    incidents=sum(i.begin_unix < begin for i in incidents),
                    repaired_for=next((i.check for i in here if i.ended is Ended.CONFIRMED), ""),
                    acted=any(begin <= unix < begin + WEEK_SECONDS for unix in people),
                )
            )
    return found


def _people(machine: FleetMachine, history: FleetHistory) -> list[float]:
    """Return when people have drained or repaired a machine."""
    names = {name for _, name in machine.names}
    drains = [out.begin_unix for out in history.outs if out.node in names and out.whose is Whose.PERSON]
    return drains + [entry.unix for entry in machine.record.entries if entry.what == CLEAR]
