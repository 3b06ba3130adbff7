"""Makes the text of /run/fairlead/env, which the task prolog reads, from the rows of variables. Explains the rows to people."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from typing import TypedDict

from fairlead.errors import DataError
from fairlead.jobenv.never import NEVER
from fairlead.jobenv.tuned_variables import TUNED
from fairlead.jobenv.variable_table import ROWS, ValueLevel, VariableRow, When

HEAD = "fl_rows='"
END = "."
#: What a site may let each batch job say at the beginning of its output (jobenv.notice).
NOTICE = "fairlead set variables that you left unset: fairlead env explain shows them, FAIRLEAD_PROFILE=off switches it off"
NOTICE_HEAD = "fl_notice='"


def render(
    rows: Iterable[VariableRow] = ROWS,
    *,
    skip: Iterable[str] = (),
    extra: Mapping[str, str] | None = None,
    notice: bool = False,
) -> str:
    """Return the text of /run/fairlead/env: lines ``NAME WHEN VALUE LEVEL MARK`` with TABs between the fields, then a line with a
    dot.

    The dot marks the end of a complete file. The whole text is one quoted shell assignment, because a shell reads such an
    assignment at once. The builtin ``read`` would make a system call for each character. WHEN is ``VariableRow.condition``. MARK
    is the ``value_mark`` of a literal value, or - for a rule. A row that names another variable in ``unless`` must come after the
    row of that variable.

    ``skip``: the names of variables that fairlead must not set. ``extra``: the site's own variables, which are set in every step
    and replace a row of the same name. ``notice``: the batch step prints NOTICE if fairlead has set a variable there; it is a
    second assignment, which older releases of the task prolog do not read. Raises DataError for a name that is never set, and for
    a row that the shell could not read.
    """
    unwanted = {*skip, *(extra or {})}
    lines = []
    own = [
        VariableRow(
            name=name, when=When.ALWAYS, value=value, level=ValueLevel.FULL, what="the site's", why="the site's", source="site"
        )
        for name, value in (extra or {}).items()
    ]
    for row in (*(r for r in rows if r.name not in unwanted), *own):
        if row.name in NEVER:
            raise DataError(f"job environment: {row.name} is never set: {NEVER[row.name]}")
        if not (row.name.isascii() and row.name.replace("_", "A").isalnum() and row.name.isupper() and row.name[0].isalpha()):
            raise DataError(f"job environment: {row.name!r} is not a name of a variable")
        if not row.value or not row.value.isascii() or not row.value.isprintable() or row.value != row.value.strip():
            raise DataError(f"job environment: {row.name}: a value must be one printable line")
        if row in own and row.value.startswith("@"):
            raise DataError(f"job environment: {row.name}: a value of the site must not begin with @")
        fields = (
            row.name,
            row.condition,
            row.value,
            row.level.value,
            "-" if row.value.startswith("@") else value_mark(row.value),
        )
        lines.append("\t".join(fields) + "\n")
    return quoted("".join(lines) + END) + (f"{NOTICE_HEAD}{NOTICE}'\n" if notice else "")


def quoted(table: str) -> str:
    """Return a table as the assignment that the task prolog reads."""
    return HEAD + "\n" + table.replace("'", "'\\''") + "'\n"


def published(text: str, known: Iterable[VariableRow]) -> tuple[VariableRow, ...]:
    """Return the rows of a text that ``render`` made, or () if the text is cut off.

    A row with the name of a ``known`` row gets the reason and the source of that row. Any other row is a variable of the site.
    """
    named = {r.name: r for r in known}
    rows = []
    lines = text.replace("'\\''", "'").splitlines()
    if lines and lines[-1].startswith(NOTICE_HEAD) and lines[-1].endswith("'"):
        lines.pop()
    if len(lines) < 2 or lines[0] != HEAD or lines[-1] != END + "'":
        return ()
    for line in lines[1:-1]:
        fields = line.split("\t")
        if len(fields) != 5 or fields[3] not in set(ValueLevel):
            return ()
        condition, _, unless = fields[1].partition("!")
        when, _, least = condition.partition(":")
        if when not in set(When):
            return ()
        row = named.get(fields[0])
        rows.append(
            VariableRow(
                name=fields[0],
                when=When(when),
                value=fields[2],
                level=ValueLevel(fields[3]),
                what=row.what if row else "the site's own",
                why=row.why if row else "declared in jobenv.extra, or in a preset",
                source=row.source if row else "site",
                at_least=int(least) if least.isdecimal() else 0,
                unless=unless,
            )
        )
    return tuple(rows)


class ExplainedVariable(TypedDict):
    """A variable of a job's environment. now: its value, "" for none. See explain for origin and overrides."""

    name: str
    now: str
    origin: str
    overrides: str
    when: str
    rule: str
    what: str
    why: str
    source: str


