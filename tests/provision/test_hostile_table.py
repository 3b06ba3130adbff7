"""Each reader of what a node says, against each thing that a hostile node may say: one list, of which every cell runs, or is held
by a test that it names, or cannot occur for a reason that it names."""

from __future__ import annotations

import importlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ansible_runner")

from fairlead import config
from fairlead.measure import job_output as job
from fairlead.measure.acceptance_run import FILE_MAX, _written
from fairlead.measure.job_script import ToolStep
from fairlead.measure.tool import MeasuredOutcome
from fairlead.measure.tools import load
from fairlead.provision.agent_accounts import SshAccounts
from fairlead.provision.inventory import targets
from fairlead.provision.maintain import node_access as maintain_node
from fairlead.provision.provision_run import ProvisionOptions
from tests.playbooks.hostile import ESCAPES, item, line, need, report, strange
from tests.provision.desk import Desk

pytestmark = [pytest.mark.timeout(300), pytest.mark.heavy]
READERS = ("provision", "plan", "apply report", "fleet", "why", "maintain", "accept", "lock", "bundle")
ATTACKS = (
    *("extra keys", "wrong types", "huge values", "deep values", "paths", "escape sequences", "another node's name"),
    "an answer that never ends",
)
NODES = {attack: f"gpu{n}" for n, attack in enumerate(ATTACKS, 1)}
HONEST = f"gpu{len(ATTACKS) + 1}"
DEEP = b"[" * 100_000 + b"]" * 100_000
ENDLESS = b"#!/bin/sh\ncat > /dev/null\nprintf 'FAIRLEAD-REPLY \"'\nexec yes endless\n"


# -- what gpuN says to provision, plan and the apply report -------------------------------------------


def replies() -> dict[str, bytes]:
    def name(attack: str) -> str:
        return NODES[attack]

    more = {"ansible_facts": {"node_bundle": "/tmp/x"}, "add_host": {"host_name": HONEST}, "exception": ESCAPES, "invocation": {}}
    told = {**report(name("extra keys"), items=[item(more=1)], more={"x": 1}), **more}
    said = item(message=ESCAPES, hint=ESCAPES, state="changed")
    evil = {**report(name("escape sequences"), items=[said]), "changes": [{"what": ESCAPES, "why": ESCAPES}]}
    return {
        "extra keys": line(told),
        "wrong types": line({**report(name("wrong types")), "changes": {"what": 1}, "changed": "yes"}),
        "huge values": line({**report(name("huge values")), "changes": [{"what": "x" * (9 << 20), "why": ""}]}),
        "deep values": line({"changed": True, "changes": 0}).replace(b"0}", DEEP + b"}"),
        "paths": line(need(packages=["../secret_admin_key", "/etc/shadow"])),
        "escape sequences": line(evil),
        "another node's name": line(report(HONEST)),
        "an answer that never ends": ENDLESS,
    }


#: These two are answers: what is not known is left out, what is not printable is made so.
TAKEN = {"extra keys": "same", "escape sequences": "changed"}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    made = Desk(tmp_path_factory.mktemp("desk"), nodes=len(ATTACKS) + 1)
    made.write_site("forks = 4")
    for attack, said in replies().items():
        made.says(NODES[attack], said)
    return made


@pytest.fixture(scope="module")
def provisioned(desk: Desk) -> tuple[dict[str, Any], str]:
    results, done = desk.results("provision", "--diff", "--report", str(desk.folder / "page"))
    return results, done.stdout + done.stderr + (desk.folder / "page").read_text()


@pytest.fixture(scope="module")
def planned(desk: Desk) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    return desk.results("plan", "--diff")


@pytest.fixture(scope="module")
def shown(desk: Desk) -> str:
    done = desk.run("plan", "--site", str(desk.site), "--diff")
    return done.stdout + done.stderr


def provision(attack: str, request: pytest.FixtureRequest) -> None:
    results, told = request.getfixturevalue("provisioned")
    assert results[NODES[attack]]["state"] == TAKEN.get(attack, "failed") and results[HONEST]["state"] == "same"
    assert strange(told) == []
    if attack not in TAKEN:
        assert "answered with something that is not an answer" in results[NODES[attack]]["message"]


def plan(attack: str, request: pytest.FixtureRequest) -> None:
    results, _ = request.getfixturevalue("planned")
    expected = {"same": "same", "changed": "would_change"}.get(TAKEN.get(attack, ""), "failed")
    assert results[NODES[attack]]["state"] == expected and results[HONEST]["state"] == "same"
    assert strange(request.getfixturevalue("shown")) == []


def apply_report(attack: str, request: pytest.FixtureRequest) -> None:
    """The node's report inside its answer: it is kept as it was taken, or not at all."""
    results, told = request.getfixturevalue("provisioned")
    applied = results[NODES[attack]]["apply"]
    assert bool(applied) == (attack in TAKEN) and "/tmp/x" not in told
    if applied:
        assert applied["node"] == NODES[attack] and "more" not in applied and "more" not in applied["items"][0]
        assert strange(json.dumps(applied, ensure_ascii=False)) == []


