"""Whose jobs were on a GPU when the kernel spoke of it: from the prolog's records to the history and the check."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.cli import main
from fairlead.daemon.jobs.blame import LINGER_SECONDS, REMEMBERED, Blame
from fairlead.history.memory import FIRST_KEPT, KINDS_MAX, LAST_KEPT, History
from fairlead.host import job_records
from fairlead.host.boot_clock import boottime
from fairlead.model.check_definition import KernelRecord
from fairlead.policy import PolicyState
from fairlead.replay import recording
from tests.checks.nodes import ADDRESSES, gpu, node

XID31 = "NVRM: Xid (PCI:0000:{}:00): 31, pid={}, name=python3, Ch 00000008"
BUSES = [address[5:7] for address in ADDRESSES]


def record(text: str, *, sequence: int = 1, seconds: float | None = None) -> KernelRecord:
    return KernelRecord(sequence=sequence, seconds=boottime() if seconds is None else seconds, priority=4, text=text)


class Run:
    """A run directory as prolog, epilog and agent leave it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "jobs").mkdir()
        rows = [f"gpu\t{i}\t{i}\tGPU-{i}\t{pci}\t0\t0-7\t-" for i, pci in enumerate(ADDRESSES)]
        (folder / "topology").write_text("1\tnode\tn1\t8\t0-7\t8\n" + "\n".join(rows) + "\n")
        self.blame = Blame()
        self.attributed = False

    def job(self, number: int, uid: int, gpus: str, start: object = "1", end: object = None) -> None:
        state = "running" if end is None else "ended"
        text = f"1\t{state}\t{uid}\t{gpus}\t{start}\t{'-' if end is None else end}\t-\t.\n"
        (self.folder / "jobs" / str(number)).write_text(text)

    def divide(self) -> None:
        """GPU 0 in two instances with ids 1 and 9, GPU 1 in one with two compute instances; the others are whole."""
        rows = [f"gpu\t-\t{i}\tGPU-{i}\t{pci}\t0\t0-7\t-\t-" for i, pci in enumerate(ADDRESSES)]
        parts = (("a", 0, 1, 0), ("b", 0, 9, 0), ("c", 1, 2, 0), ("d", 1, 2, 1))
        rows += [f"mig\tMIG-{name}\t{ADDRESSES[n]}\t{gi}\t{ci}\t1g.10gb\t0\t0-7\t-" for name, n, gi, ci in parts]
        (self.folder / "topology").write_text("1\tnode\tn1\t8\t0-7\t8\n" + "\n".join(rows) + "\n")

    def mig_job(self, number: int, uid: int, gpus: str, names: str) -> None:
        text = f"1\trunning\t{uid}\t{gpus}\t1\t-\t-\t.\t-\t{names}\t.\n"
        (self.folder / "jobs" / str(number)).write_text(text)

    def read(self, *, forget: bool = False) -> None:
        found = job_records.scan(str(self.folder / "jobs"))
        self.blame.heed(found)
        if forget:
            job_records.forget(str(self.folder / "jobs"), found.ended)

    def blamed(self, text: str, *, seconds: float | None = None, mig: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Jobs and users; ``seconds``: the record is of then and read at the agent's start."""
        self.read()
        machine = node(gpu(0, mig_current=True)) if mig else node()
        made = record(text, seconds=seconds)
        (found,) = self.blame.attribute([made], str(self.folder), None if seconds is not None else machine)
        assert replace(found, jobs=(), uids=(), attributed=False) == made
        assert found.attributed or not found.jobs
        self.attributed = found.attributed
        return found.jobs, found.uids


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_the_jobs_on_that_gpu_and_no_others(run: Run) -> None:
    run.job(11, 1001, "0-1")
    run.job(12, 1002, "2,4-5")
    run.job(13, 1003, "-")
    assert run.blamed(XID31.format(BUSES[1], 7)) == ((11,), (1001,))
    assert run.blamed(XID31.format(BUSES[4], 7)) == ((12,), (1002,))
    assert run.blamed(XID31.format(BUSES[3], 7)) == ((), ())
    run.job(14, 1004, "4")
    assert run.blamed(XID31.format(BUSES[4], 7)) == ((12, 14), (1002, 1004))


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:99:00): 31, Ch 1",  # a GPU that is not there
        "NVRM: Xid (PCI:...): 31, Ch 1",
        "nvidia-nvswitch0: SXid (PCI:0000:1b:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "mlx5_core 0000:1b:00.0: something",
    ],
)
def test_records_of_no_known_gpu_blame_nobody(run: Run, text: str) -> None:
    run.job(11, 1001, "0-7")
    assert run.blamed(text) == ((), ())