def explain(
    environment: Mapping[str, str],
    profile: str = "full",
    *,
    rows: Iterable[VariableRow] = ROWS,
    conf: Mapping[str, str] | None = None,
) -> list[ExplainedVariable]:
    """Return each row with the variable's value in a job's environment.

    ``origin`` says where the value comes from: "fairlead" (fairlead set it), "user" (the user set, changed or unset it),
    "measured result" (`fairlead nccl use` set it), "nccl.conf" (NCCL reads it from that file), "-" (the variable is not set in
    this environment). ``overrides``: fairlead's value, which the user's value replaces. ``conf``: the variables that
    /etc/nccl.conf sets.
    """
    ours = dict(part.split(":", 1) for part in environment.get("FAIRLEAD_SET", "").split("|") if ":" in part)
    skipped = set(environment.get("FAIRLEAD_SKIP", "").split(","))
    lines: list[ExplainedVariable] = []
    for row in rows:
        if profile == "off" or row.name in skipped or (profile == "minimal" and row.level is not ValueLevel.MINIMAL):
            continue
        now = environment.get(row.name)
        origin = "-" if now is None else "user"
        if row.name in ours:
            origin = "fairlead" if now is not None and value_mark(now) == ours[row.name] else "user"
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
    lines += _of_result(environment)
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
                "what": "a fact of this node in /etc/nccl.conf, which NCCL reads where the environment does not set it",
                "why": "that file, or `fairlead nccl conf`, says why",
                "source": "/etc/nccl.conf",
            }
        )
    return lines


def _of_result(environment: Mapping[str, str]) -> list[ExplainedVariable]:
    """Return a dictionary for each variable that `fairlead nccl use` has set. Such a variable has FAIRLEAD_NCCL_APPLIED."""
    head, *pairs = environment.get("FAIRLEAD_NCCL_APPLIED", "").split("|")
    lines: list[ExplainedVariable] = []
    for name, sign, value in (pair.partition("=") for pair in pairs):
        now = environment.get(name)
        if name in TUNED and sign:
            ours = now == value
            lines.append(
                {
                    "name": name,
                    "now": now or "",
                    "origin": "measured result" if ours else "user",
                    "overrides": "" if ours else value,
                    "when": When.ALWAYS.value,
                    "rule": value,
                    "what": f"from a result of fairlead nccl measure whose SHA-256 begins with {head}",
                    "why": "the job script has asked for it, and the result holds on all nodes of the job",
                    "source": "fairlead nccl show RESULT",
                }
            )
    return lines


_PLAIN = re.compile(r"[A-Za-z0-9_:./@,=^%#~+-]+")


def value_mark(value: str) -> str:
    """Return the mark of a value in FAIRLEAD_SET, the list of variables that fairlead has set: ``=`` and the value itself.

    The mark of a value with characters that FAIRLEAD_SET cannot contain is a checksum of the value. The task prolog reads such
    marks from /run/fairlead/env and never computes one.
    """
    return f"={value}" if _PLAIN.fullmatch(value) else str(zlib.crc32(value.encode()))
