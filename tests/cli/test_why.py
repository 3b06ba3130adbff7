"""What `fairlead why` says first: whose the node is and what to do next, for every situation it can be found in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli import main
from fairlead.cli.audited import actor
from fairlead.cli.why_text import DOWN, FOREIGN, FREE, MANUAL, ORPHAN, OURS, UNASKED, owner, steps, why_text
from tests.daemon.conftest import PROJECT

PCI = "0000:1b:00.0"
REASON = f"fairlead:xid:abcdef012345 Xid 79 on GPU {PCI}: reboot_node"
HAND = "fairlead:manual:abcdef012345 new PSU"
XID = {
    "check": "xid",
    "level": "drain",
    "device": PCI,
    "summary": f"Xid 79 on GPU {PCI}",
    "evidence": ["kernel log at 7.0 s, record 7"],
    "action": "reboot_node",
    "mode": "enforce",
    "id": f"xid/{PCI}#b1:7",
}


def slurm(states: str, reason: str = "", user: str = "root") -> dict[str, Any]:
    return {"states": states.split("+"), "reason": reason, "reason_user": user if reason else "", "reason_unix": 1e9}


def agent(state: str = "ok", text: str = "", **status: Any) -> dict[str, Any]:
    return {"state": state, "text": text, "sequence": 7, "expired": False, "age_seconds": 2.0, "running": True, "status": status}


@pytest.mark.parametrize(
    ("states", "reason", "status", "expected"),
    [
        ("IDLE", "", {}, FREE),
        ("IDLE", REASON, {"drain": None}, FREE),  # 24.11 keeps the words of a drain that is over
        ("IDLE+DRAIN", REASON, {"drain": {"reason": REASON}}, OURS),
        ("IDLE*+DRAIN", REASON + " : Not responding", {"drain": {"reason": REASON}}, OURS),
        ("IDLE+DRAIN", REASON + " and more", {"drain": {"reason": REASON}}, ORPHAN),
        ("IDLE+DRAIN", REASON, {"drain": None}, ORPHAN),
        ("IDLE+DRAIN", REASON, None, UNASKED),
        ("MIXED+DRAIN", HAND, {"drain": {"reason": HAND}}, MANUAL),
        ("MIXED+DRAIN", "riser swap by bob", {"drain": None}, FOREIGN),
        ("IDLE+DRAIN", "", {"drain": None}, FOREIGN),
        ("DOWN", "Not responding", {"drain": None}, DOWN),
        ("DOWN+DRAIN", "off", {"drain": None}, FOREIGN),
    ],
)
def test_whose_it_is(states: str, reason: str, status: dict[str, Any] | None, expected: str) -> None:
    assert owner(slurm(states, reason), status) == expected


OWN = slurm("IDLE+DRAIN", REASON)
BAD: dict[str, Any] = {"findings": [XID]}
SITUATIONS: dict[str, tuple[dict[str, Any], dict[str, Any] | None, list[str]]] = {
    "healthy": (agent(), slurm("IDLE"), ["nothing to do"]),
    "ours": (
        agent("drain", **BAD, drain={"reason": REASON}),
        OWN,
        ["reboot the node", f"`fairlead clear {PCI} --reason TEXT`", "the agent resumes the node after its clean sweeps"],
    ),
    "ours, too often": (
        agent("drain", f"drained by fairlead, {PCI} was drained too often: resume by hand", drain={"reason": REASON}),
        OWN,
        [f"the agent does not resume the node by itself: {PCI} was drained too often", f"`fairlead clear {PCI} --reason TEXT`"],
    ),
    "an admin's": (agent(), slurm("IDLE+DRAIN", "riser swap", "bob"), ["ask whoever drained it (bob)"]),
    "an admin's, and broken": (
        agent("warn", **BAD),
        slurm("IDLE+DRAIN", "riser swap", "bob"),
        ["ask whoever drained it (bob)", "reboot the node", "a resume before that does not last"],
    ),
    "by hand": (agent("drain", drain={"reason": HAND}), slurm("IDLE+DRAIN", HAND), ["when the work is done: `fairlead resume`"]),
    "held": (agent("warn", hold={"who": "ann"}), slurm("IDLE"), ["the agent is on hold (ann)"]),
    "acknowledged": (
        agent("warn", **BAD, acknowledged=[XID["id"]]),
        slurm("IDLE"),
        [f"nothing now: xid/{PCI} is active and acknowledged, so jobs may start; `fairlead ack --undo`"],
    ),
    "gone from Slurm since the agent last looked": (
        agent("drain", **BAD, drain={"reason": REASON}),
        slurm("IDLE"),
        ["reboot the node", "ask again in a minute: a person's resume acknowledges what was known"],
    ),
    "over budget": (
        agent("warn", **BAD, slurm={"over_budget": "2 of 2 nodes", "limit": {"kind": "budget", "name": "partition gpu"}}),
        slurm("IDLE"),
        ["reboot the node", "not drained: 2 of 2 nodes; repair and resume nodes that are out"],
    ),
    "common cause": (
        agent("warn", **BAD, slurm={"limit": {"kind": "common_cause", "name": "check xid"}}),
        slurm("IDLE"),
        ["reboot the node", "not drained: check xid; if the drains have one cause"],
    ),
    "waits for slurmctld": (
        agent("warn", **BAD, slurm={"held": "powering up"}),
        slurm("IDLE"),
        ["reboot the node", "not drained yet: powering up"],
    ),
    "agent down": ({**agent(), "running": False}, slurm("IDLE"), ["the agent is down", "until it is back"]),
    "agent's verdict expired": ({**agent("unknown"), "expired": True}, slurm("IDLE"), ["the agent is down", "until it is back"]),
    "unreadable": (agent("unknown", "cannot judge"), slurm("IDLE"), ["some values could not be read"]),
    "not reached": ({"error": "n1 did not answer ssh"}, OWN, ["reach the node"]),
    "an orphan": (agent("ok", drain=None), OWN, ["look at the node; when it is well: `fairlead resume --adopt`"]),
    "down": (agent(), slurm("DOWN", "Not responding"), ["see why: `scontrol show node n1`"]),
    "slurmctld away": (
        agent(),
        {"error": "sinfo gave no answer in 10 s", "away": True},
        ["find out why slurmctld does not answer"],
    ),
    "not asked": (agent(), None, ["nothing to do"]),
}


def test_after_a_reboot_and_a_slurmctld_without_its_state_no_line_contradicts_another() -> None:
    """The agent still has its drain, Slurm has none, and no person has resumed anything."""
    account = agent("drain", "drained by fairlead, recovering", **BAD, drain={"reason": REASON})
    told = "\n".join(why_text("n1", account, slurm("IDLE")))
    assert "has gone since the agent last read slurmctld" in told
    for wrong in ("nobody drained it", "resumed by a person", "nothing here drains", "nothing to do"):
        assert wrong not in told


LOST = {**XID, "check": "gpu_count", "summary": f"GPU {PCI} is lost", "id": "gpu_count/#lost=1"}
IN_SLURM = {
    "idle": slurm("IDLE"),
    "idle, with the words of a drain that is over": slurm("IDLE", REASON),
    "ours": OWN,
    "an admin's": slurm("IDLE+DRAIN", "riser swap", "bob"),
    "waits for its reboot": slurm("MIXED+DRAIN+REBOOT_REQUESTED", REASON),
    "reboots": slurm("DOWN+DRAIN+REBOOT_ISSUED", f"{REASON} : reboot issued"),
    "is rebooted": slurm("IDLE", f"{REASON} : reboot issued"),
    "down": slurm("DOWN", "Not responding"),
    "unknown": slurm("UNKNOWN"),
    "slurmctld away": {"error": "sinfo gave no answer in 10 s", "away": True},
    "not asked": None,
}
FACTS: dict[str, dict[str, Any]] = {
    "well": {},
    "lost": {"findings": [LOST]},
    "lost before the reboot": {"held": [{**LOST, "why": "seen before the reboot, not since"}]},
    "lost, and a reboot waits": {"findings": [LOST], "held": [{**LOST, "why": "x"}], "slurm": {"held": "rebooting"}},
    "lost and acknowledged": {"findings": [LOST], "acknowledged": [LOST["id"]]},
}


def wrong_words(facts: str) -> tuple[str, ...]:
    """What nobody may be told: no person has done anything here but in the last of ``FACTS``."""
    nothing = ("nothing to do", "reason for a drain") if facts != "well" else ()
    return (*nothing, *(("acknowledged:", "and acknowledged") if "acknowledged" not in facts else ()), "resumed by")


@pytest.mark.parametrize("facts", FACTS)
@pytest.mark.parametrize("ledger", [None, REASON, HAND], ids=["no drain", "its own drain", "a drain by hand"])
@pytest.mark.parametrize("state", IN_SLURM)
def test_nobody_is_said_to_have_done_what_nobody_did(state: str, ledger: str | None, facts: str) -> None:
    """Whatever the agent has in its ledger, Slurm shows and the checks have found."""
    status = {**FACTS[facts], "drain": {"reason": ledger} if ledger else None}
    told = "\n".join(why_text("n1", agent("warn", **status), IN_SLURM[state])).lower()
    assert [words for words in wrong_words(facts) if words in told] == [], told
    assert "next:" in told


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_next_steps(name: str) -> None:
    account, state, expected = SITUATIONS[name]
    told = steps("n1", account, state, owner(state, account.get("status")))
    assert len(told) == len(expected) and all(part in step for part, step in zip(expected, told, strict=True)), told
    lines = why_text("n1", account, state)
    assert [line for line in lines if line.startswith("next:")] == [f"next:     {step}" for step in told]
    assert all("\n" not in line for line in lines)


def test_the_whole_story_of_a_drain() -> None:
    account = agent(
        "drain",
        **BAD,
        drain={"reason": REASON},
        gpus=[{"pci": PCI, "serial": "1651"}],
        strikes={"1651": [1e9, 1e9 + 60]},
        history=[
            {"unix_seconds": 1e9, "event": "verdict warn", "text": "drain pending"},
            {"unix_seconds": 1e9 + 3, "event": "drained", "text": REASON},
        ],
    )
    entry = {"unix": 1e9 + 2, "id": "a", "what": "drained", "who": "agent", "args": {"reason": REASON}, "outcome": "done"}
    torn: list[object] = [7, {"unix": "x"}, None]
    told = "\n".join(why_text("n1", account, OWN, [entry, *torn]))
    for part in ("fairlead's own drain", "record 7", "meaning:  ", "mode enforce: may drain", "serial 1651, 2 strikes: 2001-"):
        assert part in told
    past = [line for line in told.splitlines() if line.startswith("past:")]
    assert len(past) == 2 and "verdict warn" in past[0] and "agent: drained" in past[1]


def test_held_says_so_once() -> None:
    account = agent("warn", **BAD, held=[{"check": "xid", "summary": XID["summary"], "why": "held by an admin"}])
    told = "\n".join(why_text("n1", account, slurm("IDLE")))
    assert told.count("held by an admin") == 1 and "\nheld:" not in told


def test_another_node_is_asked_over_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ssh is the only thing put in its place: what it starts is the real command, on "the node"."""
    run_dir, state_dir = tmp_path / "run", tmp_path / "state"
    run_dir.mkdir()
    status = {"slurm_node": "gpu7", "findings": [XID], "hold": {"who": "ann", "when": "now", "reason": "riser 2\x1b[2J\u202e"}}
    (run_dir / "status.json").write_text(json.dumps(status))
    (tmp_path / "ssh").write_text(
        "#!/bin/sh\n"
        'for last; do :; done; echo "$last" >"$(dirname "$0")/asked"; shift $(($# - 1)); set -- $1; shift\n'
        f'exec {sys.executable} -m fairlead "$@" --run-dir {run_dir} --state-dir {state_dir}\n'
    )
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "agent"))
    from fairlead.daemon.requests.audit_trail import Trail

    Trail(str(state_dir), str(run_dir)).agent("drained", args={"reason": REASON})
    assert main(["why", "gpu7", "--no-slurm", "--run-dir", str(tmp_path / "here")]) == 0
    told = capsys.readouterr().out
    assert told.startswith("gpu7\n") and "agent: drained" in told and "riser 2" in told and "Xid 79" in told
    assert not {"\x1b", "\u202e"} & set(told), "what another node says does not steer the terminal"
    assert (tmp_path / "asked").read_text() == "fairlead why --no-slurm --json\n"
    assert main(["why", "gpu7", "--no-slurm", "--run-dir", str(tmp_path / "here"), "--json", "--history"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["next"][0].startswith("the agent is down") and [e["what"] for e in data["audit"]] == ["drained"]
    assert (tmp_path / "asked").read_text() == "fairlead why --no-slurm --json --history\n"
    (tmp_path / "ssh").write_text("#!/bin/sh\necho Permission denied >&2\nexit 255\n")
    assert main(["why", "gpu7", "--no-slurm", "--run-dir", str(tmp_path / "here")]) == 0
    assert "no account of the agent over ssh: Permission denied" in capsys.readouterr().out
    (tmp_path / "ssh").write_text("#!/bin/sh\necho '[7]'\n")
    assert main(["why", "gpu7", "--no-slurm", "--run-dir", str(tmp_path / "here")]) == 0
    assert "answered with something that is not an answer" in capsys.readouterr().out


def test_the_site_of_this_host_says_how_a_node_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `fairlead fleet` does it; and Slurm's folder is named by the same option, also by the name that it had in 0.1.0."""
    (tmp_path / "ssh").write_text('#!/bin/sh\necho "$@" >"$(dirname "$0")/asked"\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    site = tmp_path / "site.toml"
    classes = '[classes.a]\nnodes = "gpu7"\n'
    site.write_text(f'schema = 1\n{classes}[ansible]\nuser = "ann"\nhosts = {{ gpu7 = "10.9.8.7" }}\n')
    monkeypatch.setattr("fairlead.cli.why.SITE", str(site))
    for option in ("--bin-dir", "--slurm-bin"):
        assert main(["why", "gpu7", "--run-dir", str(tmp_path / "here"), option, str(tmp_path / "slurm")]) == 66
        said = capsys.readouterr().err
        assert f"{tmp_path}/slurm/" in said, "Slurm was asked there"
        assert " ann@10.9.8.7 " in (tmp_path / "asked").read_text()


def test_what_is_said_of_a_missing_sinfo_is_an_option_of_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"slurm_node": "gpu7"}))
    words = ["why", "gpu7", "--run-dir", str(tmp_path), "--state-dir", str(tmp_path)]
    assert main([*words, "--bin-dir", str(tmp_path / "none")]) == 0
    assert "next:     name the folder of Slurm's commands: --bin-dir DIR here" in capsys.readouterr().out


