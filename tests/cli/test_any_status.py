"""Whatever a node's status says or lacks, each command that shows it has an account or one line why there is none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

pytest.importorskip("ClusterShell")

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fairlead.cli import main
from fairlead.cli.fleet_table import lines, summary, table
from fairlead.cli.why_text import steps, why_text
from fairlead.errors import DataError
from fairlead.provision.agent_accounts import parse_account
from fairlead.provision.agent_status import Status, WhyAnswer, account_of
from fairlead.provision.maintain.node_access import parse_reading
from fairlead.provision.roster import as_data, fold, rows
from fairlead.slurm.client import NodeState
from fairlead.slurm.listing import Listed

EVIL = "x` ; $(reboot) \x1b[2J\u202e\u2800\n--all"
TEXTS = st.sampled_from(["", "n1", "xid", "setting.memlock", "0000:1b:00.0", "drain", "enforce", "warn", "none", "failed", EVIL])
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**20), st.floats(allow_nan=False), TEXTS, st.lists(TEXTS), st.just({})
)


def of(kind: Any, wild: bool = False) -> st.SearchStrategy[Any]:
    """Values of a type of agent_status.py, without any of the keys that may be missing; ``wild``: also other values, or none."""
    origin, inner = get_origin(kind), get_args(kind)
    if hasattr(kind, "__metadata__"):  # Annotated: its bounds are kept by what is below
        return of(inner[0] if inner else origin, wild)
    if str(origin).endswith("Required"):
        return of(inner[0], wild)
    if str(origin).endswith("Literal"):
        return st.sampled_from(inner)
    if origin is list:
        return st.lists(of(inner[0], wild), max_size=3)
    if origin is dict:
        return st.dictionaries(TEXTS, of(inner[1], wild), max_size=3)
    if inner:  # a union
        return st.one_of([of(each, wild) for each in inner])
    if kind is type(None):
        return st.none()
    if hasattr(kind, "__total__"):
        hints = get_type_hints(kind, include_extras=True)
        made = {name: st.one_of([of(hint, wild)] * 12 + [JUNK] * wild) for name, hint in hints.items()}
        needed = {name for name, hint in hints.items() if not wild and (kind.__total__ or "Required" in str(get_origin(hint)))}
        optional = {**{name: each for name, each in made.items() if name not in needed}, "more": JUNK}
        return st.fixed_dictionaries({name: made[name] for name in needed}, optional=optional)
    return {str: TEXTS, int: st.integers(0, 9), float: st.floats(0, 2e9), bool: st.booleans()}[kind]


ACCOUNTS = st.one_of(of(WhyAnswer), of(WhyAnswer), of(WhyAnswer, wild=True))
STATUSES = st.one_of(of(Status), of(Status), of(Status, wild=True), JUNK)
SLURM = [None, {"error": "no answer", "away": True}, {"states": ["IDLE", "DRAIN"], "reason": "fairlead:xid:abcdef012345 x"}]
SLURM += [
    {"states": ["IDLE", "DRAIN"], "reason": "riser"},
    {"states": ["IDLE"], "reason": ""},
    {"states": ["DOWN"], "reason": ""},
]
SETTINGS = settings(max_examples=150, suppress_health_check=list(HealthCheck))


def safe(shown: str) -> None:
    """What is offered between marks is a command of ours: no word of it is more than one plain word of a node's."""
    for command in re.findall("`([^`]*)`", shown):
        assert "reboot)" not in command and "x'" not in command and "--all " not in command.replace("--all --reason", ""), shown
    assert shown.count("`") % 2 == 0, shown


FINDING = {"check": EVIL, "summary": EVIL, "level": "drain", "device": EVIL, "mode": "enforce", "id": EVIL}
HOLD = {"who": EVIL, "reason": EVIL}
LIMIT = {"held": EVIL, "over_budget": EVIL, "limit": {"kind": EVIL, "name": EVIL}}
OFTEN = f"fairlead, {EVIL} drained too often: resume by hand"


@given(ACCOUNTS, st.sampled_from(SLURM))
@example({"agent": {"state": "drain", "text": OFTEN, "status": {"findings": [FINDING], "hold": HOLD, "slurm": LIMIT}}}, None)
@example({"agent": {"state": "ok", "status": {"findings": [{**FINDING, "action": "reset_gpu"}], "acknowledged": [EVIL]}}}, None)
@example(
    {"agent": {"state": "ok", "status": {"findings": [{**FINDING, "action": EVIL, "raised": {"from": EVIL, "why": EVIL}}]}}}, None
)
@example({"agent": {"state": "ok", "status": {"return": {"outcome": "passed", "state": "failed"}}}}, None)
@SETTINGS
def test_why_over_ssh(account: dict[str, Any], slurm: dict[str, Any] | None) -> None:
    try:
        found = account_of(json.dumps(account).encode())
    except DataError as e:
        assert str(e).isprintable()
        return
    agent: dict[str, Any] = dict(found["agent"])
    told = why_text("n1", agent, slurm, list(found.get("audit", [])))
    assert all(line.isprintable() for line in told)
    for line in [*steps("n1", agent, slurm, "ours"), *steps("n1", agent, slurm, "foreign"), *steps("n1", agent, slurm, "")]:
        safe(line)
    for line in told:
        if line.startswith(("next:", "  do:")):
            safe(line)


def answer(status: object) -> bytes:
    parts = ("==> /run/fairlead/verdict <==", "1\twarn\t1100\t7\tx\n", "==> /proc/uptime <==", "1000.00 7\n")
    boot = ("==> /proc/sys/kernel/random/boot_id <==", "b1\n")
    return "\n".join((*parts, *boot, "==> /run/fairlead/status.json <==", json.dumps(status), "\n==> /dev/null <==\n")).encode()


@given(STATUSES)
@SETTINGS
def test_fleet_and_maintain(status: object) -> None:
    account = parse_account(answer(status))
    state = NodeState(name="n1", states=frozenset({"IDLE"}), reason="")
    made = rows([Listed(state=state, version="", jobs=())], {"n1": account})
    told = [*lines(fold(made)), summary(made, 1.0), *(cell for row in table(fold(made), 2e9)[1] for cell in row)]
    msgspec.json.encode(as_data(made))
    reading = parse_reading(answer(status), "n1")
    assert all(
        text.isprintable()
        for text in (*told, reading.trouble, reading.stranger, reading.text, reading.machine, *reading.bad, *reading.worse)
    )


@given(STATUSES)
@settings(SETTINGS, max_examples=60)
def test_status_and_why_of_this_machine(tmp_path_factory: pytest.TempPathFactory, status: object) -> None:
    """A status.json of another release, or of nobody's, is none."""
    folder: Path = tmp_path_factory.mktemp("run")
    (folder / "verdict").write_text("1\tok\t99999999\t7\t-\n")
    (folder / "status.json").write_text(json.dumps(status))
    where = ["--run-dir", str(folder)]
    for command in (["status", *where], ["status", "--json", *where], ["why", "--no-slurm", "--state-dir", str(folder), *where]):
        assert main(command) in (0, 1, 2, 3)
