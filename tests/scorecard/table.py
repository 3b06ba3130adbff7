"""The scorecard's results as a text table, as JSON and as the page docs/reference/scorecard.md."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Sequence
from typing import Any

from fairlead import __version__, checks
from fairlead.model.finding import Mode
from tests.scorecard.entry import Fault
from tests.scorecard.faults import load
from tests.scorecard.peers import LATE, Peer, PeerSeen
from tests.scorecard.play import Seen

WORDS = (
    "Each row is one fault that the test put into a running simulated node. The node has an HGX H100 machine tree as its /sys",
    "and /proc, the simulated NVML library, a kernel log, the real agent and a real slurmctld. *finding* is the time from the",
    "last change to the node until the agent's status shows the finding. *drain* is the time from that change until slurmctld",
    "has accepted the drain and the verdict is `drain`. For the test all checks and settings are in mode `enforce`, the",
    "strictest policy. *by default* says what the finding does in the check's default mode: it drains the node, or fairlead",
    "only reports it. The *twin* is the same signal in a state where it is normal. *reported* means that the agent has to",
    "show a finding about the twin (such as a job's own Xid) and must not drain the node. Faults that need minutes (a",
    "fraction of the time under load) run on clocks that are 40 times as fast, and so do twins. The table gives their times",
    "in the node's time.",
)
Peers = Sequence[tuple[Peer, dict[str, PeerSeen]]]


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def by_default(fault: Fault) -> str:
    """What the finding does under the check's own mode."""
    if fault.level != "drain":
        return "warns" if fault.level == "warn" else "unknown"
    loaded = checks.load()
    enforced = fault.check in loaded and loaded[fault.check].mode is Mode.ENFORCE
    return "drains" if enforced else "reports"


def fault_word(seen: Seen) -> str:
    if seen.broken:
        return "not run"
    if seen.found is None:
        return "MISSED"
    if seen.fault.level == "drain" and seen.drained is None:
        return "found, NO DRAIN"
    return "flaps" if seen.flaps else {"drain": "drain", "warn": "warning", "unknown": "unknown"}[seen.fault.level]


def twin_word(seen: Seen) -> str:
    if seen.twin_drained:
        return "FALSE DRAIN"
    return "noise" if seen.noise else "reported, no drain" if seen.twin_said else "quiet"


def peer_word(seen: PeerSeen | None) -> str:
    if seen is None:
        return ""
    if not seen.shown:
        return f"n/a ({seen.why})"
    alarm = " +FALSE ALARM" if seen.twin_found else ""
    if seen.said == LATE:
        return f"did not end in {seconds(seen.seconds)}" + alarm
    return (f"found, {seconds(seen.seconds)}" if seen.found else "missed") + alarm


def text(rows: Sequence[Seen], peers: Peers) -> str:
    """What is printed at the end."""
    present = [(p, found) for p, found in peers if p.program]
    cells = [("fault", "check", "fairlead", "finding", "drain", "by default", "twin", *(p.name for p, _ in present))]
    for seen in rows:
        found = (peer_word(results.get(seen.fault.name)) for _, results in present)
        cells.append(
            (seen.fault.title, seen.fault.check, fault_word(seen), seconds(seen.found), seconds(seen.drained),
             by_default(seen.fault), twin_word(seen), *found)
        )  # fmt: skip
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    lines += ["", *summary(rows, peers)]
    return "\n".join(lines)


def summary(rows: Sequence[Seen], peers: Peers) -> list[str]:
    """The figures of all rows together, one line each contestant."""
    missed = [s for s in rows if s.missed]
    drained = [s.drained for s in rows if s.drained is not None]
    found = [s.found for s in rows if s.found is not None]
    out = [
        f"fairlead {__version__}: {len(rows) - len(missed)} of {len(rows)} faults detected, {len(missed)} missed,"
        f" {sum(bool(s.twin_drained) for s in rows)} false drains of {len(rows)} twins, {sum(bool(s.noise) for s in rows)} twins"
        f" with noise, {sum(bool(s.flaps) for s in rows)} flaps",
    ]
    if found:
        out.append(
            f"fairlead {__version__}: finding after {seconds(statistics.median(found))} (median), {seconds(max(found))} at most"
        )
    if drained:
        out.append(
            f"fairlead {__version__}: node drained in slurmctld and verdict drain after {seconds(statistics.median(drained))}"
            f" (median), {seconds(max(drained))} at most"
        )
    for peer, results in peers:
        shown = [r for r in results.values() if r.shown]
        if not peer.program:
            out.append(f"{peer.name}: not installed")
        elif not peer.commands:
            out.append(f"{peer.name}: installed, and not clean on the healthy node: {'; '.join(peer.dirty.values())}")
        else:
            out.append(
                f"{peer.name} {peer.version}: {sum(r.found for r in shown)} of {len(shown)} faults that it can be shown here"
                f" detected, {sum(r.twin_found for r in shown)} false alarms of their twins"
            )
    return out


