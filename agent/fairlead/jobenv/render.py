"""The rows as the file /run/fairlead/env that the task prolog reads, and as an explanation for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.errors import DataError
from fairlead.jobenv.never import NEVER
from fairlead.jobenv.table import ROWS, Level, Row, When

END = "."


def render(rows: Iterable[Row] = ROWS, *, skip: Iterable[str] = (), extra: Mapping[str, str] | None = None) -> str:
    """The text of /run/fairlead/env: TAB lines ``NAME WHEN VALUE LEVEL``, then a line with a dot (the file is complete).

    WHEN: Row.condition. A row that names another in ``unless`` must come after it.

    ``skip``: names that the site does not want set. ``extra``: variables of the site's own, in every step; they replace
    a row of the same name. Raises DataError for a name that is never set, or a row that the shell could not take.
    """
    unwanted = {*skip, *(extra or {})}
    lines = []
    own = [
        Row(name=name, when=When.ALWAYS, value=value, level=Level.FULL, what="the site's", why="the site's", source="site")
        for name, value in (extra or {}).items()
    ]
    for row in (*(r for r in rows if r.name not in unwanted), *own):
        if row.name in NEVER:
            raise DataError(f"job environment: {row.name} is never set: {NEVER[row.name]}")
        if not (row.name.isascii() and row.name.replace("_", "A").isalnum() and row.name.isupper() and row.name[0].isalpha()):
            raise DataError(f"job environment: {row.name!r} is no name of a variable")
        if not row.value or not row.value.isascii() or not row.value.isprintable() or row.value != row.value.strip():
            raise DataError(f"job environment: {row.name}: a value is one printable line")
        if row in own and row.value.startswith("@"):
            raise DataError(f"job environment: {row.name}: a value of the site's does not begin with @")
        lines.append("\t".join((row.name, row.condition, row.value, row.level.value)) + "\n")
    return "".join(lines) + END + "\n"


def explain(environment: Mapping[str, str], profile: str = "full") -> list[dict[str, str]]:
    """Every row beside a job's environment: ``{"name", "now", "origin", "when", "rule", "what", "why", "source"}``.

    ``origin``: "fairlead" (we set it), "user" (set, changed or unset by the user), "-" (not set here).
    """
    ours = dict(part.split(":", 1) for part in environment.get("FAIRLEAD_SET", "").split(",") if ":" in part)
    skipped = set(environment.get("FAIRLEAD_SKIP", "").split(","))
    told = []
    for row in ROWS:
        if profile == "off" or row.name in skipped or (profile == "minimal" and row.level is not Level.MINIMAL):
            continue
        now = environment.get(row.name)
        origin = "-" if now is None else "user"
        if row.name in ours:
            origin = "fairlead" if now is not None and str(value_sum(now)) == ours[row.name] else "user"
        told.append(
            {
                "name": row.name,
                "now": "" if now is None else now,
                "origin": origin,
                "when": row.when.value,
                "rule": row.value,
                "what": row.what,
                "why": row.why,
                "source": row.source,
            }
        )
    return told


_ALPHABET = "".join(chr(c) for c in range(0x20, 0x7F))


def value_sum(value: str) -> int:
    """The number by which slurm/task-prolog tells values apart in FAIRLEAD_SET; -1 for a value that is none of ours."""
    if len(value) > 200 or not (value.isascii() and value.isprintable()):
        return -1
    total = 5381
    for char in value:
        total = (total * 131 + _ALPHABET.index(char)) % 2147483647
    return total