def test_that_nobody_was_on_the_gpu_is_known_or_not(run: Run) -> None:
    fault = XID31.format(BUSES[7], 7)
    assert run.blamed(fault) == ((), ()) and not run.attributed  # no job's record: nothing is known
    run.job(11, 1001, "0-3")
    assert run.blamed(fault) == ((), ()) and run.attributed
    assert run.blamed(XID31.format("99", 7)) == ((), ()) and not run.attributed
    run.job(12, 1002, "-")  # no GPU of Slurm's: it may use any
    assert run.blamed(fault) == ((), ()) and not run.attributed
    run.job(12, 1002, "-", end=2)
    assert run.blamed(fault) == ((), ()) and run.attributed


def test_without_a_topology_nobody_is_blamed(run: Run) -> None:
    run.job(11, 1001, "0")
    (run.folder / "topology").unlink()
    assert run.blamed(XID31.format(BUSES[0], 7)) == ((), ())


def test_mig_instances_have_indices_of_their_own(run: Run) -> None:
    run.job(11, 1001, "1")
    line = "NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 31, pid=7, name=x, Ch 1"
    assert run.blamed(line) == ((11,), (1001,))
    assert run.blamed(XID31.format(BUSES[0], 7), mig=True) == ((11,), (1001,))
    run.job(12, 1002, "9")
    assert run.blamed(line) == ((11, 12), (1001, 1002))  # either may be meant: no user alone
    assert run.blamed(XID31.format(BUSES[0], 7)) == ((11, 12), (1001, 1002))


XID31_MIG = "NVRM: Xid (PCI:0000:{} GPU-I:{}): 31, pid=7, name=x, Ch 1"


def test_a_line_that_names_an_instance_blames_only_the_jobs_on_that_instance(run: Run) -> None:
    run.divide()
    run.mig_job(11, 1001, "0", "MIG-a")
    run.mig_job(12, 1002, "1,3", "MIG-b,GPU-5")
    run.mig_job(13, 1003, "2", "MIG-c")
    run.mig_job(14, 1004, "4", "MIG-d")
    bus = [f"{b}:00" for b in BUSES]
    assert run.blamed(XID31_MIG.format(bus[0], "01"), mig=True) == ((11,), (1001,)) and run.attributed
    assert run.blamed(XID31_MIG.format(bus[0], "09 GPU-CI:00"), mig=True) == ((12,), (1002,))
    assert run.blamed(XID31_MIG.format(bus[1], "02"), mig=True) == ((13, 14), (1003, 1004))  # both compute instances
    assert run.blamed(XID31_MIG.format(bus[1], "02 GPU-CI:01"), mig=True) == ((14,), (1004,))
    assert run.blamed(XID31_MIG.format(bus[0], "05"), mig=True) == ((), ()) and not run.attributed  # no such instance
    assert run.blamed(XID31.format(BUSES[0], 7), mig=True) == ((11, 12), (1001, 1002))  # the GPU as a whole
    assert run.blamed(XID31.format(BUSES[5], 7), mig=True) == ((12,), (1002,))  # a whole GPU
    assert run.blamed(XID31.format(BUSES[6], 7), mig=True) == ((), ()) and run.attributed
    assert run.blamed(XID31_MIG.format(bus[0], "01"), seconds=5.0) == ((11,), (1001,))  # at the agent's start


@pytest.mark.parametrize("names", ["3", "MIG-gone", "MIG-a,MIG-gone", "MIG-b,\x1b[31m", "", "MIG-b," * 2000])
def test_a_job_whose_instances_are_not_known_may_be_on_any(run: Run, names: str) -> None:
    run.divide()
    run.mig_job(11, 1001, "0", "MIG-a")
    run.mig_job(12, 1002, "1", names)
    line = XID31_MIG.format(f"{BUSES[0]}:00", "01")
    assert run.blamed(line, mig=True) == ((11, 12), (1001, 1002))


