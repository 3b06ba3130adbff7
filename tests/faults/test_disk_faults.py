"""Full, missing and read-only /run and /var/lib, and verdicts that nobody should believe: jobs run, the agent gets over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.faults.conftest import AGENT, Ward

pytestmark = [pytest.mark.rack, pytest.mark.timeout(180)]
FILL = "i=0; while printf %01000d 0 >> {0}/fill 2>/dev/null; do i=$((i+1)); [ $i -lt 20000 ] || exit 9; done; true"


@contextmanager
def full_run(ward: Ward, number: int) -> Iterator[None]:
    """The node's /run without a free byte: its tmpfs made as small as what is in it."""
    used = ward.run(number, "df -k --output=used /run | tail -1").stdout.strip()
    ward.run(number, f"mount -o remount,size={int(used) + 64}k /run")
    try:
        ward.run(number, FILL.format("/run"))
        assert ward.run(number, "printf x > /run/one-more", check=False).returncode != 0
        yield
    finally:
        ward.run(number, "rm -f /run/fill /run/one-more; mount -o remount,size=50% /run")


def untouched(ward: Ward, number: int) -> None:
    """Nothing was drained, by nobody; the agent is up and says ok."""
    ward.wait("verdict ok", lambda: ward.verdict(number), lambda v: v[1] == "ok")
    ward.sweeps(number)
    node = ward.slurm(number)
    assert (node.states, node.reason) == (("IDLE",), "")
    assert ward.unit(number)["SubState"] == "running"


def test_full_run(ward: Ward) -> None:
    pid = ward.unit(1)["MainPID"]
    with full_run(ward, 1):
        for _ in range(2):
            assert ward.job(1) == "ran\n"
        ward.wait(
            "the agent says so", lambda: ward.journal(1), lambda log: "/run/fairlead/verdict: No space left on device" in log
        )
        assert ward.job(1) == "ran\n"
        assert ward.unit(1)["MainPID"] == pid, "it goes on"
    untouched(ward, 1)
    assert ward.unit(1)["MainPID"] == pid
    assert ward.run(1, "ls /run/fairlead/*.tmp /run/fairlead/*/*.tmp", check=False).stdout == ""


def test_full_run_and_an_xid(ward: Ward) -> None:
    """The verdict cannot be written; the drain does not need it."""
    with full_run(ward, 2):
        ward.xid(2)
        node = ward.wait("drained", lambda: ward.slurm(2), lambda n: "DRAIN" in n.states)
        assert node.reason.startswith("fairlead:xid:")
    ward.drained(2)


def test_run_fairlead_removed(ward: Ward) -> None:
    """Jobs run at once; the agent's folder, files and plans come back."""
    ours = {"verdict", "status.json", "metrics.prom", "topology", "env", "jobs", "plans"}
    ours |= {*ward.run(1, "ls /run/fairlead/plans").stdout.split()}
    ward.run(1, "rm -rf /run/fairlead")
    assert ward.prolog(1).returncode == 0
    assert ward.job(1) == "ran\n"
    look = "ls /run/fairlead /run/fairlead/plans"
    ward.wait("all of it is back", lambda: ward.run(1, look, check=False).stdout, lambda now: ours <= {*now.split()})
    untouched(ward, 1)
    assert ward.job(1) == "ran\n"


def test_run_fairlead_removed_with_a_drain_of_ours(ward: Ward) -> None:
    ward.xid(2)
    reason = ward.drained(2).reason
    ward.run(2, "rm -rf /run/fairlead")
    ward.wait("the verdict is back", lambda: ward.verdict(2), lambda v: v[1] == "drain")
    ward.sweeps(2)
    assert ward.slurm(2).reason == reason
    ward.wait("the status says so", lambda: (ward.status(2)["drain"] or {}).get("reason"), lambda said: said == reason)


def restart_after_a_kill(ward: Ward, number: int, pci: str) -> None:
    """SIGKILL and a new start. A kernel keeps its records, which an agent without its history reads again from the first;
    the lab's FIFO does not: the record is put there again."""
    ward.run(number, f"systemctl kill --kill-who=main --signal=KILL {AGENT}; systemctl stop {AGENT}")
    ward.xid(number, pci)
    ward.run(number, f"systemctl start {AGENT}")


