"""Writes the fleet as static pages: one with a tile for each node, and one for each node. They load nothing from elsewhere, and
all but the filter works without scripts.

jinja2 escapes every text. Names and reasons come from Slurm, and the rest from the nodes, whose root may be hostile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fairlead.cli.fleet_poll import FleetPoll
from fairlead.cli.fleet_table import summary
from fairlead.cli.gpu_picture import gpu_picture
from fairlead.cli.output import age_text
from fairlead.cli.time_options import local
from fairlead.cli.why_text import why_text
from fairlead.errors import HostError, UsageError, next_step
from fairlead.host.atomic_file import write_atomic
from fairlead.provision.node_details import NodeDetails
from fairlead.provision.roster import WORDS, RosterRow

MARKER = ".fairlead-fleet"  # says that the folder is ours to write
STATIC = ("style.css", "filter.js")
PAGES = Path(__file__).parent / "pages"
#: A sign beside the colour, because not everybody can tell the colours apart.
MARKS = {
    "ok": "✓", "warn": "!", "drain": "✗", "unknown": "?", "stale": "?", "none": "∅", "unreachable": "–",
    "off": "○", "not asked": "·",
}  # fmt: skip
FINDINGS_MAX, EVIDENCE_MAX = 200, 5
GROUPS = ("class", "partition", "switch", "none")
_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class PageFolder:
    """Writes pages into one folder. A page is replaced by rename, so that a web server never serves half of it.

    Raises UsageError for a folder with files that are not such pages. As root, also for a folder where others can write, because
    they could lead root elsewhere by a link. Raises HostError.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        try:
            found = os.stat(folder)
            if os.geteuid() == 0 and (found.st_uid != 0 or found.st_mode & 0o022):
                hint = "name a folder of root, or run as its owner"
                raise UsageError(f"{folder}: users other than root can write to this folder", hint=hint)
            there = os.listdir(folder)
            if there and MARKER not in there:
                raise UsageError(f"{folder}: has other files, and no page of fairlead", hint="name an empty folder")
            os.makedirs(os.path.join(folder, "node"), exist_ok=True)
        except FileNotFoundError:
            raise UsageError(f"{folder}: no such folder", hint="make it first") from None
        except OSError as e:
            raise HostError(f"{folder}: {e.strerror}", hint=next_step(e)) from None
        loader = FileSystemLoader(PAGES)
        self._pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        self._write(MARKER, "")
        for name in STATIC:
            self._write(name, (PAGES / name).read_text())

    def write(
        self, poll: FleetPoll, details: Mapping[str, NodeDetails], *, site: str, group: str = "class", refresh: int = 0
    ) -> None:
        """Write all pages of one poll. Pages of nodes that are gone are removed. ``refresh``: after so many seconds a browser
        loads the first page again, 0 for never."""
        written = local(poll.at)
        for row in poll.rows:
            data = node_data(row, details.get(row.node), poll.at)
            self._write(node_file(row.node), self._pages.get_template("node.html.j2").render(data, marks=MARKS, written=written))
        data = index_data(poll, group)
        page = self._pages.get_template("index.html.j2")
        self._write("index.html", page.render(data, marks=MARKS, written=written, site=site, refresh=refresh))
        self._remove_others({node_file(row.node) for row in poll.rows})

    def _remove_others(self, kept: set[str]) -> None:
        for name in os.listdir(os.path.join(self._folder, "node")):
            if f"node/{name}" not in kept and name.endswith(".html"):
                os.unlink(os.path.join(self._folder, "node", name))

    def _write(self, name: str, text: str) -> None:
        path = os.path.join(self._folder, name)
        try:
            write_atomic(path, text.encode())
        except OSError as e:
            raise HostError(f"{path}: {e.strerror}", hint=next_step(e)) from None


def word_of(row: RosterRow) -> str:
    """Return the word of a row. It names a style too, so that a word that is none of fairlead's is "unknown"."""
    return row.word if row.word in MARKS else "unknown"


def node_file(node: str) -> str:
    return f"node/{node if _SAFE.fullmatch(node) else quote(node, safe='')}.html"


def index_data(poll: FleetPoll, group: str) -> dict[str, Any]:
    """Return what the page of all nodes shows."""
    counts = [(word, sum(word_of(row) == word for row in poll.rows)) for word in WORDS]
    return {
        "summary": summary(poll.rows, poll.seconds),
        "words": [(word, count) for word, count in counts if count],
        "groups": [_group(name, rows) for name, rows in grouped(poll, group)],
        "bad": [
            {"nodes": fold.nodes, "word": word_of(fold.rows[0]), "slurm": fold.rows[0].slurm, "why": fold.why}
            for fold in poll.folds()
            if fold.rows[0].word != "ok" or fold.rows[0].out_of_service is not None
        ],
    }


