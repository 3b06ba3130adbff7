"""Makes the table of `fairlead fleet`, and the lines with which `fairlead fleet --watch` reports changes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from ClusterShell.NodeSet import NodeSet

from fairlead.cli.output import age_text
from fairlead.provision.roster import NOT_ASKED, WORDS, RosterFold, RosterRow

HEAD = ("NODES", "VERDICT", "SLURM", "JOBS", "SWEPT", "PROFILE", "DRIFT", "AGENT", "DRIVER", "SLURMD", "BY", "SINCE", "WHY")
WHY_MAX = 160


def table(folds: Iterable[RosterFold], now: float) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the column heads and the rows, without columns that are empty in every row."""
    rows = [_cells(f, now) for f in folds]
    used = [i for i in range(len(HEAD)) if i in (0, 2) or any(r[i] not in ("", NOT_ASKED) for r in rows)]
    return tuple(HEAD[i] for i in used), [tuple(r[i] for i in used) for r in rows]


def _cells(fold: RosterFold, now: float) -> tuple[str, ...]:
    row = fold.rows[0]
    account, holder = row.account, row.out_of_service
    first, last = fold.since_unix
    since = [age_text(max(0.0, now - at)) for at in dict.fromkeys((last, first)) if at]
    drift = account.drift if account is not None else ()
    return (
        fold.nodes,
        row.word,
        row.slurm,
        str(fold.jobs or ""),
        "" if fold.age_seconds is None else age_text(fold.age_seconds),
        "" if account is None else account.profile + (f"/{account.generation}" if account.generation else ""),
        ",".join(drift) if len(drift) < 3 else f"{len(drift)} settings",
        "" if account is None else account.agent,
        "" if account is None else account.driver,
        row.slurmd,
        "" if holder is None else holder.name,
        " to ".join(dict.fromkeys(since)),
        fold.why[:WHY_MAX],
    )


def summary(rows: Sequence[RosterRow], seconds: float) -> str:
    """Return the line below the table: ``128 nodes: 126 ok, 2 drain; 17 jobs; asked in 0.4 s``."""
    counts = [(sum(r.word == w for r in rows), w) for w in reversed(WORDS)]
    jobs = len({job for r in rows for job in r.jobs})
    out = sum(r.lost for r in rows)
    words = ", ".join(f"{n} {w}" for n, w in counts if n and w != NOT_ASKED)
    parts = [words, f"{out} out of service", f"{jobs} job{'' if jobs == 1 else 's'}", f"asked in {seconds:.1f} s"]
    return f"{len(rows)} node{'' if len(rows) == 1 else 's'}: {'; '.join(t for t in parts if t)}"


def lines(folds: Iterable[RosterFold]) -> list[str]:
    """Return a plain line for each fold (nodes with equal rows), such as ``gpu[001-412]: ok, up``."""
    return [f"{f.nodes}: {_said(f.rows[0], f.why)}" for f in folds]


def changes(before: Sequence[RosterRow], after: Sequence[RosterRow], at: float) -> list[str]:
    """Return a line for each kind of change between two polls, with the time of day and the nodelist of the changed nodes."""
    earlier = {r.node: _said(r, r.why) for r in before}
    found: dict[str, list[str]] = {}
    for row in after:
        was, now = earlier.pop(row.node, "not there"), _said(row, row.why)
        if was != now:
            found.setdefault(f"{now} (was {was.partition(':')[0]})", []).append(row.node)
    for node in earlier:
        found.setdefault("not in Slurm any more", []).append(node)
    clock = time.strftime("%H:%M:%S", time.localtime(at))
    return [f"{clock} {NodeSet.fromlist(nodes)}: {said}" for said, nodes in found.items()]


def _said(row: RosterRow, why_short: str) -> str:
    who = f" by {row.out_of_service.name}" if row.out_of_service is not None else ""
    why = f": {why_short[:WHY_MAX]}" if why_short else ""
    return f"{', '.join(w for w in (row.word, row.slurm) if w != NOT_ASKED)}{who}{why}"
