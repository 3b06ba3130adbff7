"""Makes the sections of ``fairlead report``: for each a title, its definition, rows and notes. Text and page show the same
sections.

A figure is printed with its count and its exposure. Where there are fewer incidents than a rate needs, the count and the exposure
stand alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from fairlead.cli.time_options import local
from fairlead.fleet import early_warning, incident_rates, job_exposure, lemons, score_card
from fairlead.fleet.exact_intervals import Interval
from fairlead.fleet.fleet_report import FleetReport
from fairlead.fleet.incident_rates import Rate
from fairlead.fleet.incidents import Ended, Incident

TOO_FEW = f"fewer than {incident_rates.COUNT_MIN}: no rate"
ROWS_MAX = 30
NOT_KNOWN = "not known"


class FleetSection(Struct, frozen=True, kw_only=True):
    """Holds one section. definition: what the figures mean. head: the names of the columns. notes: lines below the table."""

    title: str
    definition: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


def sections(report: FleetReport) -> list[FleetSection]:
    made: tuple[Callable[[FleetReport], FleetSection], ...] = (
        _by_class, _causes, _availability, _lost, _mttf, _trend, _lemons, _distances, _score, _incidents,
    )  # fmt: skip
    return [make(report) for make in made]


def span_words(report: FleetReport) -> str:
    frame = report.timeframe
    end = min(frame.end_unix, frame.now)
    cut = " (not over yet)" if frame.end_unix > frame.now else ""
    return f"{frame.name}: {local(frame.begin_unix)[:16]} to {local(end)[:16]}{cut}; {report.nodes} nodes with a service record"


def _by_class(report: FleetReport) -> FleetSection:
    rows = tuple(
        (figures.name, str(figures.nodes), *_rate_cells(figures.rate), _ended_words(figures.rate)) for figures in report.classes
    )
    notes = []
    if report.unrecorded:
        notes.append(f"{len(report.unrecorded)} nodes gave no service record and are in no rate: {_names(report.unrecorded)}")
    return FleetSection(
        title="Incidents by class",
        definition="An incident is one cause (check and device) on one node until the node has been back in service for a day."
        " The rate is per 1,000 node-days that an agent watched, with Garwood's 95 % interval. A class has one hardware profile.",
        head=("CLASS", "NODES", "INCIDENTS", "NODE-DAYS", "PER 1000", "95 %", "ENDED"),
        rows=rows,
        notes=tuple(notes),
    )


def _causes(report: FleetReport) -> FleetSection:
    rows = [(f.name, cause.name, *_rate_cells(cause), _ended_words(cause)) for f in report.classes for cause in f.causes]
    return FleetSection(
        title="Incidents by cause",
        definition="The cause is the check that drained the node; slurm: slurmctld alone noticed it (the node did not answer)."
        " confirmed: another card is in the slot, or a person named the replaced part in `fairlead clear`. unconfirmed: back in"
        " service without such proof.",
        head=("CLASS", "CAUSE", "INCIDENTS", "NODE-DAYS", "PER 1000", "95 %", "ENDED"),
        rows=tuple(rows[:ROWS_MAX]),
        notes=_more(len(rows)),
    )


def _incidents(report: FleetReport) -> FleetSection:
    rows = []
    for incident, jobs, users in zip(report.incidents, report.touched, report.users, strict=True):
        part = incident.device + (f" (card {incident.serial})" if incident.serial else "")
        times = f"{len(incident.times)} drains" if len(incident.times) > 1 else ""
        touched = f"{len(jobs)} of {users} user{'s' * (users != 1)}" if jobs else "none"
        rows.append((local(incident.begin_unix)[:16], incident.node, incident.check, part, times, touched, _end_words(incident)))
    return FleetSection(
        title="The incidents",
        definition="Jobs are those that were on the node when the incident began or came back, up to"
        f" {job_exposure.BEFORE_SECONDS / 60:.0f} minutes before and {job_exposure.AFTER_SECONDS / 60:.0f} minutes after.",
        head=("BEGAN", "NODE", "CHECK", "PART", "TIMES", "JOBS", "ENDED"),
        rows=tuple(rows[-ROWS_MAX:]),
        notes=_more(len(rows), "the newest are shown; --json has all"),
    )


def _availability(report: FleetReport) -> FleetSection:
    known = report.availability
    days = 86400.0
    rows = (
        ("of all owned node-time", _percent(known.of_owned), f"{known.owned_seconds / days:,.1f} node-days owned"),
        (
            "without planned maintenance",
            _percent(known.without_maintenance),
            f"{known.maintenance_seconds / days:,.2f} node-days of maintenance",
        ),
        (
            "without people's drains too",
            _percent(known.without_people),
            f"{known.person_seconds / days:,.2f} node-days by people",
        ),
        ("out of service for faults", "", f"{known.fault_seconds / days:,.2f} node-days"),
    )
    source = "Slurm's node events" if report.by_events else "the nodes' own records, which know of no node that is down"
    unwatched = f"{known.unwatched_seconds / days:,.1f} node-days that nobody watched are in no column"
    return FleetSection(
        title="Availability",
        definition=f"Node-time not down, drained or failed, over owned node-time; source: {source}. Each second counts once, for"
        " a fault, for maintenance (fairlead maintain, reservations), or for a person's drain.",
        head=("AVAILABILITY", "", "EXPOSURE"),
        rows=rows,
        notes=(unwatched,) if known.unwatched_seconds > 1 else (),
    )


def _lost(report: FleetReport) -> FleetSection:
    lost = report.lost
    if not report.jobs:
        return FleetSection(title="Job time lost", definition=LOST, notes=("no job is known",))
    row = (str(lost.runs), f"{lost.node_hours:,.1f}", f"{lost.gpu_hours:,.1f}", f"{report.jobs:,} runs read")
    notes = (
        [f"{lost.unexplained} of these runs ended as NODE_FAIL without an incident on their nodes"] if lost.unexplained else []
    )
    return FleetSection(
        title="Job time lost",
        definition=LOST,
        head=("RUNS LOST", "NODE-HOURS, AT LEAST", "GPU-HOURS, AT LEAST", "EXPOSURE"),
        rows=(row,),
        notes=tuple(notes),
    )


LOST = (
    "At least min(run time, 30 minutes) of each run that ended as NODE_FAIL, or as FAILED up to 5 minutes before or 10 after an"
    " incident on one of its nodes. What the application had to repeat beyond that is not known here."
)


def _mttf(report: FleetReport) -> FleetSection:
    rows: list[tuple[str, ...]] = []
    for figures in report.classes:
        exposure = f"{figures.in_jobs.count} incidents in {figures.in_jobs.node_days:,.0f} allocated node-days"
        for each in figures.mttf:
            ends = f"{_hours(each.interval.low)} to {_hours(each.interval.high)}"
            rows.append((figures.name, str(each.nodes), _hours(each.hours), ends, exposure))
        if not figures.mttf:
            rows.append((figures.name, "-", TOO_FEW, "", exposure))
    return FleetSection(
        title="MTTF of a job of N nodes",
        definition="1 / (N x rate) for one class, with the incidents that began while a job was on the node, over allocated"
        " node-days (a node with at least one job), with Garwood's 95 % interval.",
        head=("CLASS", "NODES", "MTTF", "95 %", "COUNT AND EXPOSURE"),
        rows=tuple(rows),
    )


def _trend(report: FleetReport) -> FleetSection:
    rows = [(month.name, *_rate_cells(month.rate), "; ".join(month.changes)) for month in report.months]
    return FleetSection(
        title="Trend by month",
        definition="All classes together. A new check or driver changes the rate that is seen, so changes are marked.",
        head=("MONTH", "INCIDENTS", "NODE-DAYS", "PER 1000", "95 %", "CHANGES"),
        rows=tuple(rows),
    )


def _lemons(report: FleetReport) -> FleetSection:
    found = report.lemons
    rows = [
        (
            each.node,
            f"{each.count} of {each.all_incidents}",
            f"{each.node_days:.0f}",
            f"{each.per_1000:.1f} ({each.interval.low:.1f} to {each.interval.high:.1f})",
            each.what,
        )
        for each in found.lemons
    ]
    notes = [
        f"expected by chance alone: {found.expected_false:.2f} of {found.nodes} nodes, and at most {found.most_false} in 19 of"
        f" 20 lists; the list has at most {found.budget}",
        f"exposure: {found.count} independent incidents in {found.node_days:,.0f} allocated node-days",
    ]
    if found.over_budget:
        notes.append(f"{found.over_budget} further nodes are as bad and not on the list: do they have something in common?")
    notes += [
        f"{group.name}: {group.count} incidents in {group.node_days:,.0f} node-days on {group.nodes} nodes,"
        f" {group.times:.1f} times the others (by chance: {group.chance:.1g})"
        for group in found.groups
    ]
    notes += [
        f"{event.name}: incidents on {len(event.nodes)} nodes within 10 minutes, {local(event.begin_unix)}: one event of the"
        " group, which counts for no node"
        for event in found.events[:5]
    ]
    notes += [f"card {card.serial}: {card.count} incidents in {', '.join(card.where[:4])}: the card" for card in found.cards[:5]]
    return FleetSection(
        title="Lemons",
        definition=f"Nodes with more incidents in {lemons.WINDOW_DAYS} days than chance explains, over allocated node-days."
        " Incidents of one user count once; of incidents without a job the same part counts. The rate is the mean of a"
        " Poisson-Gamma posterior per 1,000 node-days with its 95 % interval. This list only reports.",
        head=("NODE", "INCIDENTS", "NODE-DAYS", "PER 1000 (95 %)", "WHAT REPEATS"),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _distances(report: FleetReport) -> FleetSection:
    rows = [
        (each.node, each.device, each.signal, each.text, local(each.reaches_unix)[:10] if each.reaches_unix is not None else "-")
        for each in report.distances
    ]
    return FleetSection(
        title="Early warning",
        definition="Mechanical distances to a limit. The day is where the line through the last"
        f" {early_warning.WINDOW_DAYS} days reaches the limit. This is no probability of a failure.",
        head=("NODE", "PART", "SIGNAL", "DISTANCE", "REACHES THE LIMIT"),
        rows=tuple(rows[:ROWS_MAX]),
        notes=_more(len(rows)) if rows else ("no value moves towards its limit",),
    )


def _score(report: FleetReport) -> FleetSection:
    card = report.card
    notes = [
        f"exposure: {card.node_weeks:,} node-weeks in the newer {card.newer_weeks} of {card.weeks} weeks;"
        f" {card.repairs} incidents with a confirmed repair began there; {card.budget} alerts a week"
    ]
    rows: list[tuple[str, ...]] = []
    if not card.enough:
        notes.append(f"fewer than {score_card.REPAIRS_MIN} confirmed repairs: counts only")
    elif not card.better:
        notes.append("no better than counting incidents")
    shown = [card.counting, *([card.score] if card.better and card.score is not None else [])]
    for each in shown if card.enough else ():
        spans = [_range(interval) for interval in each.precision]
        rows.append((each.name, f"{each.hits} of {each.alerts}", *spans, f"{each.hits} of {each.repairs}", _range(each.recall)))
    if card.enough:
        rows.append(("random", f"{card.random_hits:.1f} of as many", "", "", "", "", ""))
    elif card.counting.alerts:
        notes.append(f"most incidents so far: {card.counting.hits} hits in {card.counting.alerts} alerts")
    return FleetSection(
        title="Score card of the early warning",
        definition="A hit is a named node-week in which an incident began that ended in a confirmed repair. The signal is chosen"
        " on the older half of the weeks and measured on the newer half. Precision with Wilson's 95 % interval: without weeks in"
        " which somebody acted on an earlier alert, with these as hits, and as misses.",
        head=("SCORE", "HITS", "PRECISION", "ACTED ON: HITS", "ACTED ON: MISSES", "RECALL", "95 %"),
        rows=tuple(rows),
        notes=tuple(notes),
    )


# -- words -----------------------------------------------------------------------------------------


def _rate_cells(rate: Rate) -> tuple[str, str, str, str]:
    interval = rate.interval
    if interval is None:
        return str(rate.count), f"{rate.node_days:,.0f}", TOO_FEW if rate.count < incident_rates.COUNT_MIN else NOT_KNOWN, ""
    return str(rate.count), f"{rate.node_days:,.0f}", f"{rate.per_1000:.2f}", f"{interval.low:.2f} to {interval.high:.2f}"


def _ended_words(rate: Rate) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(rate.ended.items(), key=lambda each: -each[1]))


def _end_words(incident: Incident) -> str:
    when = f" {local(incident.end_unix)[:16]}" if incident.end_unix is not None else ""
    word = incident.ended.value if incident.ended is not Ended.OPEN else "open"
    return f"{word}{when}" + (f": {incident.how}" if incident.how else "")


def _percent(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{100 * value:.2f} %"


def _range(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.low:.2f} to {interval.high:.2f}"


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} d"


def _more(count: int, how: str = "--json has all") -> tuple[str, ...]:
    return (f"{count - ROWS_MAX} more: {how}",) if count > ROWS_MAX else ()


def _names(nodes: tuple[str, ...]) -> str:
    from fairlead.model.nodelist import fold

    text = fold(nodes)
    return text if len(text) <= 120 else f"{text[:117]}..."


def causes_of(report: FleetReport) -> list[tuple[str, int]]:
    """Return how many incidents each cause has, over all classes, the most frequent first."""
    counts = Counter(incident.check for incident in report.incidents)
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))
