"""The rows as the file /run/fairlead/env that the task prolog reads, and as an explanation for people."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping

from fairlead.errors import DataError
from fairlead.jobenv.never import NEVER
from fairlead.jobenv.table import ROWS, JobVariable, ProfileLevel, When

HEAD = "fl_rows='"
END = "."


def render(rows: Iterable[JobVariable] = ROWS, *, skip: Iterable[str] = (), extra: Mapping[str, str] | None = None) -> str:
    """The text of /run/fairlead/env: TAB lines ``NAME WHEN VALUE LEVEL RECORDED``, then a line with a dot (the file is complete).

    All of it is one assignment of a shell, in quotes, which a shell reads at once; its ``read`` makes a system call for each
    character. WHEN: Row.condition. RECORDED: ``recorded`` of a literal value, - of a rule. A row that names another in ``unless``
    must come after it.

    ``skip``: names that the site does not want set. ``extra``: variables of the site's own, in every step; they replace
    a row of the same name. Raises DataError for a name that is never set, or a row that the shell could not take.
    """
    unwanted = {*skip, *(extra or {})}
    lines = []
    own = [
        JobVariable(
            name=name, when=When.ALWAYS, value=value, level=ProfileLevel.FULL, what="the site's", why="the site's", source="site"
        )
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
        fields = (row.name, row.condition, row.value, row.level.value, "-" if row.value.startswith("@") else recorded(row.value))
        lines.append("\t".join(fields) + "\n")
    return quoted("".join(lines) + END)


def quoted(table: str) -> str:
    """A table as the assignment that the task prolog takes up."""
    return HEAD + "\n" + table.replace("'", "'\\''") + "'\n"


def published(text: str, known: Iterable[JobVariable]) -> tuple[JobVariable, ...]:
    """The rows of a text that ``render`` made, with the reasons of the ``known`` rows of the same names; () where it is cut off.

    A row that is not known is the site's own.
    """
    named = {r.name: r for r in known}
    rows = []
    lines = text.replace("'\\''", "'").splitlines()
    if len(lines) < 2 or lines[0] != HEAD or lines[-1] != END + "'":
        return ()
    for line in lines[1:-1]:
        fields = line.split("\t")
        if len(fields) != 5 or fields[3] not in set(ProfileLevel):
            return ()
        condition, _, unless = fields[1].partition("!")
        when, _, least = condition.partition(":")
        if when not in set(When):
            return ()
        row = named.get(fields[0])
        rows.append(
            JobVariable(
                name=fields[0],
                when=When(when),
                value=fields[2],
                level=ProfileLevel(fields[3]),
                what=row.what if row else "the site's own",
                why=row.why if row else "declared in jobenv.extra, or in a preset",
                source=row.source if row else "site",
                at_least=int(least) if least.isdecimal() else 0,
                unless=unless,
            )
        )
    return tuple(rows)


def explain(
    environment: Mapping[str, str],
    profile: str = "full",
    *,
    rows: Iterable[JobVariable] = ROWS,
    conf: Mapping[str, str] | None = None,
) -> list[dict[str, str]]:
    """Every row beside a job's environment: ``{"name", "now", "origin", "overrides", "when", "rule", "what", "why", "source"}``.

    ``origin``: "fairlead" (we set it), "user" (set, changed or unset by the user), "nccl.conf" (NCCL takes it from there), "-"
    (not set here). ``overrides``: what the user's value took the place of. ``conf``: the assignments of /etc/nccl.conf.
    """
    ours = dict(part.split(":", 1) for part in environment.get("FAIRLEAD_SET", "").split("|") if ":" in part)
    skipped = set(environment.get("FAIRLEAD_SKIP", "").split(","))
    lines = []
    for row in rows:
        if profile == "off" or row.name in skipped or (profile == "minimal" and row.level is not ProfileLevel.MINIMAL):
            continue
        now = environment.get(row.name)
        origin = "-" if now is None else "user"
        if row.name in ours:
            origin = "fairlead" if now is not None and recorded(now) == ours[row.name] else "user"
        lines.append(
            {
                "name": row.name,
                "now": "" if now is None else now,
                "origin": origin,
                "overrides": row.value if origin == "user" else "",
                "when": row.condition,
                "rule": row.value,
                "what": row.what,
                "why": row.why,
                "source": row.source,
            }
        )
    for name, value in (conf or {}).items():
        own = environment.get(name)
        lines.append(
            {
                "name": name,
                "now": value if own is None else own,
                "origin": "nccl.conf" if own is None else "user",
                "overrides": "" if own is None else value,
                "when": When.ALWAYS.value,
                "rule": value,
                "what": "a fact of this node in /etc/nccl.conf, which NCCL reads where the environment says nothing",
                "why": "its reason stands in that file, or in `fairlead nccl conf`",
                "source": "/etc/nccl.conf",
            }
        )
    return lines


_PLAIN = re.compile(r"[A-Za-z0-9_:./@,=^%#~+-]+")


def recorded(value: str) -> str:
    """What FAIRLEAD_SET says of a value that fairlead has set: the value itself behind ``=``; of one that cannot stand there,
    which only the table gives, a number."""
    return f"={value}" if _PLAIN.fullmatch(value) else str(zlib.crc32(value.encode()))
