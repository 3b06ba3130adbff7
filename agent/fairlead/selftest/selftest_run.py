"""Runs all parts of the self-test in their order, each with a time limit, and makes the report of what they say."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from fairlead import __version__, checks, config, settings
from fairlead.errors import FairleadError, HostError
from fairlead.host.gather import nvidia_gpus
from fairlead.host.root import Root
from fairlead.selftest import distribution, fact_sources, hook_runs, private_mounts, untouched
from fairlead.selftest.fact_sources import FILES, NVML, SOURCES, Reading
from fairlead.selftest.judged_parts import judge_machine
from fairlead.selftest.part_process import Message, PartResult, all_ended, run_part
from fairlead.selftest.report_redaction import ReportRedactor, own_names
from fairlead.selftest.selftest_report import CheckRow, HookRow, MachineSoftware, SelftestReport, SettingRow, SourceRow, Untouched

SOURCE_SECONDS = 12.0  # longer than the waits of the readers themselves
NAMES_SECONDS = 5.0
NVML_SECONDS = 20.0
HOOKS_SECONDS = 40.0
WHOLE_SECONDS = 100.0
DOCUMENT = "/etc/fairlead/node.json"
_Rows = dict[str, Message]


class SelftestRun:
    """Holds what the parts have said so far. ``run`` does everything. ``say`` gets lines of progress."""

    def __init__(self, document_path: str, say: Callable[[str], None]) -> None:
        self._root = Root()
        self._say = say
        self._began = time.monotonic()
        self._secrets: list[str] = []
        self._gpus = 0
        self._not_compared = ""
        self._digests: list[dict[str, str]] = []
        self._document_path = document_path
        self._is_root = os.geteuid() == 0
        self._namespace = self._is_root and _may_mount(say)

    def run(self) -> SelftestReport:
        """Run every part, and return the redacted report. Raises FairleadError if a named document is wrong."""
        document, how = self._document()
        reading = Reading(document)
        with all_ended() as left:
            self._names()
            before = self._stamps()
            machine = self._machine(reading)
            rows = {source.name: self._source(source, reading) for source in SOURCES}
            rows[FILES.name] = self._files(reading)
            rows[NVML.name] = self._nvml(document)
            judged, planned = self._judge(reading, rows[NVML.name])
            hooks = self._hooks()
            self._files(reading)
            after = self._stamps()
        changed = untouched.changes(before, after)
        changed += untouched.value_changes(*self._digests) if len(self._digests) == 2 else []
        changed += [self._not_compared] if self._not_compared else []
        redactor = ReportRedactor(self._secrets)
        return SelftestReport(
            fairlead=__version__,
            root=self._is_root,
            document=how,
            seconds=round(time.monotonic() - self._began, 2),
            machine=_redacted_machine(replace(machine, gpus_of_nvml=self._gpus), redactor),
            sources=_rows(rows, SourceRow, redactor),
            checks=_rows(judged, CheckRow, redactor),
            settings=_rows(planned, SettingRow, redactor),
            hooks=_rows(hooks, HookRow, redactor),
            untouched=Untouched(
                files=len(before.files),
                changed=tuple(redactor.row({"reasons": changed})["reasons"]),
                processes_left=tuple(redactor.row({"reasons": left})["reasons"]),
            ),
        )

    def _document(self) -> tuple[config.Document, Any]:
        """Return the document to judge by, and what became of the node's own. A document that the command line names must be
        right."""
        if self._document_path:
            return config.load_document(self._document_path), "read"
        if not os.path.exists(DOCUMENT):
            return config.profile_document("localhost"), ""
        try:
            return config.load_document(DOCUMENT), "read"
        except FairleadError:
            return config.profile_document("localhost"), "refused"

    def _part(self, name: str, seconds: float, work: Callable[[], Iterable[Message]], *, guarded: bool = True) -> PartResult:
        """Run one part in the time that is left. ``guarded``: nothing below fairlead's folders can be written."""
        left = WHOLE_SECONDS - (time.monotonic() - self._began)
        if left < 1:
            return PartResult(rows=(), state="hung", reason=f"the {WHOLE_SECONDS:.0f} s of the whole run were over")

        def guard() -> Iterator[Message]:
            if guarded and self._namespace:
                private_mounts.make_ours_read_only()
            yield from work()

        said = run_part(name, min(seconds, left), guard, self._say)
        for row in said.rows:
            self._secrets += row.get("secrets", ())
        return said

    def _stamps(self) -> untouched.Stamps:
        """Return the state of fairlead's files and of the mounts. If a folder does not answer, nothing is compared, and the
        report says so."""
        said = self._part("files of fairlead", NAMES_SECONDS, lambda: [untouched.stamps(self._root)._asdict()], guarded=False)
        if said.state != "done":
            self._not_compared = f"fairlead's files could not be compared: {said.reason}"
        return untouched.Stamps(**next((row for row in said.rows if "files" in row), {"files": {}, "mounts": ()}))

    def _names(self) -> None:
        """Learn what the report must not contain. Raises HostError if even the first names cannot be read."""
        said = self._part("names to redact", NAMES_SECONDS, lambda: ({"secrets": names} for names in own_names(self._root)))
        if not said.rows:
            hint = "see whether /etc/hosts and /etc/passwd can be read"
            raise HostError(f"the names that the report must not contain could not be read: {said.reason}", hint=hint)

    def _machine(self, reading: Reading) -> MachineSoftware:
        def work() -> Iterator[Message]:
            yield msgspec.to_builtins(distribution.describe(reading.root))
            yield {"gpus_on_bus": len(nvidia_gpus(reading.devices))}

        said = self._part("machine", SOURCE_SECONDS, work)
        found: Message = {
            key: value for row in said.rows for key, value in row.items() if key in MachineSoftware.__struct_fields__
        }
        return msgspec.convert(found, MachineSoftware)

    def _source(self, source: fact_sources.FactSource, reading: Reading) -> Message:
        said = self._part(source.name, SOURCE_SECONDS, lambda: fact_sources.read_source(source, reading))
        return _only_row(source.name, said)

    def _files(self, reading: Reading) -> Message:
        said = self._part(FILES.name, SOURCE_SECONDS, lambda: fact_sources.read_files(reading))
        self._digests += [row["digests"] for row in said.rows if "digests" in row]
        return _only_row(FILES.name, said)

    def _nvml(self, document: config.Document) -> Message:
        wait = document.agent.nvml_deadline_seconds
        said = self._part(NVML.name, NVML_SECONDS + wait, lambda: fact_sources.read_nvml(wait))
        self._gpus = sum(row.get("gpus", 0) for row in said.rows)
        return _only_row(NVML.name, said)

    def _judge(self, reading: Reading, nvml: Message) -> tuple[_Rows, _Rows]:
        failed = "" if nvml["state"] in ("read", "partly") else "; ".join(nvml["reasons"][:1]) or "NVML could not be read"
        said = self._part("checks and settings", NVML_SECONDS + SOURCE_SECONDS, lambda: judge_machine(reading, failed))
        why = said.reason or _failure(said)
        judged: _Rows = {name: {"name": name, "state": "not_run", "reasons": [why]} for name in checks.load()}
        planned: _Rows = {name: {"name": name, "state": "not_run", "reasons": [why]} for name in settings.load()}
        judged |= {row["check"]["name"]: row["check"] for row in said.rows if "check" in row}
        planned |= {row["setting"]["name"]: row["setting"] for row in said.rows if "setting" in row}
        return judged, planned

    def _hooks(self) -> _Rows:
        why = "" if self._namespace else "no private mount namespace is permitted here" if self._is_root else "this needs root"
        rows: _Rows = {}
        if not why:
            said = self._part("hooks", HOOKS_SECONDS, hook_runs.run_hooks, guarded=False)
            rows = {row["name"]: row for row in said.rows if "name" in row}
            why = said.reason or _failure(said)
        return {name: rows.get(name, {"name": name, "state": "not_run", "reasons": [why]}) for name in hook_runs.HOOKS}