def test_status_says_what_troubles_the_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page on monitoring sends the reader here when the metrics' folder is not there."""
    (tmp_path / "verdict").write_text("1\tok\t99999999\t7\t-\n")
    (tmp_path / "status.json").write_text(json.dumps({"trouble": ["/m/fairlead.prom: No such file or directory"]}))
    assert main(["status", "--run-dir", str(tmp_path)]) == 0
    assert "  trouble: /m/fairlead.prom: No such file or directory\n" in capsys.readouterr().out


EVIL = "\x1b[2J\x1b]0;t\x07\x9b1m\u202e\u2028\r\nnext:     nothing to do\x00[red]x[/red]"
HONEST = agent("warn", EVIL, findings=[{**XID, "evidence": [EVIL], "summary": EVIL, "device": EVIL, "action": EVIL}])
HONEST["status"] |= {"hold": {"who": EVIL, "reason": EVIL}, "slurm_node": "gpu7", "trouble": [EVIL], "strikes": {EVIL: [1.0]}}
ENTRY = {"unix": 1e9, "id": "x", "what": EVIL, "who": EVIL, "tty": EVIL, "args": {EVIL: EVIL}, "why": EVIL}


def _status(**more: Any) -> str:
    return json.dumps({"agent": {"state": "ok", "status": {"slurm_node": "gpu7", **more}}})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (json.dumps({"agent": HONEST, "audit": [ENTRY], "next": [EVIL], "node": EVIL}), "finding:"),
        (_status(slurm_node="gpu8"), "leads to gpu8"),
        (json.dumps({"agent": {"state": "fine"}}), "not an answer"),
        (_status(findings=7), "not an answer"),
        (_status(findings=[{"check": 1, "summary": ""}]), "not an answer"),
        (_status(reboots=[1e300]), "not an answer"),
        (_status(strikes={"x": "y"}), "not an answer"),
        (json.dumps({"agent": {"state": "ok"}, "audit": [{**ENTRY, "unix": 1e300}]}), "not an answer"),
        ("[" * 100_000, "not an answer"),
        ('{"agent": {"state": "ok"}, "more": ' + "[" * 100_000 + "]" * 100_000 + "}", "not an answer"),
        (None, "it does not end"),
    ],
)
def test_a_node_whose_root_is_hostile_tells_no_story_but_its_own(
    answer: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "answer").write_text(answer or "")
    (tmp_path / "ssh").write_text(
        f"#!/bin/sh\n[ -s {tmp_path}/answer ] && exec cat {tmp_path}/answer\nwhile :; do printf %065536d 0; done\n"
    )
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for more in ((), ("--json",)):
        assert main(["why", "gpu7", "--no-slurm", "--run-dir", str(tmp_path / "here"), *more]) == 0
        told = capsys.readouterr()
        written = told.out + told.err
        assert words.rstrip(":") in written and [c for c in written if c != "\n" and not c.isprintable()] == []
        assert "\nnext:" not in written, "a line of the node's own"


