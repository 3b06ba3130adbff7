"""What agents say of themselves, as it comes over ssh: parsed, and fetched by real processes within a deadline."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

pytest.importorskip("ClusterShell")

from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import DataError
from fairlead.provision.agent_accounts import COMMAND, AgentAccount, SshAccounts, parse_account
from fairlead.provision.agent_status import status_of

NO_ANSWER = "answered with something that is not an answer"
STATUS = {
    "agent_version": "1.2.0",
    "driver": "570.86",
    "slurm_node": "n1",
    "document": {"generation": 3, "profile": "hgx-h100"},
    "sweep": {"boot_seconds": 970.0},
    "findings": [{"check": check, "summary": "x"} for check in ("setting.numa_balancing", "setting.memlock", "xid")],
    "hold": {"who": "ann", "reason": "riser\n2"},
    "drain": {"reason": "fairlead:xid:abcdef012345 x", "since_unix": 1795298182.5},
}


def answer(verdict: str | None = "ok\t1100\t7\t-", uptime: str = "1000.00 7", status: object = STATUS, end: bool = True) -> bytes:
    """What ``COMMAND`` prints on a node."""
    told = [
        *([] if verdict is None else ["==> /run/fairlead/verdict <==", f"1\t{verdict}\n"]),
        "==> /proc/uptime <==",
        f"{uptime}\n",
        "==> /run/fairlead/status.json <==",
        status if isinstance(status, str) else json.dumps(status),
        *(["\n==> /dev/null <=="] if end else []),
    ]
    return ("\n".join(told) + "\n").encode()


def test_a_whole_account() -> None:
    found = parse_account(b"Welcome to n1\n" + answer("warn\t1100\t7\tlink: slow"))
    assert found == AgentAccount(
        reached=True,
        node="n1",
        verdict="warn",
        text="link: slow",
        age_seconds=30.0,
        agent="1.2.0",
        driver="570.86",
        profile="hgx-h100",
        generation=3,
        drift=("memlock", "numa_balancing"),
        findings=3,
        hold="ann: riser 2",
        drained_since=1795298182.5,
    )


@pytest.mark.parametrize(
    ("output", "verdict", "trouble"),
    [
        (answer("ok\t999\t7\t-"), "stale", "its verdict expired 1 s ago: the agent has stopped its sweeps"),
        (answer("drain\t999\t7\txid"), "drain", ""),  # as the hooks have it: a drain of this boot goes on
        (answer("unknown\t1100\t7\tnvml"), "unknown", ""),
        (answer(None), "none", "no verdict: is fairlead-agent.service running?"),
        (answer("fine\t1100\t7\t-"), "none", "its verdict cannot be read: verdict: unknown state: 'fine' is not a valid State"),
        (answer("ok\t1100\t7\t-", uptime=""), "none", "its verdict cannot be read: the answer has no /proc/uptime"),
        (answer(status=""), "ok", ""),
    ],
)
def test_what_may_be_relied_on(output: bytes, verdict: str, trouble: str) -> None:
    found = parse_account(output)
    assert found.reached and (found.verdict, found.trouble) == (verdict, trouble)


@pytest.mark.parametrize("output", [b"", b"Welcome\n", answer(end=False), b"\x00" * 100])
def test_an_answer_that_is_not_whole_is_none(output: bytes) -> None:
    found = parse_account(output)
    assert not found.reached and found.verdict == "none" and found.trouble == "its answer is cut short"


@pytest.mark.parametrize(
    "status",
    [
        "{",
        [1],
        {"sweep": 7},
        {"findings": [None]},
        {"findings": [{"check": 3, "summary": "x"}]},
        {"document": {"generation": "x"}},
        {"document": {"generation": 10**400}},
        {"sweep": {"boot_seconds": 10**400}},
        {"drain": {"since_unix": -1}},
        {"slurm_node": ["n1"]},
        {"acknowledged": [[]]},
        "[" * 100_000,
        '{"more": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
def test_a_status_that_no_agent_writes_is_no_answer(status: object) -> None:
    found = parse_account(answer(status=status))
    assert (found.reached, found.verdict) == (False, "none") and NO_ANSWER in found.trouble


def test_every_text_of_an_account_is_one_printable_line() -> None:
    evil = "\x1b[2J\x9b1m\u202e\r\nn2: ok\x00[red]x"
    status = {**STATUS, "agent_version": evil, "driver": evil, "slurm_node": evil, "hold": {"who": evil, "reason": evil}}
    status |= {"document": {"profile": evil}, "findings": [{"check": f"setting.{evil}", "summary": evil}]}
    for told in (
        answer(f"warn\t1100\t7\t{evil.partition(chr(13))[0]}", status=status),
        answer(f"{evil}\t1100\t7\t-", status=status),
    ):
        found = parse_account(told)
        texts = [found.node, found.trouble, found.text, found.agent, found.driver, found.profile, *found.drift, found.hold]
        assert found.reached and all(t.isprintable() for t in texts)


@pytest.mark.parametrize("uptime", ["nan 1", "inf 1", "1e400 1", "-5.0 1", "x"])
def test_a_clock_that_is_none_makes_no_verdict_good(uptime: str) -> None:
    found = parse_account(answer(uptime=uptime))
    assert found.verdict == "none" and "no /proc/uptime" in found.trouble


@given(st.binary(max_size=400), st.integers(0, 400))
def test_no_answer_breaks_it_or_makes_it_well(noise: bytes, at: int) -> None:
    whole = answer("drain\t1100\t7\txid")
    for broken in (noise, whole[:at] + noise, noise + whole):
        assert parse_account(broken).verdict in ("none", "drain", "stale")


class Nodes:
    """Nodes as folders, and a program that is called as ssh would be: it carries out the command on one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "ssh"
        self.program.write_text(f"""#!/bin/sh
for word; do host=$command; command=$word; done
echo $$ >> {folder}/pids
case $host in
    hangs) exec sleep 300 ;;
    refuses) echo "root@refuses: Permission denied (publickey)." >&2; exit 255 ;;
    silent) exit 3 ;;
    greets) echo "last login: never"; host=n1 ;;
    wrong) host=n1 ;;
    endless) while :; do printf %065536d 0; done ;;
    endless_error) while :; do printf %065536d 0 >&2; done ;;
esac
cd {folder}/$host && /bin/sh -c "$(printf %s "$command" | sed 's, /\\([rp]\\), \\1,g')" | sed 's,^==> \\([rp]\\),==> /\\1,'
""")
        self.program.chmod(0o755)

    def add(self, name: str, *, verdict: str = "ok", status: dict[str, object] | None = None) -> None:
        """A node whose agent has just looked."""
        run = self.folder / name / "run/fairlead"
        run.mkdir(parents=True)
        (self.folder / name / "proc").symlink_to("/proc")
        up = time.clock_gettime(time.CLOCK_BOOTTIME)
        (run / "verdict").write_text(f"1\t{verdict}\t{int(up) + 3600}\t7\t-\n")
        (run / "status.json").write_text(
            json.dumps({**STATUS, "slurm_node": name, "sweep": {"boot_seconds": up}, **(status or {})})
        )