def _may_mount(say: Callable[[str], None]) -> bool:
    """Return whether this process may have mounts of its own, tried in a child process."""

    def work() -> Iterator[Message]:
        private_mounts.make_ours_empty()
        yield {}

    return run_part("mount namespace", SOURCE_SECONDS, work, say).state == "done"


def _only_row(name: str, said: PartResult) -> Message:
    """Return the row that a part gave, or one that says why there is none."""
    found = [row for row in said.rows if row.get("name") == name]
    if found:
        return found[0]
    reasons = list(filter(None, (_failure(said), said.reason)))
    return {
        "name": name,
        "state": said.state if said.state != "done" else "crashed",
        "reasons": reasons,
        "milliseconds": said.milliseconds,
    }


def _failure(said: PartResult) -> str:
    return "; ".join(str(row["failed"]) for row in said.rows if "failed" in row)


def _rows(rows: _Rows, kind: type[Any], redactor: ReportRedactor) -> tuple[Any, ...]:
    """Return the rows as their class. Times have three digits after the point."""
    found = []
    for row in rows.values():
        times = {key: round(value, 3) for key, value in row.items() if key.endswith("milliseconds")}
        found.append(msgspec.convert(redactor.row({**row, **times}), kind))
    return tuple(found)


def _redacted_machine(machine: MachineSoftware, redactor: ReportRedactor) -> MachineSoftware:
    """Redact the names of software. Distribution and version are from a list of known words, and stay: cloud images have users
    with the same names."""
    texts = {name: value for name in MachineSoftware.__struct_fields__ if isinstance(value := getattr(machine, name), str)}
    kept = ("distribution", "version")
    return replace(machine, **{name: redactor.text(text, 80) for name, text in texts.items() if name not in kept})
