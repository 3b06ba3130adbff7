"""A year of a simulated fleet: jobs, incidents at realistic rates, planted lemons, a bad leaf switch, a bad driver, a bad user,
and an event that hits all nodes of a leaf switch at once.

The rates are those that were published for GPU clusters (2.3 to 6.5 incidents per 1,000 node-days). Every choice comes from one
seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from fairlead.fleet.fleet_report import Timeframe
from fairlead.fleet.incidents import Ended, Incident
from fairlead.fleet.job_exposure import FleetJob
from fairlead.fleet.lemons import WINDOW_DAYS, Exposed
from fairlead.fleet.service_record import CardSeen, ServiceEntry, ServiceRecord, VersionSeen

BEGIN = 1_761_955_200.0  # 2025-11-01
DAY = 86400.0
DAYS = 365
RATE = 3.5e-3  # incidents of a healthy node by allocated day
BUSY = 0.8  # the part of the time in which a node has a job
OLD, NEW = "570.86.15", "580.11.02"
CHECKS = ("xid", "xid", "xid", "nvlink", "pcie_link", "row_remap", "gpu_count", "ecc", "rdma_ports")


@dataclass(frozen=True)
class Planted:
    """What is wrong: from a day on these nodes fail so many times as often. slot: the GPU that always fails, or None."""

    name: str
    nodes: tuple[int, ...]
    times: float
    from_day: int
    slot: int | None = None


@dataclass
class Year:
    """What happened. incidents: with the users whose jobs each one touched."""

    nodes: int
    leaf_nodes: int
    driver_day: int | None
    incidents: list[tuple[int, Incident, frozenset[str]]] = field(default_factory=list)

    def name(self, node: int) -> str:
        return f"gpu{node + 1:04d}"

    def leaf(self, node: int) -> str:
        return f"switch leaf{node // self.leaf_nodes + 1:02d}"

    def driver(self, node: int, day: float) -> str:
        """Half of the leaves get the new driver."""
        new = self.driver_day is not None and day >= self.driver_day and node // self.leaf_nodes % 2 == 1
        return NEW if new else OLD

    def exposed(self, day: float, nodes_of: list[int] | None = None) -> list[Exposed]:
        """What is known at the end of a day. nodes_of: another node for each incident."""
        begin = day - WINDOW_DAYS
        of: dict[int, list[tuple[Incident, frozenset[str]]]] = {}
        for number, (node, incident, users) in enumerate(self.incidents):
            if BEGIN + begin * DAY <= incident.begin_unix < BEGIN + day * DAY:
                of.setdefault(node if nodes_of is None else nodes_of[number], []).append((incident, users))
        found = []
        for node in range(self.nodes):
            days = BUSY * (day - max(0.0, begin))
            new = BUSY * max(0.0, day - max(begin, self.driver_day or 0)) if self.driver(node, day) == NEW else 0.0
            found.append(
                Exposed(
                    machine=self.name(node),
                    node=self.name(node),
                    node_class="hgx-h100",
                    node_days=days,
                    incidents=tuple(of.get(node, ())),
                    groups=(self.leaf(node),),
                    driver_days={OLD: days - new, **({NEW: new} if new else {})},
                )
            )
        return found


def year(
    nodes: int,
    planted: tuple[Planted, ...] = (),
    *,
    seed: int = 1,
    rate: float = RATE,
    driver_day: int | None = None,
    driver_times: float = 3.0,
    bad_user: bool = True,
    leaf_nodes: int = 16,
    event: tuple[int, int] | None = None,
) -> Year:
    """Make a year. event: a leaf and a day."""
    chance = random.Random(seed)
    made = Year(nodes, leaf_nodes, driver_day)
    users = [f"user{n:02d}" for n in range(40)]
    for node in range(nodes):
        for day in range(DAYS):
            here = [p for p in planted if node in p.nodes and day >= p.from_day]
            times = max((p.times for p in here), default=1.0)
            times *= driver_times if made.driver(node, day) == NEW else 1.0
            if chance.random() < rate * times * BUSY:
                slot = next((p.slot for p in here if p.slot is not None), chance.randrange(8))
                made.incidents.append(_incident(made, (node, day, slot), chance, frozenset([chance.choice(users)])))
    if bad_user:  # one user's program breaks a few nodes again and again
        for node in chance.sample(range(nodes), 4):
            for _ in range(12):
                day = chance.randrange(200, 230)
                made.incidents.append(_incident(made, (node, day, 0), chance, frozenset(["user99"])))
    if event is not None:
        leaf, day = event
        begin = BEGIN + (day + chance.random()) * DAY
        for node in range(leaf * leaf_nodes, (leaf + 1) * leaf_nodes):
            _, incident, users_of = _incident(made, (node, day, 0), chance, frozenset([chance.choice(users)]))
            made.incidents.append((node, replace(incident, begin_unix=begin + chance.random() * 300), users_of))
    made.incidents.sort(key=lambda each: each[1].begin_unix)
    return made


def _incident(
    made: Year, at: tuple[int, int, int], chance: random.Random, users: frozenset[str]
) -> tuple[int, Incident, frozenset[str]]:
    node, day, slot = at
    begin = BEGIN + (day + chance.random()) * DAY
    confirmed = chance.random() < 0.3
    incident = Incident(
        node=made.name(node),
        machine=made.name(node),
        node_class="hgx-h100",
        check=chance.choice(CHECKS),
        begin_unix=begin,
        end_unix=begin + chance.choice((1800, 7200, 86400)),
        device=f"0000:{slot:02x}:00.0",
        serial=f"{node:05d}{slot}",
        times=(begin,),
        ended=Ended.CONFIRMED if confirmed else Ended.UNCONFIRMED,
        driver=made.driver(node, day),
    )
    return node, incident, users if chance.random() < BUSY else frozenset()


# -- the same year as records and jobs -----------------------------------------------------------------


def records(made: Year, months: int = 12) -> Iterator[ServiceRecord]:
    """The service records that the nodes would have sent: one each month, complete for 30 days."""
    of: dict[int, list[Incident]] = {}
    for node, incident, _ in made.incidents:
        of.setdefault(node, []).append(incident)
    for node in range(made.nodes):
        entries = [e for number, i in enumerate(of.get(node, [])) for e in _entries(node, number, i)]
        cards = tuple(CardSeen(pci=f"0000:{s:02x}:00.0", serial=f"{node:05d}{s}", since_unix=BEGIN) for s in range(8))
        versions = [VersionSeen(since_unix=BEGIN, driver=OLD, agent_version="0.2.0", checks="1f2e3d4c")]
        if made.driver_day is not None and made.driver(node, DAYS) == NEW:
            versions.append(
                VersionSeen(since_unix=BEGIN + made.driver_day * DAY, driver=NEW, agent_version="0.2.0", checks="1f2e3d4c")
            )
        for month in range(months):
            begin, end = BEGIN + month * 30.4 * DAY, BEGIN + min(DAYS, (month + 1) * 30.4 + 1) * DAY
            yield ServiceRecord(
                node=made.name(node),
                machine=f"machine-{node}",
                node_class="hgx-h100",
                written_unix=end,
                watched=((begin, end),),
                versions=tuple(v for v in versions if v.since_unix <= end),
                cards=cards,
                entries=tuple(e for e in entries if begin <= e.unix < end),
                values=_values(node, begin, end),
            )


def _entries(node: int, number: int, incident: Incident) -> Iterator[ServiceEntry]:
    reason = f"fairlead:{incident.check}:{node:05x}{number:07x} made on GPU {incident.device}"
    args = {
        "reason": reason,
        "findings": f"{incident.check}/{incident.device}",
        "serials": f"{incident.device}={incident.serial}",
    }
    end = incident.end_unix or incident.begin_unix
    yield ServiceEntry(unix=incident.begin_unix, id=f"d{node}-{number}", what="drained", who="agent", args=args)
    if incident.ended is Ended.CONFIRMED:
        words = {"devices": incident.device}
        yield ServiceEntry(unix=end - 60, id=f"c{node}-{number}", what="clear", who="ada", args=words, why="GPU replaced")
    yield ServiceEntry(unix=end, id=f"r{node}-{number}", what="resumed", who="agent", args={"reason": reason})


def _values(node: int, begin: float, end: float) -> dict[str, dict[str, tuple[tuple[int, float], ...]]]:
    weeks = range(int(begin // DAY), int(end // DAY), 7)
    found: dict[str, dict[str, tuple[tuple[int, float], ...]]] = {}
    for slot in range(8):
        found[f"{node:05d}{slot}"] = {
            # one node of twenty has a card whose rows are remapped
            "rows.uncorrected": tuple(
                (day, float((day - BEGIN // DAY) // 7 if node % 20 == 7 and slot == 0 else 0)) for day in weeks
            ),
            "pcie.replays": tuple((day, 0.0) for day in weeks),
            "pcie.lanes": tuple((day, 16.0) for day in weeks),
            "pcie.lanes_max": tuple((day, 16.0) for day in weeks),
            "load.seconds": tuple((day, (day - BEGIN / DAY) * 6e4) for day in weeks),
            "load.slowed_seconds": tuple((day, 0.0) for day in weeks),
            "power.cap_watts": tuple((day, 700.0) for day in weeks),
        }
    return found


def jobs(made: Year, *, seed: int = 2, hours: float = 8.0) -> Iterator[FleetJob]:
    """Jobs of one to 32 nodes, ``hours`` long on average, that keep each node busy for ``BUSY`` of the time. A job that an
    incident touched is of a user of that incident, and half of these jobs fail."""
    chance = random.Random(seed)
    hits: dict[int, list[tuple[float, str]]] = {}
    for node, incident, users in made.incidents:
        for user in users:
            hits.setdefault(node, []).append((incident.begin_unix, user))
    number = 0
    at = 0
    while at < made.nodes:
        size = min(chance.choice((1, 1, 1, 1, 2, 2, 4, 8, 16, 32)), made.nodes - at)
        group = tuple(range(at, at + size))
        known = sorted(h for node in group for h in hits.get(node, ()))
        now = BEGIN + chance.random() * 3600
        while now < BEGIN + DAYS * DAY:
            long = chance.expovariate(1 / (hours * 3600)) + 60
            end = min(now + long, BEGIN + DAYS * DAY)
            hit = next((h for h in known if now <= h[0] < end), None)
            number += 1
            user = hit[1] if hit is not None else f"user{chance.randrange(40):02d}"
            state = "COMPLETED"
            if hit is not None and chance.random() < 0.5:
                end, state = hit[0] + 30, chance.choice(("NODE_FAIL", "FAILED"))
            names = tuple(made.name(node) for node in group)
            yield FleetJob(job=number, user=user, state=state, nodes=names, begin_unix=now, end_unix=end, gpus=8 * size)
            now = end + long * (1 - BUSY) / BUSY
        at += size


def frame(begin_day: float, end_day: float) -> Timeframe:
    months = tuple((f"month {n + 1}", BEGIN + n * 30.4 * DAY, BEGIN + (n + 1) * 30.4 * DAY) for n in range(12))
    return Timeframe(
        name="made", begin_unix=BEGIN + begin_day * DAY, end_unix=BEGIN + end_day * DAY, months=months, now=BEGIN + DAYS * DAY
    )
