"""Say when and why a node would have been drained: judge recorded kernel logs with the checks and the policy.

fairlead replay LOG...                    with this node's document, or the defaults
fairlead replay LOG... --policy new.toml  with another policy
fairlead replay LOG... --policy new.toml --against old.toml   also show what differs between the two policies

LOG is one node's kernel log (dmesg, journalctl -k, journalctl -o json, syslog, /dev/kmsg; - for standard input) or an
agent's history file (/var/lib/fairlead/history.sqlite). A policy is a node's document, or a TOML or JSON file with
its [policy] and [checks] tables. The time is that of the log. The command asks no node and changes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead import config
from fairlead.cli.output import print_json
from fairlead.cli.read_machine import DOCUMENT
from fairlead.errors import ConfigError, DataError, ExitCode, InputMissing, UsageError
from fairlead.model.json_text import NOT_JSON
from fairlead.model.verdict import one_line
from fairlead.provision.terminal_frame import beneath
from fairlead.replay.recording import Recording, read, read_log
from fairlead.replay.simulation import Difference, Event, Replayed, compare, prefixes, replay

PATIENCE_SECONDS = 2.0  # a replay that takes longer shows its progress
_HEAD = ("schema", "generation", "hash", "node", "profile", "unsupported")


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", nargs="+", metavar="LOG", help="a kernel log or history.sqlite of one node; - for standard input")
    parser.add_argument("--policy", default="", metavar="FILE", help="judge by this policy instead of this node's document")
    parser.add_argument("--against", default="", metavar="FILE", help="compare with another policy, and show what differs")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    if args.logs.count("-") > 1:
        raise UsageError("standard input can be read only once")
    document = _policy(args.policy) if args.policy else _own()
    other = _policy(args.against) if args.against else None
    progress = _Progress()
    first: list[Replayed] = []
    second: list[Replayed] = []
    hidden: list[str] = []
    for path in args.logs:
        recording = _recording(path, progress)
        if recording.hidden:
            hidden.append(f"{recording.name}: line {', '.join(map(str, recording.hidden))}")
        first.append(replay(recording, document, progress.tell))
        if other is not None:
            second.append(replay(recording, other, progress.tell))
    progress.end()
    differences = [d for one, two in zip(first, second, strict=False) for d in compare(one, two)]
    if args.json:
        data: dict[str, Any] = {"logs": [_data(r) for r in first], "against": None, "differences": None}
        if other is not None:
            data |= {"against": [_data(r) for r in second], "differences": msgspec.to_builtins(differences)}
        print_json(data)
    else:
        for replayed in first:
            _print(replayed)
    if other is not None and not args.json:
        _print_differences(differences, args.policy or (DOCUMENT if os.path.exists(DOCUMENT) else "the defaults"), args.against)
    if hidden:
        raise DataError(
            f"an Xid, SXid or bus loss is behind an unknown prefix, and is not judged: {'; '.join(hidden)}",
            hint="cut the prefix off, so that the line begins with its time stamp, with kernel: or with NVRM:",
        )
    return ExitCode.OK


def _recording(path: str, progress: _Progress) -> Recording:
    if path != "-":
        return read(path, prefixes(), progress.tell)
    if sys.stdin is None:
        raise InputMissing("standard input is closed")
    return read_log(sys.stdin.buffer, "standard input", prefixes(), progress.tell)


def _own() -> config.Document:
    return config.load_document(DOCUMENT) if os.path.exists(DOCUMENT) else config.profile_document("replay")


def _policy(path: str) -> config.Document:
    """Return the document of a policy file: a node's own document, or some of its sections.

    Raise InputMissing, DataError, ConfigError.
    """
    try:
        with open(path, "rb") as f:
            raw = f.read(4 << 20)
    except (OSError, ValueError) as e:
        raise InputMissing(f"{path}: {getattr(e, 'strerror', None) or e}") from None
    data = _decoded(raw, path)
    layer = {key: value for key, value in data.items() if key not in _HEAD}
    for key, value in layer.items():
        if key not in config.SECTION_NAMES:
            raise ConfigError(path, key, "unknown key", hint="a node's document, or its tables policy and checks")
        if not isinstance(value, Mapping):
            raise ConfigError(path, key, "must be a table")
    return config.resolve_layers("replay", [(path, layer)])[0]


def _decoded(raw: bytes, path: str) -> dict[str, Any]:
    import tomllib

    try:
        data = msgspec.json.decode(raw) if raw.lstrip().startswith(b"{") else tomllib.loads(raw.decode())
    except (*NOT_JSON, tomllib.TOMLDecodeError) as e:
        raise DataError(f"{path}: neither TOML nor JSON: {e}") from None
    if not isinstance(data, dict):
        raise DataError(f"{path}: not a JSON object")
    return data


class _Progress:
    """Shows progress on standard error if the replay takes long and standard error is a terminal."""

    def __init__(self) -> None:
        self._due = time.monotonic() + PATIENCE_SECONDS
        self._shown = False

    def tell(self, name: str, part: float) -> None:
        if time.monotonic() >= self._due and sys.stderr.isatty():
            self._due = time.monotonic() + 0.2
            self._shown = True
            beneath(sys.stderr).write("\r")
            print(f"{name}: {part:4.0%} ", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=beneath(sys.stderr), flush=True)


def _data(replayed: Replayed) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(replayed)
    return {**data, "drains": len(replayed.drains)}


def _print(replayed: Replayed) -> None:
    boots = f"{replayed.boots} boot{'s' * (replayed.boots != 1)}"
    print(f"{replayed.name}: {boots}, {replayed.lines} lines, {replayed.records} of them for the checks")
    many = replayed.boots > 1
    for event in replayed.events:
        print("  " + _line(event, many=many))
        if event.line:
            print(f"      line {event.line}" + "".join(f": {one_line(evidence)}" for evidence in event.evidence))
    for at, text in replayed.recorded:
        print(f"  {at}  at the time: {one_line(text)}")
    times = len(replayed.drains)
    end = "; drained at the end" if replayed.drained else ""
    print(f"  would have been drained {times} time{'s' * (times != 1)}{end}")


def _line(event: Event, *, many: bool) -> str:
    boot = f"boot {event.boot}, " if many else ""
    words = {"by_hand": "by hand"}.get(event.kind, event.kind)
    after = " (once the job has ended)" if event.kind == "drain" and event.service == "drain_after_job" else ""
    why = f" ({event.why})" if event.why else ""
    at = f"{event.at}  " if event.at else ""
    return f"{boot}{at}{words:7}  {one_line(event.text)}{after}{why}"


def _print_differences(differences: list[Difference], policy: str, against: str) -> None:
    print(f"difference between {policy} and {against}:")
    for d in differences:
        if d.only == "both":
            event = d.policy or d.against
            print(f"  {d.name}: " + (f"{event.at}: {one_line(event.text)}: " if event else "") + d.what)
        elif (event := d.policy or d.against) is not None:
            one, two = (policy, against) if d.only == "policy" else (against, policy)
            print(f"  {d.name}: {event.at}: {one} drains for {one_line(event.text)}; {two}: {d.what}")
    if not differences:
        print("  none")


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli.json_schema import extended, list_of

    logs = list_of(extended("PrintedLog", Replayed, {"drains": int}))

    return {
        "": extended(
            "PrintedReplay",
            msgspec.Struct,
            {"logs": logs, "against": logs | None, "differences": list[Difference] | None},
            doc="The logs with the policy, and with --against with the other policy too.",
        )
    }