def as_data(rows: Sequence[Seen], peers: Peers, about: dict[str, Any]) -> dict[str, Any]:
    """All of it, for --json."""
    return {
        "about": about,
        "fairlead": [
            {
                "name": s.fault.name, "title": s.fault.title, "check": s.fault.check, "level": s.fault.level,
                "found_seconds": s.found, "drained_seconds": s.drained, "summary": s.summary, "others": s.others,
                "flaps": s.flaps, "twin_drained": s.twin_drained, "twin_told": s.twin_said, "noise": s.noise,
                "broken": s.broken, "missed": s.missed, "default": by_default(s.fault),
            }
            for s in rows
        ],
        "peers": [
            {
                "name": p.name, "program": bool(p.program), "version": p.version, "note": p.note, "dirty": list(p.dirty.values()),
                "rows": {name: vars(seen) for name, seen in found.items()},
            }
            for p, found in peers
        ],
    }  # fmt: skip


def about(lanes: int, interval: float, took: float) -> dict[str, Any]:
    """When and where."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "nodes": lanes,
        "interval_seconds": interval,
        "took_seconds": round(took),
        "version": __version__,
    }


def row(*cells: str) -> str:
    return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"


def again(data: dict[str, Any]) -> tuple[list[Seen], Peers, dict[str, Any]]:
    """The reverse of ``as_data``, of rows that there still are."""
    faults = {fault.name: fault for fault in load()}
    rows = [
        Seen(
            faults[r["name"]], r["found_seconds"], r["drained_seconds"], r["level"], r["summary"], r["others"], r["flaps"],
            r["twin_drained"], r["twin_told"], r["noise"], r["broken"],
        )
        for r in data["fairlead"] if r["name"] in faults
    ]  # fmt: skip
    peers = []
    for p in data["peers"]:
        peer = Peer(p["name"], "there" if p["program"] else None, p["version"], ("",) * p["program"], p["note"])
        peer.dirty = dict(enumerate(p["dirty"]))  # type: ignore[arg-type]
        peers.append((peer, {name: PeerSeen(**seen) for name, seen in p["rows"].items()}))
    return rows, peers, data["about"]


def page(rows: Sequence[Seen], peers: Peers, said: dict[str, Any]) -> str:
    """docs/reference/scorecard.md."""
    present = [(p, found) for p, found in peers if p.program and p.commands]
    out = [
        "# Reference: scorecard",
        "",
        "`make scorecard` writes this page from real runs, or with `--again` from stored results. No figure is typed by hand.",
        "",
    ]
    out += [
        *WORDS,
        "",
        f"Run on {said['date']}: fairlead {said['version']}, Python {said['python']}, kernel {said['kernel']}. {said['nodes']}"
        f" simulated nodes at once shared {said['cpus']} CPUs (load {said['load']}); a sweep each {said['interval_seconds']:g} s;"
        f" {said['took_seconds']} s in all. By default a sweep is made each 15 s,"
        " so a fault that is not in the kernel log takes longer there.",
        "",
        *(f"- {line}" for line in summary(rows, peers)),
        "",
    ]
    if notes := [f"- {p.name}: {p.note}" for p, _ in peers if p.program and p.note]:
        out += [
            "Each other tool runs once per row. Its time is that of one run. At a site, add the wait for the next run.",
            *notes,
            "",
        ]
    out += [row("fault", "check", "finding", "drain", "by default", "twin", *(p.name for p, _ in present))]
    out += [row(*["---"] * (6 + len(present)))]
    for s in rows:
        found = [peer_word(results.get(s.fault.name)) for _, results in present]
        first = seconds(s.found) if fault_word(s) in ("drain", "warning", "unknown") else fault_word(s)
        out.append(
            row(s.fault.title, f"`{s.fault.check}`", first, seconds(s.drained), by_default(s.fault),
                f"{twin_word(s)}: {s.fault.twin_words}", *found)
        )  # fmt: skip
    out += ["", "## Sources", "", row("fault", "who says that it is one"), row("---", "---")]
    out += [row(s.fault.title, s.fault.source) for s in rows]
    told = [(s.fault.title, line) for s in rows for line in (*s.noise, *([s.twin_drained] if s.twin_drained else []), *s.flaps)]
    if told:
        out += ["", "## Noise", "", *(f"- {title}: {line}" for title, line in told)]
    return "\n".join(out) + "\n"