def test_nobody_on_an_instance_is_known_if_all_jobs_are(run: Run) -> None:
    run.divide()
    run.mig_job(11, 1001, "0", "MIG-a")
    line = XID31_MIG.format(f"{BUSES[0]}:00", "09")
    assert run.blamed(line, mig=True) == ((), ()) and run.attributed
    run.job(12, 1002, "-")  # no GPU of Slurm's: it may use any
    assert run.blamed(line, mig=True) == ((), ()) and not run.attributed


def test_a_job_that_just_ended_is_still_the_one(run: Run) -> None:
    now = int(boottime())
    run.job(11, 1001, "0", start=now - 100, end=now - 1)
    run.read(forget=True)
    assert not (run.folder / "jobs" / "11").exists()
    assert run.blamed(XID31.format(BUSES[0], 7)) == ((11,), (1001,))
    run.job(12, 1002, "0", start=now - 1)
    assert run.blamed(XID31.format(BUSES[0], 7)) == ((12,), (1002,))


def test_a_job_that_ended_long_ago_is_not(run: Run) -> None:
    now = int(boottime())
    run.job(11, 1001, "0", start=1, end=now - 10 - LINGER_SECONDS)
    assert run.blamed(XID31.format(BUSES[0], 7)) == ((), ())


def test_old_records_read_at_the_start_go_by_their_own_time(run: Run) -> None:
    run.job(11, 1001, "0", start=100, end=200)
    run.job(12, 1002, "0", start=300)
    for seconds, expected in ((50.0, ()), (150.0, (11,)), (204.0, (11,)), (250.0, ()), (350.0, (12,))):
        assert run.blamed(XID31.format(BUSES[0], 7), seconds=seconds)[0] == expected


def test_only_so_many_ended_jobs_are_remembered(run: Run) -> None:
    known = tuple(job_records.Job(n, n, frozenset({0}), 1, n) for n in range(1, 2 * REMEMBERED))
    run.blame.heed(job_records.Jobs(ended=frozenset(j.id for j in known), known=known))
    assert len(run.blame._jobs) == REMEMBERED and 1 not in run.blame._jobs
    run.blame.heed(job_records.Jobs(running=frozenset({9999}), known=(job_records.Job(9999, 1, frozenset({0})),)))
    run.blame.heed(job_records.Jobs())
    assert 9999 not in run.blame._jobs  # its record went without an end


@given(st.text(alphabet="0123456789,-", max_size=30) | st.text(max_size=10))
def test_any_gpu_list(text: str) -> None:
    assert all(0 <= index < job_records.GPUS_MAX for index in job_records.gpu_list(text))


@pytest.mark.parametrize(
    ("text", "expected"), [("0", {0}), ("0,2-3", {0, 2, 3}), ("-", set()), ("3-1", set()), ("0-99999", set())]
)
def test_gpu_lists(text: str, expected: set[int]) -> None:
    assert job_records.gpu_list(text) == expected


# -- in the history --------------------------------------------------------------------------------


def attributed(sequence: int, text: str, job: int, uid: int) -> KernelRecord:
    made = record(text, sequence=sequence, seconds=float(sequence))
    return replace(made, boot_id="b", jobs=(job,), uids=(uid,), attributed=True)


def test_attribution_comes_back_from_disk_and_is_not_overwritten(tmp_path: Path) -> None:
    history = History(str(tmp_path), "b")
    made = attributed(1, XID31.format("1b", 7), 11, 1001)
    unknown = replace(made, sequence=2, jobs=(), uids=(), attributed=False)
    nobody = replace(made, sequence=3, jobs=(), uids=())
    assert history.add_records([made, unknown, nobody]) == 3
    assert history.add_records([replace(made, jobs=(99,), uids=(9,))]) == 0  # the same record, read again
    history.close()
    history = History(str(tmp_path), "b")
    assert history.past().records == (made, unknown, nobody)
    assert history.trouble == ""
    history.close()


def test_a_flood_of_one_user_s_faults_leaves_the_others(tmp_path: Path) -> None:
    history = History(str(tmp_path), "b")
    text = XID31.format("1b", 7)
    history.add_records([attributed(1, text, 11, 1001), attributed(2, text, 12, 1002)])
    history.add_records([attributed(n, text, 13, 1003) for n in range(3, 1000)])
    history.add_records([attributed(n, text, n, n) for n in range(1000, 1000 + 2 * KINDS_MAX)])
    kept = history.past().records
    assert {r.uids for r in kept[:2]} == {(1001,), (1002,)}
    assert sum(r.uids == (1003,) for r in kept) == FIRST_KEPT + LAST_KEPT
    assert len(kept) <= KINDS_MAX + 1 + 2 * (FIRST_KEPT + LAST_KEPT)
    history.close()