def grouped(poll: FleetPoll, by: str) -> list[tuple[str, list[RosterRow]]]:
    """Return the rows by hardware profile, first partition, or switch, in the order of the names."""
    found: dict[str, list[RosterRow]] = {}
    for row in poll.rows:
        if by == "switch":
            name = poll.switches.get(row.node, "no switch known")
        elif by == "class":
            name = row.account.profile if row.account is not None and row.account.profile else "class not known"
        else:
            name = row.partitions[0] if by == "partition" and row.partitions else "all nodes"
        found.setdefault(name, []).append(row)
    return sorted(found.items())


def _group(name: str, rows: Sequence[RosterRow]) -> dict[str, Any]:
    well = sum(row.word == "ok" for row in rows)
    letters = {row.node.rstrip("0123456789") for row in rows}
    prefix = letters.pop() if len(letters) == 1 and len(rows) > 1 else ""
    tiles = [_tile(row, row.node.removeprefix(prefix)) for row in rows]
    return {"name": name, "summary": f"{well} of {len(rows)} ok" + (f"; {prefix}..." if prefix else ""), "nodes": tiles}


def _tile(row: RosterRow, short: str) -> dict[str, Any]:
    why = row.why[:160]
    return {
        "word": word_of(row),
        "short": short[:24],
        "file": node_file(row.node),
        "out": row.out_of_service is not None,
        "title": f"{row.node}: {row.word}, {row.slurm}" + (f": {why}" if why else ""),
        "text": f"{row.node} {row.word} {row.slurm} {why}".lower(),
    }


def node_data(row: RosterRow, details: NodeDetails | None, now: float) -> dict[str, Any]:
    """Return what the page of one node shows. ``details``: None if the node did not give them."""
    status = details.status if details is not None else {}
    findings = [f for f in status.get("findings", []) if f.get("level") != "ok"][:FINDINGS_MAX]
    return {
        "node": row.node,
        "word": word_of(row),
        "facts": list(_facts(row)),
        "why": "\n".join(why_text(row.node, _agent(row, status), _slurm(row))),
        "picture": gpu_picture(details.gpus, findings if _is_current(row, status) else None)
        if details is not None and details.gpus
        else "",
        "findings": [
            {
                "level": one_of_levels(f.get("level", "")),
                "check": f["check"],
                "summary": f["summary"],
                "evidence": f.get("evidence", [])[:EVIDENCE_MAX],
            }
            for f in findings
        ],
        "jobs": list(row.jobs),
        "actions": [
            {"time": local(a.unix), "who": a.who, "what": f"{a.what} {a.outcome}".strip(), "why": a.why or a.detail}
            for a in reversed(details.actions if details is not None else ())
        ],
    }


def _is_current(row: RosterRow, status: Mapping[str, Any]) -> bool:
    """Say whether a status has the present findings. If the node has no valid verdict, its findings may be old."""
    return "findings" in status and row.account is not None and row.account.verdict in ("ok", "warn", "drain")


def one_of_levels(level: str) -> str:
    """Return a level of a finding. A node's word that is none is "unknown", because the word names a style too."""
    return level if level in ("ok", "warn", "drain", "unknown") else "unknown"


def _facts(row: RosterRow) -> Iterable[str]:
    account = row.account
    if account is not None and account.reached:
        yield f"profile {account.profile or 'not known'}, generation {account.generation}"
        yield f"fairlead {account.agent or 'not known'}, driver {account.driver or 'not known'}"
        if account.age_seconds is not None:
            yield f"last sweep {age_text(account.age_seconds)} before"
    yield f"slurmd {row.slurmd or 'not known'}, partitions {', '.join(row.partitions) or 'none'}"


def _agent(row: RosterRow, status: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `fairlead why` takes as the agent's data."""
    account = row.account
    if account is None or not account.reached:
        return {"error": account.trouble if account is not None else "the agent was not asked"}
    known = account.verdict if account.verdict in ("ok", "warn", "drain") else "unknown"
    return {"state": known, "text": account.trouble or account.text, "age_seconds": account.age_seconds, "status": dict(status),
            "running": account.verdict != "stale"}  # fmt: skip


def _slurm(row: RosterRow) -> dict[str, Any]:
    out = row.out_of_service
    known = {"states": list(row.states), "reason": "", "reason_user": "", "reason_unix": 0}
    if out is None:
        return known
    return {**known, "reason": out.reason, "reason_user": out.user, "reason_unix": out.since_unix}
