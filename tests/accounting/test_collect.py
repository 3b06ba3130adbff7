"""``fairlead collect`` on real Slurm with slurmdbd finds, merges and writes what jobs used; unmodified readers read that."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli import main
from fairlead.controller.job_store import JobStore
from fairlead.jobs.job_run import SACCT_COLUMNS
from fairlead.jobs.jobstats_payload import decoded
from fairlead.jobs.node_rows import SINFO, sacctmgr_words
from fairlead.jobs.usage_record import encoded
from tests.accounting import readers
from tests.jobs.job_reports import record_of
from tests.lab.accounting import OPERATOR, STRANGER, admin_comment, backdate, query, set_admin_comment, wait_in_database
from tests.lab.cluster import Cluster
from tests.lab.enter import enter_command
from tests.lab.pause import pause
from tests.lab.roots import USER

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
#: Called as PROGRAM [options] HOST COMMAND: a node whose agent keeps its records in the folder of its name.
SSH = """#!/bin/sh
for word; do command=$host host=$node node=$word; done
host=$host command=$node
[ -d {folder}/$host ] || {{ echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255; }}
exec env PYTHONPATH={agent} {python} -m fairlead usage-records --state-dir {folder}/$host ${{command##* }}
"""
SCRIPT = "#!/bin/sh\nuntil [ -e /tmp/go-$SLURM_JOB_ID ]; do sleep 0.1; done\n"


@dataclass
class Site:
    """A controller's store, and nodes that answer to ``ssh``."""

    slurm: Cluster
    folder: Path

    def collect(self, *options: str) -> tuple[dict[str, Any], str]:
        """Run one round; return what it counts, and what it says."""
        words = [sys.executable, "-m", "fairlead", "collect", "--json", "--store", str(self.folder / "store")]
        words += ["--bin-dir", str(self.slurm.bin), "--ssh", str(self.folder / "ssh"), *options]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "agent")}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    def record(self, job: int, node: str, count: int = 2, *, last: bool = False, **changes: Any) -> None:
        """Have the node keep a record of an ended job, with the times of Slurm. last: those of its last run."""
        text = self.slurm.run(
            ["/usr/bin/sacct", "-n", "-P", "-X", "-D", "-o", "start,end", "-j", str(job)], env={"SLURM_TIME_FORMAT": "%s"}
        ).stdout
        begin, end = (float(word) for word in sorted(text.split())[-1 if last else 0].split("|"))
        made = record_of(
            node,
            end - begin,
            count,
            job=job,
            uid=None,
            **{"begin_unix": begin, "end_unix": end, "written_unix": end, **changes},
        )
        folder = self.folder / node / "usage"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{job}-{int(begin)}.json").write_bytes(encoded(made))

    def ended(self, *options: str, seconds: int = 0) -> int:
        """A job that has ended, and by the database ran for some seconds."""
        job = self.slurm.submit("#!/bin/sh\ntrue\n", "--time=2:00:00", *options)
        self.slurm.wait_job(job, "COMPLETED")
        wait_in_database(self.slurm, job)
        if seconds:
            backdate(self.slurm, job, seconds)
        return job


@pytest.fixture
def site(slurm: Cluster, tmp_path: Path) -> Iterator[Site]:
    script = tmp_path / "ssh"
    script.write_text(SSH.format(folder=tmp_path, agent=ROOT / "agent", python=sys.executable))
    script.chmod(0o755)
    site = Site(slurm, tmp_path)
    yield site


def test_a_round_writes_what_unmodified_readers_read(site: Site) -> None:
    if site.slurm.suite == "bookworm":
        pytest.skip("sacctmgr of 22.05 writes AdminComment in lower case")
    job = site.ended("-N2", "--gres=gpu:2", seconds=3600)
    site.record(job, "n1")
    site.record(job, "n2")
    counted, said = site.collect()
    assert counted["written"] >= 1, said
    data = decoded(admin_comment(site.slurm, job))
    assert data is not None and data["nodes"].keys() == {"n1", "n2"} and data["gpus"] == 4
    assert data["fl"]["nodes"] == [2, 2] and data["fl"]["cov"] == 100.0
    text = [" ".join(line.split()) for line in readers.reportseff(site.slurm, job).splitlines()]
    assert text[1].startswith(f"{job} COMPLETED 01:00:00"), text
    assert "0 70.0% 76.2%" in text
    counted, _ = site.collect()
    assert counted["written"] == 0