def test_a_replay_of_the_history_blames_as_the_agent_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = History(str(tmp_path), "b")
    history.add_records([attributed(n, XID31.format("1b", 7), 10 + n, 1000 + n) for n in (1, 2, 3)])
    history.close()
    policy = tmp_path / "policy.toml"
    policy.write_text('[checks.xid]\nsuspect_service = "drain_now"\n')
    assert main(["replay", str(tmp_path / "history.sqlite"), "--policy", str(policy)]) == 0
    assert "GPU 0000:1b:00.0 is suspect: jobs of 3 users" in capsys.readouterr().out


OLD = """
CREATE TABLE kept (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE record (boot_id TEXT, sequence INTEGER, seconds REAL, priority INTEGER, text TEXT,
                     PRIMARY KEY (boot_id, sequence, seconds, text)) WITHOUT ROWID;
CREATE TABLE sample (boot_id TEXT, device TEXT, name TEXT, seconds REAL, value REAL);
CREATE TABLE event (unix_seconds REAL, event TEXT, text TEXT);
INSERT INTO record VALUES ('b', 1, 2.0, 3, 'NVRM: Xid (PCI:0000:1b:00): 79, x');
INSERT INTO kept VALUES ('cursor b', x'37');
INSERT INTO event VALUES (1.0, 'drained', 'x');
PRAGMA user_version = 1;
"""


def test_a_database_of_the_version_before_is_taken_over(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "history.sqlite")
    db.executescript(OLD)
    db.close()
    replayed = recording.read(str(tmp_path / "history.sqlite"), ("NVRM",))
    assert [(r.sequence, r.uids) for boot in replayed.boots for _, r in boot.records] == [(1, ())]
    for _ in range(2):
        history = History(str(tmp_path), "b")
        assert history.trouble == "" and history.cursor() == 7 and len(history.events()) == 1
        assert [(r.sequence, r.jobs, r.uids) for r in history.past().records[:1]] == [(1, (), ())]
        history.add_records([attributed(2, XID31.format("1b", 7), 11, 1001)])
        history.close()
    assert not list(tmp_path.glob("*.bad*"))
    db = sqlite3.connect(tmp_path / "history.sqlite")
    assert db.execute("PRAGMA user_version").fetchone() == (2,)
    assert db.execute("SELECT jobs, uids FROM record WHERE sequence = 2").fetchone() == ("11", "1001")
    db.close()


def test_a_takeover_that_was_cut_off_is_done_again(tmp_path: Path) -> None:
    """The columns and the version number come in one transaction: a database is of one version or the other."""
    db = sqlite3.connect(tmp_path / "history.sqlite")
    db.executescript(OLD)
    db.execute("BEGIN")
    db.execute("ALTER TABLE record ADD COLUMN jobs TEXT NOT NULL DEFAULT ''")
    db.close()  # without a commit: as a kill leaves it
    history = History(str(tmp_path), "b")
    assert history.trouble == "" and len(history.past().records) == 1
    history.close()


USERS = (3918273641, 3918273642, 3918273643)


# -- in the agent ----------------------------------------------------------------------------------


def test_the_agent_blames_the_gpu_on_which_several_users_jobs_fault(agents) -> None:  # type: ignore[no-untyped-def]
    agent = agents(agent={"interval_seconds": 600})
    agent.start()
    for n, uid in enumerate(USERS):
        (agent.run_dir / "jobs" / str(11 + n)).write_text(f"1\trunning\t{uid}\t0\t1\t-\t-\t.\n")
        agent.kernel(f"4,{n + 1},{int(boottime() * 1e6)},-;{XID31.format('1b', 7)}")
        agent.until(lambda n=n: _seen(agent) > n, f"fault {n}")
        (agent.run_dir / "jobs" / str(11 + n)).unlink()
    agent.until(lambda: any("suspect" in f["summary"] for f in agent.status()["findings"]), "the suspect")
    (finding,) = [f for f in agent.status()["findings"] if f["check"] == "xid"]
    assert finding["device"] == "0000:1b:00.0" and finding["evidence"] == ["jobs 11, 12, 13"]
    whole = [p for p in agent.run_dir.iterdir() if p.suffix != ".tmp"]  # what is just being written is gone the next moment
    published = agent.log.read_text() + "".join(p.read_text() for p in whole if p.is_file())
    assert not any(str(uid) in published for uid in USERS)