def test_who_gave_a_command_is_known_through_sudo(tmp_path: Path) -> None:
    """sudo takes SSH_CONNECTION out of the environment; the shell that it was called from still has it."""
    code = 'from fairlead.cli.audited import actor; a = actor(); print(a.who, a.uid, a.client or "-")'
    inner = f"env -u SSH_CONNECTION {sys.executable} -c '{code}'; true"
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "SSH_CONNECTION": "10.0.0.5 50022 10.0.0.1 22", "SUDO_USER": "ann"}
    done = subprocess.run(["sh", "-c", inner], env=env, capture_output=True, text=True, check=True)
    who, uid, client = done.stdout.split()
    login = Path("/proc/self/loginuid").read_text() if Path("/proc/self/loginuid").exists() else "4294967295"
    assert (uid, client) == (str(os.getuid()), "10.0.0.5")
    assert who == "ann" or login != "4294967295"
    env["SSH_CONNECTION"] = "; rm -rf / 1 2 3"
    done = subprocess.run(["sh", "-c", inner], env=env, capture_output=True, text=True, check=True)
    assert "rm" not in done.stdout
    assert actor().uid == os.getuid()


@pytest.mark.parametrize(
    ("changes", "whose"),
    [
        ({}, "NVIDIA's word; "),
        # the reset after a contained error is fairlead's; NVIDIA says: restart the application
        ({"summary": f"Xid 94 on GPU {PCI}", "action": "reset_gpu"}, ""),
        ({"action": "contact_support"}, ""),  # checks.xid.actions
        ({"summary": f"Xid 171 on GPU {PCI}", "action": "reset_gpu"}, ""),  # none published
        ({"check": "gpu_count", "summary": "7 of 8 GPUs", "device": ""}, ""),
    ],
)
def test_whose_word_the_action_is(changes: dict[str, str], whose: str) -> None:
    lines = why_text("gpu7", agent(findings=[{**XID, **changes}]), None)
    assert [line for line in lines if line.startswith("  do:")] == [
        f"  do:       {changes.get('action', 'reboot_node')} ({whose}`fairlead explain {changes.get('check', 'xid')}`)"
    ]