# -- what a node says of its agent: fleet, why, maintain ---------------------------------------------------


def statuses(name: str, other: str = HONEST) -> dict[str, bytes]:
    """status.json by attack; ``other``: the node whose name this one takes."""
    good: dict[str, Any] = {"slurm_node": name, "agent_version": "1", "findings": []}
    text = ESCAPES.replace("\ud800", "")  # half a character, which is no JSON to msgspec
    evil = {"check": text, "summary": text, "level": "drain", "device": text}
    return {
        "extra keys": json.dumps({**good, "more": {"x": [1]}, "pid": "x", "standing": 7}).encode(),
        "wrong types": json.dumps({**good, "findings": {"check": 7}}).encode(),
        "huge values": json.dumps({**good, "document": {"generation": 10**400}, "driver": "x" * (7 << 20)}).encode(),
        "deep values": b'{"more": ' + DEEP + b"}",
        "paths": json.dumps({**good, "driver": "../../etc/passwd", "document": {"profile": "/etc/shadow"}}).encode(),
        "escape sequences": json.dumps({**good, "findings": [evil], "hold": {"who": text, "reason": text}}).encode(),
        "another node's name": json.dumps({**good, "slurm_node": other}).encode(),
    }


def answers_as(desk: Desk, name: str, status: bytes) -> None:
    """The node answers `head` (fleet, maintain) and `fairlead why` with this status.json."""
    files = {"head": HEADS + b"==> /run/fairlead/status.json <==\n" + status + b"\n\n==> /dev/null <==\n"}
    files["why"] = b'{"agent": {"state": "ok", "status": ' + status + b'}, "audit": []}'
    for kind, content in files.items():
        (desk.folder / "said" / f"{name}.{kind}").write_bytes(content)
    script = f'case "$*" in *why*) kind=why ;; *) kind=head ;; esac\nexec cat {desk.folder}/said/{name}.$kind\n'
    (desk.folder / "nodes" / name).write_text(script)


#: Kept for what they are: texts that nothing opens or obeys.
SHOWN = ("extra keys", "paths", "escape sequences")
PARTS = ("/run/fairlead/verdict", "/proc/uptime", "/proc/sys/kernel/random/boot_id")
HEADS = b"==> %s <==\n1\tok\t2000\t7\t-\n\n==> %s <==\n1000.00 1\n\n==> %s <==\nb1\n\n" % tuple(p.encode() for p in PARTS)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """Nodes that answer `head` (fleet, maintain) and `fairlead why` alike."""
    made = Desk(tmp_path_factory.mktemp("agents"), nodes=len(ATTACKS) + 1)
    for attack, name in {**NODES, "extra keys ": HONEST}.items():
        if attack not in statuses(name) and attack != "extra keys ":
            made.says(name, b"#!/bin/sh\nexec yes endless\n")
            continue
        answers_as(made, name, statuses(name)[attack.strip()])
    return made


@pytest.fixture(scope="module")
def accounts(agents: Desk) -> dict[str, Any]:
    return SshAccounts(program=str(agents.ssh), seconds=120).fetch({name: name for name in agents.names})