@pytest.mark.parametrize(
    "spoil",
    [
        "mount -t tmpfs -o size=64k none /var/lib/fairlead; " + FILL.format("/var/lib/fairlead"),
        "rm -rf /var/lib/fairlead",
        "mount -t tmpfs -o ro none /var/lib/fairlead",
    ],
    ids=["full", "missing", "read-only"],
)
def test_var_lib(ward: Ward, spoil: str) -> None:
    """Jobs run, an Xid drains once, and a restart still knows the drain for its own."""
    try:
        ward.run(2, f"systemctl stop {AGENT}; {spoil}; systemctl start {AGENT}", check=False)
        untouched(ward, 2)
        assert ward.job(2) == "ran\n"
        pci = ward.xid(2)
        reason = ward.drained(2).reason
        assert ward.prolog(2).returncode == 1
        restart_after_a_kill(ward, 2, pci)
        ward.drained(2)
        ward.sweeps(2)
        assert ward.slurm(2).reason == reason
        ward.wait("ours, from the ledger", lambda: (ward.status(2)["drain"] or {}).get("reason"), lambda said: said == reason)
    finally:
        ward.run(2, f"systemctl stop {AGENT}; umount -q /var/lib/fairlead; systemctl start {AGENT}", check=False)


def test_var_lib_removed_below_a_running_agent(ward: Ward) -> None:
    ward.run(2, "rm -rf /var/lib/fairlead")
    ward.sweeps(2)
    assert ward.job(2) == "ran\n"
    pci = ward.xid(2)
    reason = ward.drained(2).reason
    restart_after_a_kill(ward, 2, pci)
    ward.drained(2)
    ward.sweeps(2)
    assert ward.slurm(2).reason == reason


MALFORMED = {
    "empty": b"",
    "truncated": b"1\tok\t",
    "no expiry": b"1\tdrain\t-\t7\tx\n",
    "octal": b"1\tok\t01\t09\tx\n",
    "huge": b"1\tok\t" + b"9" * 400 + b"\t7\tx\n",
    "version": b"2\tdrain\t99999999\t7\tx\n",
    "state": b"1\tDRAIN\t99999999\t7\tx\n",
    "more fields": b"1\tdrain\t99999999\t7\tx\ty\n",
    "binary": bytes(range(256)) * 16,
    "shell": b"1\t$(touch /tmp/pwned)\t`touch /tmp/pwned`\t7\tx\n",
    "long": b"1\tok\t1\t1\t" + b"x" * (1 << 20) + b"\n",
    "nul": b"\0" * 4096,
}


def test_malformed_verdicts(ward: Ward) -> None:
    """With the agent stopped in its tracks jobs run on each; then it repairs the file at its next sweep."""
    verdict = ward.demo.node(1).path("/run/fairlead/verdict")
    ward.run(1, f"systemctl kill --kill-who=main --signal=STOP {AGENT}")
    try:
        for name, text in MALFORMED.items():
            verdict.write_bytes(text)
            done = ward.prolog(1)
            assert (done.returncode, done.stderr) == (0, ""), f"{name}: {done}"
            assert ward.run(1, "/etc/slurm/fairlead/health-check", check=False).returncode == 0
            status = ward.fairlead(1, "status")
            assert status.returncode == 3 and "Traceback" not in status.stderr, f"{name}: {status}"
        verdict.write_bytes(MALFORMED["binary"])
        assert ward.job(1) == "ran\n"
        assert ward.run(1, "ls /tmp/pwned", check=False).stdout == ""
    finally:
        ward.run(1, f"systemctl kill --kill-who=main --signal=CONT {AGENT}")
    untouched(ward, 1)


def test_something_else_in_the_place_of_every_file(ward: Ward) -> None:
    """Folders where files should be, and files where folders should be: jobs run, and the agent says what is wrong."""
    files, folders = ("verdict", "topology", "env", "status.json", "metrics.prom", "prolog.log", "health"), ("jobs", "plans")
    here = "cd /run/fairlead && "
    try:
        ward.run(1, f"{here} rm -rf {' '.join(files + folders)}; mkdir {' '.join(files)}; touch {' '.join(folders)}")
        assert ward.prolog(1).returncode == 0
        assert ward.job(1) == "ran\n"
        ward.run(1, f"systemctl restart {AGENT}")
        assert ward.job(1) == "ran\n"
        for name in ("verdict", "topology", "jobs", "plans", "env"):
            ward.wait("the agent says so", ward_journal(ward), lambda log, n=name: f'"/run/fairlead/{n}' in log)  # type: ignore[misc]
        assert ward.unit(1)["SubState"] == "running"
        assert ward.slurm(1).reason == ""
    finally:
        ward.run(1, f"{here} rm -rf {' '.join(files + folders)}; systemctl restart {AGENT}")
    untouched(ward, 1)


def ward_journal(ward: Ward) -> Callable[[], str]:
    return lambda: ward.journal(1)