def test_hundreds_of_lines_of_one_application_fault_are_one_event_and_no_drain(agents) -> None:  # type: ignore[no-untyped-def]
    agent = agents(agent={"interval_seconds": 600}).start()
    (agent.run_dir / "jobs" / "11").write_text("1\trunning\t1001\t0-3\t1\t-\t-\t.\n")
    uptime = 86390_000_000  # of the recorded machine, in microseconds
    for part in range(5):
        lines = [f"4,{n},{uptime},-;{XID31.format('1b', 1000 + n % 7)}" for n in range(1 + 100 * part, 101 + 100 * part)]
        agent.kernel(*lines)
        agent.until(lambda part=part: _last(agent) == 100 * (part + 1), f"line {100 * (part + 1)}")
    assert agent.end() == 0
    with sqlite3.connect(f"file:{agent.state_dir / 'history.sqlite'}?mode=ro", uri=True) as db:
        events = [row for row in db.execute("SELECT event, text FROM event") if "Xid 31" in row[1]]
    assert [event for event, _ in events] == ["verdict warn"] and "the fault of job 11" in events[0][1]
    told = [line for line in agent.log.read_text().splitlines() if "Xid 31" in line]
    assert len([line for line in told if "verdict" in line]) == len([line for line in told if "check=xid" in line]) == 1
    assert not [line for line in told if "drain" in line]
    assert agent.verdict().state.value == "warn" and "the fault of job 11" in agent.verdict().text


def test_what_was_there_before_the_agent_looked_is_no_job_s_fault(agents) -> None:  # type: ignore[no-untyped-def]
    """A fault of last week, found by the first look of a new agent, is not laid to the job that runs now."""
    agent = agents(agent={"interval_seconds": 600})
    log = agent.folder / "kmsg.txt"
    agent.write_document(agent={"kmsg_path": str(log), "interval_seconds": 600})
    lines = ["4,1,1000000,-;NVRM: Xid (PCI:0000:1b:00): 95, old\n", "4,2,86390000000,-;NVRM: Xid (PCI:0000:43:00): 95, new\n"]
    log.write_text(lines[0])
    (agent.run_dir / "jobs").mkdir(parents=True)
    (agent.run_dir / "jobs" / "77").write_text("1\trunning\t1001\t0-7\t86000\t-\t-\t.\n")
    agent.start()
    with open(log, "a") as out:
        out.write(lines[1])
    agent.until(lambda: "0000:43:00.0" in (agent.run_dir / "status.json").read_text(), "the new fault")
    agent.until(lambda: _blamed(agent).keys() == {"xid/0000:1b:00.0", "xid/0000:43:00.0"}, "both faults saved")
    assert _blamed(agent) == {"xid/0000:1b:00.0": None, "xid/0000:43:00.0": 77}


def _blamed(agent) -> dict[str, int | None]:  # type: ignore[no-untyped-def]
    with sqlite3.connect(f"file:{agent.state_dir / 'history.sqlite'}?mode=ro", uri=True) as db:
        row = db.execute("SELECT value FROM kept WHERE key = 'state'").fetchone()
    return {key: track.job for key, track in msgspec.json.decode(row[0], type=PolicyState).tracks.items() if track.bad}


def _last(agent) -> int:  # type: ignore[no-untyped-def]
    try:
        with sqlite3.connect(f"file:{agent.state_dir / 'history.sqlite'}?mode=ro", uri=True) as db:
            return int(db.execute("SELECT max(sequence) FROM record").fetchone()[0] or 0)
    except sqlite3.Error:
        return 0


def _seen(agent) -> int:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with sqlite3.connect(f"file:{agent.state_dir / 'history.sqlite'}?mode=ro", uri=True) as db:
                return int(db.execute("SELECT count(*) FROM record").fetchone()[0])
        except sqlite3.Error:
            time.sleep(0.02)
    return 0
