"""Makes an event of each node on the list of lemons (``fleet.lemons``), from the stores of `fairlead collect`."""

from __future__ import annotations

from fairlead.controller import fleet_folder, fleet_jobs
from fairlead.fleet import fleet_report, lemons
from fairlead.fleet.fleet_events import FleetEvent
from fairlead.fleet.fleet_report import Timeframe

DAY_SECONDS = 86400.0


def lemon_events(store: str, now: float) -> list[FleetEvent]:
    """Return the events. The time of each is that of the node's last incident, so that the same list gives the same events.
    Raises InputMissing, DataError, HostError."""
    begin = now - lemons.WINDOW_DAYS * DAY_SECONDS
    frame = Timeframe(name="lemons", begin_unix=begin, end_unix=now, months=(), now=now)
    report = fleet_report.report(fleet_folder.from_store(store), fleet_jobs.stored_jobs(store, begin - 30 * DAY_SECONDS), frame)
    last: dict[str, float] = {}
    for incident in report.incidents:
        last[incident.machine] = max(last.get(incident.machine, 0.0), incident.begin_unix)
    return [
        FleetEvent(
            kind="lemon",
            node=lemon.node,
            at_unix=last.get(lemon.machine, now),
            by="fairlead",
            cause="lemon",
            summary=f"{lemon.count} independent incidents in {lemons.WINDOW_DAYS} days; {lemon.what}",
            machine=lemon.machine,
        )
        for lemon in report.lemons.lemons
    ]