def test_jobstats_reads_what_a_round_writes(site: Site) -> None:
    if site.slurm.suite == "bookworm":
        pytest.skip("sacctmgr of 22.05 writes AdminComment in lower case")
    job = site.ended("-wn1", "--gres=gpu:2", seconds=3600)
    site.record(job, "n1")
    site.collect()
    try:
        text = [" ".join(line.split()) for line in readers.jobstats(site.slurm, job).splitlines()]
    except readers.ReaderMissing as missing:
        pytest.skip(str(missing))
    assert "n1 (GPU 0): 70.0%" in text and "n1 (GPU 1): 61.0GB/80GB (76.2%)" in text
    readers.job_defense_shield(site.slurm, job)


def test_records_of_running_jobs_come_into_the_folder_of_the_idle_program(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    folder, state = site.folder / "running", site.folder / "idle"
    job = site.slurm.submit("#!/bin/sh\nsleep 300\n", "-wn1", "--gres=gpu:2", "--time=10")
    site.slurm.wait_job(job, "RUNNING")
    try:
        now = time.time()
        open_ = {"end_unix": None, "end_boot": None, "ended_by": "", "begin_unix": now - 60, "written_unix": now, "uid": None}
        (site.folder / "n1/usage").mkdir(parents=True)
        (site.folder / f"n1/usage/{job}-100.json").write_bytes(encoded(record_of("n1", 60.0, 2, job=job, **open_)))
        done, said = site.collect("--running", str(folder))
        assert done["records"] == 1 and [path.name for path in folder.iterdir()] == [f"{job}-n1.json"], said
        words = ["idle", "observe", "--from", str(folder), "--state", str(state), "--bin-dir", str(site.slurm.bin), "--json"]
        assert main(words) == 0
        found = json.loads(capsys.readouterr().out)
        (row,) = [row for row in found["rows"] if row["job"] == job]
        assert (found["nodes_fresh"], row["gpus"], row["judged"]) == (1, 2, "unknown")
        shutil.rmtree(site.folder / "n1")
        done, said = site.collect("--running", str(folder))
        assert done["records"] == 0 and list(done["without"]) == ["n1"]
        assert [path.name for path in folder.iterdir()] == [f"{job}-n1.json"], "its own times say how old it is"
    finally:
        site.slurm.run(["/usr/bin/scancel", str(job)])
        site.slurm.wait_job(job)
    assert site.collect("--running", str(folder))[0]["removed"] == 1
    assert list(folder.iterdir()) == []


def usage(*words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["usage", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_store_and_a_folder_give_the_same_figures(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs of sbatch and of srun, a running job, and a node that was drained, all told by real Slurm."""
    slurm = site.slurm
    job = site.ended("-N2", "--gres=gpu:2", seconds=3600)
    for node in ("n1", "n2"):
        site.record(job, node)
    slurm.run(["/usr/bin/srun", "--chdir=/tmp", "--gres=gpu:1", "-wn1", "sleep", "2"], user=USER)
    running = slurm.submit("#!/bin/sh\nsleep 300\n", "-wn1", "--gres=gpu:1", "--time=10")
    slurm.wait_job(running, "RUNNING")
    wait_in_database(slurm, running, ended=False)
    slurm.scontrol("update", "nodename=n2", "state=drain", "reason=usage")
    deadline = time.monotonic() + 60
    while not query(slurm, "SELECT 1 FROM lab_event_table WHERE node_name='n2'"):
        assert time.monotonic() < deadline, "slurmdbd has no event of n2"
        pause(time.monotonic())
    query(slurm, "UPDATE lab_event_table SET time_start=time_start-864000 WHERE node_name='n2'")
    try:
        site.collect("--no-comment")
        today = date.today()
        period = f"{today - timedelta(12)}/{today + timedelta(1)}"
        folder = site.folder / "recorded"
        folder.mkdir()
        begin = int((datetime.now() - timedelta(12)).timestamp())
        printed = {
            "jobs.psv": ["sacct", "-a", "-D", "-P", "-S", f"uts{begin}", f"--format={','.join(SACCT_COLUMNS)}"],
            "nodes.psv": ["sinfo", *SINFO],
            "events.psv": ["sacctmgr", *sacctmgr_words(f"uts{begin}", "now")],
        }
        for name, (program, *words) in printed.items():
            text = slurm.run([f"/usr/bin/{program}", *words], env={"SLURM_TIME_FORMAT": "%s"}).stdout
            (folder / name).write_text(text)
        for node in ("n1", "n2"):
            if (site.folder / node).is_dir():
                shutil.copytree(site.folder / node, folder / node)
        source = ["--store", str(site.folder / "store"), "--running", "/no/such/folder", "--bin-dir", str(slurm.bin)]
        for words in ([], ["--by", "user"], ["--by", "partition"]):
            stored = usage(period, *words, *source, capsys=capsys)
            recorded = usage(period, *words, "--from", str(folder), capsys=capsys)
            stored.pop("mistakes")
            assert recorded.pop("mistakes") == []
            for each in (stored, recorded):
                assert each["mix_seconds"]["interactive"] >= 2 and each["mix_seconds"]["batch"] >= 4 * 3600
                assert each["sum"]["available_seconds"] < each["sum"]["capacity_seconds"] - 8 * 10 * 86400 + 60
            assert same(stored, recorded)
    finally:
        slurm.scontrol("update", "nodename=n2", "state=resume")
        slurm.run(["/usr/bin/scancel", str(running)])
        slurm.wait_job(running)


def same(one: Any, other: Any) -> bool:
    """Equal, but for the running job, which gets older between two calls."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == pytest.approx(other, rel=0.01, abs=60)) if isinstance(one, float) else bool(one == other)


def test_a_comment_of_somebody_else_stays(site: Site) -> None:
    job = site.ended("-wn1", "--gres=gpu:2", seconds=3600)
    set_admin_comment(site.slurm, job, "site: kept", user=OPERATOR)
    site.record(job, "n1")
    _, said = site.collect()
    if site.slurm.suite != "bookworm":
        assert f"job {job}: its AdminComment was written by somebody else" in said
    assert admin_comment(site.slurm, job) == "site: kept"
    assert f"job {job}:" not in site.collect()[1]


def test_sacctmgr_of_22_05_is_never_used(site: Site) -> None:
    if site.slurm.suite != "bookworm":
        pytest.skip("newer releases keep the letters of AdminComment")
    job = site.ended("-wn1", seconds=3600)
    site.record(job, "n1")
    counted, said = site.collect()
    assert counted["records"] >= 1 and counted["written"] == 0
    assert "22.05" in said and "AdminComment" in said
    assert admin_comment(site.slurm, job) == ""
    assert "22.05" not in site.collect()[1]


def test_a_job_that_is_requeued_at_once_has_two_runs_with_a_record_each(site: Site) -> None:
    job = site.ended("-wn1", "--gres=gpu:1", seconds=7200)
    query(site.slurm, f"UPDATE lab_job_table SET time_end=time_start+600 WHERE id_job={job}")
    site.record(job, "n1", 1)
    columns = [row[0] for row in query(site.slurm, "SHOW COLUMNS FROM lab_job_table")]
    names = ", ".join(f"`{name}`" for name in columns if name != "job_db_inx")
    later = names.replace("`time_start`", "time_end+130").replace("`time_end`", "time_end+4000")
    later = later.replace("`time_submit`", "time_submit+1").replace("`time_eligible`", "time_end+130")
    query(site.slurm, f"INSERT INTO lab_job_table ({names}) SELECT {later} FROM lab_job_table WHERE id_job={job}")
    site.record(job, "n1", 1, last=True)
    site.collect("--no-comment")
    with JobStore(str(site.folder / "store"), write=False) as store:
        runs = store.runs_of(str(job))
        assert len(runs) == 2
        for each in runs:
            (record,) = store.records(each.run)
            assert record.begin_unix == each.run.begin_unix


def test_tasks_of_an_array_are_written_one_by_one(site: Site) -> None:
    if site.slurm.suite == "bookworm":
        pytest.skip("sacctmgr of 22.05 writes AdminComment in lower case")
    array = site.slurm.submit("#!/bin/sh\ntrue\n", "--array=1-2", "--gres=gpu:1")
    wait_in_database(site.slurm, array)
    rows = site.slurm.run(["/usr/bin/sacct", "-n", "-P", "-X", "-o", "jobid,jobidraw,nodelist", "-j", str(array)]).stdout.split()
    assert len(rows) == 2
    for row in rows:
        _, raw, node = row.split("|")
        query(site.slurm, f"UPDATE lab_job_table SET time_start=time_end-{600 if raw == str(array) else 1200} WHERE id_job={raw}")
        site.record(int(raw), node, 1)
    site.collect()
    seconds = {row.split("|")[0]: decoded(admin_comment(site.slurm, row.split("|")[0])) for row in rows}
    assert all(data is not None for data in seconds.values())
    assert sorted(data["total_time"] for data in seconds.values() if data) == [600, 1200]


def test_a_missing_node_is_named_and_asked_again(site: Site) -> None:
    job = site.ended("-N2", "--gres=gpu:2", seconds=3600)
    site.record(job, "n1")
    counted, said = site.collect()
    assert "n2: no records: ssh: connect to host n2 port 22: No route to host" in said
    assert "n2" in counted["waiting"] and admin_comment(site.slurm, job) == ""
    counted, said = site.collect()
    assert "n2" not in said and counted["asked"] == 0  # it is asked again after a minute
    site.record(job, "n2")
    with JobStore(str(site.folder / "store"), write=True) as store, store.changes() as db:
        db.execute("UPDATE run SET due_unix = 0")
    site.collect()
    assert "n2" not in site.collect()[1]
    with JobStore(str(site.folder / "store"), write=False) as store:
        (each,) = store.runs_of(str(job))
        assert {record.node for record in store.records(each.run)} == {"n1", "n2"}
    if site.slurm.suite != "bookworm":
        data = decoded(admin_comment(site.slurm, job))
        assert data is not None and data["nodes"].keys() == {"n1", "n2"}


def test_without_slurmdbd_it_says_so_once_and_keeps_records(site: Site) -> None:
    site.collect()
    site.slurm.stop_slurmdbd()
    try:
        job = site.slurm.submit("#!/bin/sh\ntrue\n", "-wn1", "--gres=gpu:1")
        site.slurm.wait_job(job, "COMPLETED")
        text = site.slurm.scontrol("-o", "show", "job", str(job))
        begin = float(
            subprocess.run(
                ["date", "+%s", "-d", text.partition(" StartTime=")[2].split()[0]], capture_output=True, check=True
            ).stdout
        )
        folder = site.folder / "n1/usage"
        folder.mkdir(parents=True, exist_ok=True)
        made = record_of("n1", 1.0, 1, job=job, uid=None, begin_unix=begin, end_unix=begin + 1, written_unix=begin + 1)
        (folder / f"{job}-{int(begin)}.json").write_bytes(encoded(made))
        counted, said = site.collect()
        assert counted["found"] >= 1 and counted["records"] >= 1 and said.count("no AdminComment is written") == 1
        assert "sacct" not in site.collect()[1]
    finally:
        site.slurm.start_slurmdbd()


def test_without_the_right_it_says_so_once_keeps_records_and_writes_later(site: Site) -> None:
    """The account that collects has no right of an operator."""
    if site.slurm.suite == "bookworm":
        pytest.skip("sacctmgr of 22.05 writes AdminComment in lower case")
    commands = site.folder / "bin"
    commands.mkdir()
    for program in site.slurm.bin.iterdir():
        become = ["/usr/bin/setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", f"/usr/bin/{program.name}"]
        (commands / program.name).write_text(f'#!/bin/sh\nexec {shlex.join([*enter_command(site.slurm.pid), *become])} "$@"\n')
        (commands / program.name).chmod(0o755)
    job = site.ended("-wn1", "--gres=gpu:2", seconds=3600)
    site.record(job, "n1")
    counted, said = site.collect("--bin-dir", str(commands))
    assert counted["records"] >= 1 and counted["written"] == 0, said
    assert said.count("this account may not write AdminComment") == 1 and admin_comment(site.slurm, job) == ""
    assert "may not write" not in site.collect("--bin-dir", str(commands))[1]
    assert site.collect()[0]["written"] >= 1 and decoded(admin_comment(site.slurm, job)) is not None


def test_a_round_that_is_killed_is_continued(site: Site) -> None:
    jobs = [site.ended("-wn1", "--gres=gpu:1", seconds=3600) for _ in range(3)]
    for job in jobs:
        site.record(job, "n1", 1)
    words = [sys.executable, "-m", "fairlead", "collect", "--store", str(site.folder / "store")]
    words += ["--bin-dir", str(site.slurm.bin), "--ssh", str(site.folder / "ssh")]
    for seconds in (0.3, 0.6, 0.9, 1.2, 1.5):
        process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT / "agent")}, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        process.kill()
        process.wait()
    with JobStore(str(site.folder / "store"), write=True) as store, store.changes() as db:
        db.execute("UPDATE run SET due_unix = 0 WHERE due_unix IS NOT NULL")
    site.collect()
    if site.slurm.suite != "bookworm":
        assert all(decoded(admin_comment(site.slurm, job)) for job in jobs)