def fleet(attack: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue("accounts")
    account = found[NODES[attack]]
    assert account.reached == (attack in SHOWN) and found[HONEST].reached and found[HONEST].verdict == "ok"
    assert account.reached or account.verdict == "none"
    assert strange("".join([account.trouble, account.text, account.hold, account.driver, account.profile, *account.drift])) == []


def why(attack: str, request: pytest.FixtureRequest) -> None:
    agents: Desk = request.getfixturevalue("agents")
    done = agents.run("why", NODES[attack], "--no-slurm", "--site", str(agents.site))
    told = done.stdout + done.stderr
    assert done.returncode == 0 and strange(told) == [] and "Traceback" not in told, told
    assert ("reach the node" in told) == (attack not in SHOWN), told


def maintain(attack: str, request: pytest.FixtureRequest) -> None:
    agents: Desk = request.getfixturevalue("agents")
    site = config.load_site(str(agents.site))
    nodes = {t.node: t for t in targets(site, "")}
    side = maintain_node.SshNodeAccess(site, nodes, program=str(agents.ssh), options=ProvisionOptions(quiet=True))
    looked, other = side.read(NODES[attack]), side.read(HONEST)
    well = not looked.trouble and not looked.stranger
    assert well == (attack in SHOWN) and not other.trouble and other.verdict == "ok"
    assert strange("".join([looked.trouble, looked.stranger, looked.text, *looked.bad])) == []


# -- what a node writes into the folder of `fairlead accept` -------------------------------------------------

MARK = "#fairlead-0123456789abcdef"
TOOL = "all_reduce"


def outputs(name: str) -> dict[str, str]:
    def framed(out: str, node: str = name) -> str:
        head = f"\n{MARK} node {node}\n\n{MARK} begin {TOOL}\n"
        return f"{head}{out}\n\n{MARK} end {TOOL} 0 1\n\n{MARK} done\n"

    return {
        "extra keys": framed('{"more": 1}') + f"\n{MARK} begin more\nx\n{MARK} end more 0 1\n",
        "wrong types": framed('{"version": [], "config": 3, "results": {"x": "y"}}'),
        "huge values": framed(
            f"# nccl-tests version 2.17.9\n{'9' * 5000} {'9' * 5000} float sum -1 1 1 {'9' * 5000} 0 1 1 1 0\n"
        ),
        "deep values": framed(DEEP.decode()),
        "paths": framed("../../etc/passwd") + f"\n{MARK} begin ../../x\nx\n{MARK} end ../../x 0 1\n",
        "escape sequences": framed(ESCAPES.replace("\ud800", "")),
        "another node's name": framed("x", HONEST),
    }


def accept(attack: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue("tmp_path")
    path = folder / "job.out"
    if attack == "an answer that never ends":
        path.write_bytes(b"y\n" * (FILE_MAX // 2 + 5))
        assert len(_written(str(path))) == FILE_MAX
        path.unlink()
        path.symlink_to("/dev/zero")
        assert _written(str(path)) == b""
        return
    path.write_text(outputs(NODES[attack])[attack])
    read = job.parse(MARK, _written(str(path)).decode("utf-8", "replace"))
    assert read.node == (
        HONEST if attack == "another node's name" else NODES[attack]
    )  # refused by name: measure.acceptance_run._collect
    step = ToolStep(name=TOOL, command="x", seconds=5)
    said = job.said(load()[TOOL], step, read.ran.get(TOOL, job.ToolRun()), 8, "the job ended")
    assert said.outcome is not MeasuredOutcome.PASS and strange("".join([said.why, *said.notes, *said.versions])) == []


# -- the table ----------------------------------------------------------------------------------------

Cell = Callable[[str, pytest.FixtureRequest], None] | str
HELD, NEVER = "held by ", "cannot occur: "
_LOCK = HELD + "tests.driver.test_lock::"
_DATABASE = _LOCK + "test_a_nodes_package_database_moves_no_cursor_and_no_file"
_BUNDLE = HELD + "tests.provision.test_offline_bundle_check::"
TABLE: dict[str, dict[str, Cell]] = {
    "provision": dict.fromkeys(ATTACKS, provision),
    "plan": dict.fromkeys(ATTACKS, plan),
    "apply report": dict.fromkeys(ATTACKS, apply_report),
    "fleet": dict.fromkeys(ATTACKS, fleet),
    "why": dict.fromkeys(ATTACKS, why),
    "maintain": dict.fromkeys(ATTACKS, maintain),
    "accept": dict.fromkeys(ATTACKS, accept),
    # Of a node it reads a copy of the package database (--status).
    "lock": {
        **dict.fromkeys(("extra keys", "wrong types", "huge values", "paths", "escape sequences"), _DATABASE),
        "deep values": NEVER + "a package database is flat (deb-control(5)): a line of it holds no other",
        "another node's name": NEVER + "a package database names no node, and the lock is not of one",
        "an answer that never ends": _DATABASE,
    },
    # It asks no node; whoever carries a bundle may have changed it.
    "bundle": {
        "extra keys": _BUNDLE + "test_a_file_that_no_bundle_has_is_refused_also_with_sums_that_fit",
        "wrong types": _BUNDLE + "test_links_and_devices_are_refused",
        "huge values": _BUNDLE + "test_sums_that_are_none_are_refused",
        "deep values": NEVER + "sums are lines, each with one path; its fairlead.lock is TOML, and too deep a one is no lock",
        "paths": _BUNDLE + "test_paths_that_lead_out_of_the_bundle_are_refused",
        "escape sequences": _BUNDLE + "test_paths_that_lead_out_of_the_bundle_are_refused",
        "another node's name": NEVER
        + "a bundle names no node; under another fairlead's name: test_another_version_and_two_wheels",
        "an answer that never ends": _BUNDLE + "test_links_and_devices_are_refused",
    },
}
RUN = [(reader, attack) for reader in TABLE for attack, cell in TABLE[reader].items() if not isinstance(cell, str)]


def test_every_reader_meets_every_attack_and_what_it_names_is_there() -> None:
    assert tuple(TABLE) == READERS
    for reader, cells in TABLE.items():
        assert set(cells) == set(ATTACKS), reader
        for cell in cells.values():
            if isinstance(cell, str) and cell.startswith(HELD):
                module, _, name = cell.removeprefix(HELD).partition("::")
                assert callable(getattr(importlib.import_module(module), name))
            elif isinstance(cell, str):
                assert cell.startswith(NEVER) and len(cell) > len(NEVER) + 20


@pytest.mark.parametrize(("reader", "attack"), RUN)
def test_a_hostile_node(reader: str, attack: str, request: pytest.FixtureRequest) -> None:
    cell = TABLE[reader][attack]
    assert not isinstance(cell, str)
    cell(attack, request)
