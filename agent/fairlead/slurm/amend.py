"""Makes the text of a slurm.conf as fairlead needs it. `fairlead doctor --diff` shows the difference.

Only missing lines are added, and only lists are made longer. A value that the site chose is kept, or it is replaced and a note
says what to do with the old value. This module writes no file. Sources: slurm.conf(5), Prolog, PrologFlags, SchedulerParameters,
PrologEpilogTimeout, HealthCheckProgram, PropagateResourceLimitsExcept; ``conf_review`` has the reasons.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator

from msgspec import Struct

from fairlead.slurm.slurm_conf import PAIR, SlurmConf

HEAD = "# For fairlead:"
PROLOG, EPILOG = "/etc/slurm/prolog.d/50-fairlead", "/etc/slurm/epilog.d/50-fairlead"
TASK_PROLOG, HEALTH_CHECK = "/etc/slurm/fairlead/task-prolog", "/etc/slurm/fairlead/health-check"
TIMEOUT_SECONDS = 300
HEALTH_SECONDS = 300


class Amended(Struct, frozen=True):
    """Holds the new text. ``text``: the whole file. ``notes``: a line for each further thing that a person has to do."""

    text: str
    notes: tuple[str, ...]


def amend(text: str, conf: SlurmConf, *, pyxis: bool = False) -> Amended:
    """Return the amended file. ``text``: the main file. ``conf``: the values of this file and of the files that it includes.
    ``pyxis``: whether pyxis is configured. A person then has to set TaskProlog."""
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    notes: list[str] = []
    added: list[str] = []
    for key, value, note in _wanted(conf, pyxis=pyxis):
        if note:
            notes.append(note)
        if not value:
            continue
        span = _span(lines, key)
        if span is not None:
            first, after, whole = span
            if whole:
                lines[first:after] = [f"{key}={value}\n"]
            else:
                notes.append(f"{key} is on a line with other keys: make it {key}={value} there")
        elif conf.get(key):
            notes.append(f"{key} is set in a file that {conf.path} includes: make it {key}={value} there")
        else:
            added.append(f"{key}={value}\n")
    if added:
        lines += [f"{HEAD}\n"] * (f"{HEAD}\n" not in lines) + added
    return Amended("".join(lines), tuple(notes))


def _wanted(conf: SlurmConf, *, pyxis: bool) -> Iterator[tuple[str, str, str]]:
    """Yield (key, value, note). With the value "", the key is left as it is. With the note "", nothing is reported."""
    for key, ours in (("Prolog", PROLOG), ("Epilog", EPILOG)):
        now, folder = conf.get(key), ours.rpartition("/")[0]
        if any(fnmatch.fnmatchcase(ours, pattern.strip()) for pattern in now.split(",")):
            continue
        beside = any(c in now for c in "*?[,") or now.startswith(f"{folder}/")
        words = f"{key}: yours goes beside ours, on every node: ln -s {now} {folder}/10-site" if now and not beside else ""
        words = f"{key}: {now} does not run {ours}; {folder}/* runs everything there" if beside else words
        yield key, f"{folder}/*", words
    now = conf.get("TaskProlog")
    if pyxis and now != TASK_PROLOG:
        yield "TaskProlog", "", "TaskProlog is left as it is, since pyxis is configured: see docs/how-to/containers.md"
    elif now != TASK_PROLOG:
        words = f'TaskProlog: declare hooks.site_task_prolog = "{now}" in site.toml; ours runs it first' if now else ""
        yield "TaskProlog", TASK_PROLOG, words
    now = conf.get("HealthCheckProgram")
    if now and now != HEALTH_CHECK:
        yield "HealthCheckProgram", "", f"HealthCheckProgram={now} is yours and stays: let it run {HEALTH_CHECK} too"
    elif not now:
        yield "HealthCheckProgram", HEALTH_CHECK, ""
    if conf.get("HealthCheckInterval", "0") in {"", "0"}:
        yield "HealthCheckInterval", str(HEALTH_SECONDS), ""
    if not conf.options("PrologFlags") & {"alloc", "contain", "x11", "runinjob"}:
        yield "PrologFlags", _more(conf, "PrologFlags", "Alloc"), ""
    if "nohold_on_prolog_fail" not in conf.options("SchedulerParameters"):
        yield "SchedulerParameters", _more(conf, "SchedulerParameters", "nohold_on_prolog_fail"), ""
    if (conf.get("PrologEpilogTimeout") or conf.get("PrologTimeout") or "0") in {"0", "65534"}:
        yield "PrologEpilogTimeout", str(TIMEOUT_SECONDS), ""
    excepted, propagated = conf.options("PropagateResourceLimitsExcept"), conf.get("PropagateResourceLimits", "ALL").upper()
    if propagated == "ALL" and not excepted & {"memlock", "all"}:
        yield "PropagateResourceLimitsExcept", _more(conf, "PropagateResourceLimitsExcept", "MEMLOCK"), ""
    elif propagated not in {"ALL", "NONE"} and "memlock" in propagated.lower().split(","):
        yield (
            "PropagateResourceLimits",
            "",
            f"PropagateResourceLimits={propagated}: take MEMLOCK out, or RDMA jobs have too little",
        )


def _more(conf: SlurmConf, key: str, word: str) -> str:
    now = [w.strip() for w in conf.get(key).split(",") if w.strip() and w.strip().lower() not in {"none", "(null)"}]
    return ",".join([*now, word])


def _span(lines: list[str], key: str) -> tuple[int, int, bool] | None:
    """Return (first line, line after it, whether these lines set nothing else) of the last setting of ``key``."""
    found: tuple[int, int, bool] | None = None
    at = 0
    while at < len(lines):
        first = at
        while lines[at].endswith("\\\n") and at + 1 < len(lines):
            at += 1
        at += 1
        said = re.sub(r"(?<!\\)#.*", "", "".join(lines[first:at]).replace("\\\n", " ")).strip()
        keys = [name.lower() for name, _ in PAIR.findall(said)]
        if key.lower() in keys and keys[0] not in {"nodename", "partitionname"}:
            found = (first, at, len(keys) == 1)
    return found
