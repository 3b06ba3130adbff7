"""Show the agent's verdict on this node: its state, its age, and its findings. The command reads only /run/fairlead.

Exit codes are those of `fairlead check`. A missing verdict is unknown (3), and so is an expired one, unless it says drain.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, NotRequired, TypedDict

import msgspec

from fairlead.cli.output import age_text, print_json, state_word
from fairlead.cli.same_findings import folded
from fairlead.errors import DataError, ExitCode
from fairlead.model.json_text import NOT_JSON
from fairlead.model.status_data import StatusData
from fairlead.model.verdict import State, Verdict, parse_line

RUN_DIR = "/run/fairlead"


class StatusSummary(TypedDict):
    """The verdict and the status of the agent. state: what a reader may rely on now. status: the agent's status.json; {} if
    there is none, and other keys than these from an agent of another release."""

    state: str
    text: str
    expired: bool
    sequence: NotRequired[int]
    expires_in_seconds: NotRequired[float]
    age_seconds: NotRequired[float | None]
    status: StatusData


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run-dir", metavar="DIR", default=RUN_DIR, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print JSON")


def read_verdict(run_dir: str) -> Verdict | str:
    """Return the published verdict, or the reason why there is none."""
    path = os.path.join(run_dir, "verdict")
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return parse_line(f.read(4096))
    except FileNotFoundError:
        return f"{path}: no verdict; is fairlead-agent.service running?"
    except OSError as e:
        return f"{path}: {e.strerror}"
    except DataError as e:
        return f"{path}: {e}"


def read_status(run_dir: str) -> dict[str, Any]:
    """Return the status.json that the agent publishes. Return {} if it cannot be read, or if a known key has a wrong type."""
    from fairlead.provision.agent_status import Status

    try:
        with open(os.path.join(run_dir, "status.json"), "rb") as f:
            data = msgspec.json.decode(f.read(4 << 20))
        msgspec.convert(data, Status)
    except (*NOT_JSON, OSError):
        return {}
    return dict(data)


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def summary(run_dir: str) -> dict[str, Any]:
    """Return verdict and status as one table. ``state`` is the state that a reader may rely on now."""
    verdict = read_verdict(run_dir)
    status = read_status(run_dir)
    if isinstance(verdict, str):
        return {"state": "unknown", "text": verdict, "expired": True, "status": status}
    left = verdict.expires - boottime()
    state = verdict.state.value if left >= 0 or verdict.state is State.DRAIN else "unknown"
    swept = status.get("sweep", {}).get("boot_seconds")
    return {
        "state": state,
        "text": verdict.text,
        "sequence": verdict.sequence,
        "expires_in_seconds": round(left, 1),
        "expired": left < 0,
        "age_seconds": round(boottime() - swept, 1) if isinstance(swept, int | float) else None,
        "status": status,
    }


def lost_words(folder: str, memory: str) -> str:
    """Return what a reboot loses if the state folder is in memory."""
    lost = "the ledger, strikes, acknowledgements, history, audit trail, admin hold and the usage records not collected yet"
    return f"{folder} is in memory ({memory}): a reboot loses {lost}"


def _findings(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each finding, as `check` prints it.

    A finding that the agent suppresses counts as a warning, with the reason. Suppressed findings that the last sweep did not
    have come at the end.
    """
    held = {(f["check"], f["summary"]): f.get("why", "") for f in status.get("held", [])}
    found = [{**f, "held": held.get((f["check"], f["summary"]), "")} for f in status.get("findings", [])]
    for same in folded(found, also=("mode", "held")):
        f = same.first
        level, mark = ("warn", f" ({f['held']})") if f["held"] else (f.get("level", "?"), "")
        yield f"  {state_word(level):7} {same.subject()} [{f.get('mode', '?')}]: {same.words()}{mark}"
    for check, summary in [key for key in held if key not in {(f["check"], f["summary"]) for f in found}]:
        yield f"  held    {check}: {summary} ({held[check, summary]})"


def run(args: argparse.Namespace) -> ExitCode:
    data = summary(args.run_dir)
    code = ExitCode[data["state"].upper()]
    if args.json:
        print_json(data)
        return code
    status = data["status"]
    node = status.get("node", os.uname().nodename)
    age = f", last sweep {age_text(data['age_seconds'])} ago" if data.get("age_seconds") is not None else ""
    stale = " (expired: the agent has stopped its sweeps)" if data["expired"] and "sequence" in data else ""
    print(f"{node}: {state_word(data['state'])}{age}{stale}")
    if data["text"]:
        print(f"  {data['text']}")
    for line in _findings(status):
        print(line)
    if drain := status.get("drain"):
        print(f"  drained by fairlead: {drain.get('reason', '')}")
    if hold := status.get("hold"):
        print(f"  on hold by {hold.get('who', '?')}: {hold.get('reason', '')}")
    slurm = status.get("slurm", {})
    if error := slurm.get("error"):
        print(f"  slurmctld: {error}")
    if limit := slurm.get("limit"):
        print(f"  delayed by {limit['kind']} {limit['name']}: {slurm.get('over_budget', '')}")
    if str(slurm.get("topology", "")).startswith("unknown"):
        print(f"  topology {slurm['topology']}; no drain limit per switch or block applies")
    for trouble in status.get("trouble", []):
        print(f"  trouble: {trouble}")
    if memory := status.get("state_folder", {}).get("lost_at_reboot"):
        print(f"  note: {lost_words(status['state_folder'].get('path', ''), memory)} (docs/how-to/stateless.md)")
    document = status.get("document", {})
    if document:
        print(
            f"  document generation {document.get('generation')}, profile {document.get('profile') or 'none'}, "
            f"agent {status.get('agent_version', '?')}"
        )
    return code


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": StatusSummary}