def test_the_command_reads_this_very_machine(tmp_path: Path) -> None:
    """Where no agent runs: it is a shell's command as it stands."""
    source = SshAccounts(program=f"{tmp_path}/here", seconds=20)
    (tmp_path / "here").write_text('#!/bin/sh\nfor word; do command=$word; done\nexec /bin/sh -c "$command"\n')
    (tmp_path / "here").chmod(0o755)
    found = source.fetch({"here": "here"})["here"]
    assert found.reached and COMMAND.startswith("exec head ")
    assert found.verdict == "none" or os.path.exists("/run/fairlead/verdict")


def test_each_node_gets_the_account_that_is_its_own(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    for number in range(1, 5):
        nodes.add(f"n{number}", verdict="warn" if number == 2 else "ok")
    addresses = {f"n{i}": f"n{i}" for i in range(1, 5)} | {"r": "refuses", "s": "silent", "w": "wrong", "g": "greets"}
    told: list[tuple[int, int]] = []
    found = SshAccounts(program=str(nodes.program), seconds=30, on_answer=lambda *count: told.append(count)).fetch(addresses)
    assert told == [(i, 8) for i in range(1, 9)]
    assert {n: a.verdict for n, a in found.items() if a.reached} == {"n1": "ok", "n2": "warn", "n3": "ok", "n4": "ok"}
    assert {n: a.trouble for n, a in found.items() if not a.reached} == {
        "r": "root@refuses: Permission denied (publickey).",
        "s": "ssh ended with 3",
        "w": "ssh wrong leads to n1",
        "g": "ssh greets leads to n1",
    }
    assert not any(a.verdict == "ok" for a in found.values() if not a.reached)


def test_one_that_hangs_costs_the_deadline_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.add("n1")
    for _ in range(2):  # a watch asks again
        for seconds in (2, 60):  # on a loaded machine the other one may need longer too
            found = SshAccounts(program=str(nodes.program), seconds=seconds).fetch({"n1": "n1", "h": "hangs"})
            assert (found["h"].reached, found["h"].trouble) == (False, f"no answer in {seconds} s")
            if found["n1"].reached:
                break
        assert found["n1"].verdict == "ok"
    deadline = time.monotonic() + 90
    while left := [pid for pid in (tmp_path / "pids").read_text().split() if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_one_that_never_ends_is_ended_at_once_and_costs_the_others_nothing(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.add("n1")
    found = SshAccounts(program=str(nodes.program), seconds=280).fetch({"n1": "n1", "o": "endless", "e": "endless_error"})
    assert found["n1"].verdict == "ok"
    for name in ("o", "e"):
        assert (found[name].reached, found[name].trouble) == (False, f"{NO_ANSWER}: it does not end")


def test_no_node_is_no_question(tmp_path: Path) -> None:
    assert SshAccounts(program="/nonexistent").fetch({}) == {}


def test_an_ssh_that_is_not_there_reaches_nobody(tmp_path: Path) -> None:
    found = SshAccounts(program="/nonexistent/ssh", seconds=5).fetch({"n1": "n1"})
    assert not found["n1"].reached and found["n1"].verdict == "none"


def test_a_status_with_a_byte_that_is_no_text_is_no_answer() -> None:
    for content in (b'{"node":"\xff"}', b"[" * 100_000):
        with pytest.raises(DataError, match="not an answer"):
            status_of(content)
