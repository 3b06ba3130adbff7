"""The job's script and what is read of it, without Slurm; the store's own rules."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.errors import DataError, HostError, InputMissing
from fairlead.measure import job_output
from fairlead.measure.acceptance_run import FILE_MAX
from fairlead.measure.job_output import ToolRun
from fairlead.measure.job_script import ToolStep, limit_minutes, script
from fairlead.measure.results_store import KEEP_DAYS, KEEP_RUNS, ResultStore, StoredResult
from fairlead.measure.slurm_jobs import parse as parse_jobs
from fairlead.measure.tool import Figure, MeasuredOutcome
from fairlead.measure.tools import load
from tests.measure.conftest import install
from tests.measure.fabric_lab import until

MARK = "#fairlead-0123456789abcdef"


def ran(folder: Path, *steps: ToolStep, prelude: str = "", gpus: int | None = 8) -> job_output.JobOutput:
    path = folder / "job.sh"
    path.write_text(script(MARK, "n1", steps, gpus=gpus, prelude=prelude))
    env = {"PATH": f"{install(folder)}:{os.environ['PATH']}", "SLURMD_NODENAME": "n1"}
    done = subprocess.run(["/bin/sh", str(path)], env=env, capture_output=True, text=True, timeout=200, check=False)
    return job_output.parse(MARK, done.stdout, done.stderr)


def step(name: str, command: str, seconds: int = 60) -> ToolStep:
    return ToolStep(name=name, command=command, seconds=seconds)


def test_the_script_runs_each_tool_to_its_end(tmp_path: Path) -> None:
    found = ran(
        tmp_path,
        step("a", "echo out; echo err >&2; exit 3"),
        step("b", "printf 'no line end'"),
        step("c", "sleep 600", seconds=1),
        step("d", "kill -BUS $$"),
        step("e", "no-such-program --x"),
        step("f", "cat; echo $GPUS $FROM_PRELUDE"),
        prelude="FROM_PRELUDE='it''s there'\nexport FROM_PRELUDE",
    )
    assert found.node == "n1" and found.done
    assert (found.ran["a"].out, found.ran["a"].err, found.ran["a"].status) == ("out", "err", 3)
    assert found.ran["b"].out == "no line end"
    assert found.ran["c"].status == 124 and found.ran["d"].status == 128 + 7 and found.ran["e"].status == 127
    assert found.ran["f"].out == "8 its there"  # and nothing to read on standard input
    assert [g.pci for g in found.gpus][:2] == ["0000:1b:00.0", "0000:1c:00.0"] and found.gpus[7].serial == "16000159007"


def test_the_gpus_are_counted_where_nobody_declares_them(tmp_path: Path) -> None:
    assert ran(tmp_path, step("a", "echo $GPUS"), gpus=None).ran["a"].out == "8"


@pytest.mark.heavy
def test_no_tool_can_speak_for_the_job(tmp_path: Path) -> None:
    found = ran(tmp_path, step("a", "echo '#fairlead-ffff done'; echo '#fairlead- end a 0 1'; exec sleep 600", seconds=3))
    assert found.ran["a"].status == 124 and "#fairlead-ffff done" in found.ran["a"].out


def test_the_time_limit_holds_all_deadlines() -> None:
    assert limit_minutes([step("a", "x", 600), step("b", "x", 60)]) == 15


@given(st.text(), st.text())
def test_any_text_is_a_report(out: str, err: str) -> None:
    found = job_output.parse(MARK, f"{MARK} node n1\n{out}", err)
    assert found.node and not found.done


@given(st.integers(0, 400))
def test_a_cut_report_has_no_more_than_what_was_there(end: int) -> None:
    whole = (
        f"\n{MARK} node n1\n\n{MARK} begin a\nrow\n\n{MARK} end a 0 2\n\n{MARK} begin b\nrow\n\n{MARK} end b 0 2\n\n{MARK} done\n"
    )
    found = job_output.parse(MARK, whole[:end])
    assert found.done is (end >= len(whole) - 1)
    for name in found.ran:
        assert found.ran[name].status in (None, 0) and found.ran[name].out.split("#")[0] in "row\n\n"


@pytest.mark.parametrize(
    ("run", "outcome", "says"),
    [
        (ToolRun(), MeasuredOutcome.UNKNOWN, "not run: the job ended"),
        (ToolRun(begun=True, out="x"), MeasuredOutcome.UNKNOWN, "not finished: the job ended"),
        (ToolRun(begun=True, status=127), MeasuredOutcome.ABSENT, "not installed"),
        (ToolRun(begun=True, status=126), MeasuredOutcome.ABSENT, "not installed"),
        (ToolRun(begun=True, status=124), MeasuredOutcome.FAIL, "hung, ended after 5 s: no output"),
        (ToolRun(begun=True, status=137, seconds=20), MeasuredOutcome.FAIL, "hung"),
        (ToolRun(begun=True, status=137, seconds=2), MeasuredOutcome.UNKNOWN, "ended from outside (SIGKILL)"),
        (
            ToolRun(begun=True, status=143, seconds=2),
            MeasuredOutcome.UNKNOWN,
            "ended from outside (SIGTERM), the job ended: no output",
        ),
        (ToolRun(begun=True, status=134), MeasuredOutcome.FAIL, "crashed (SIGABRT)"),
        (ToolRun(begun=True, status=0), MeasuredOutcome.UNKNOWN, "no report of dcgmi diag"),
        (ToolRun(begun=True, status=255, err="Error: unable to connect"), MeasuredOutcome.UNKNOWN, "unable to connect"),
    ],
)
def test_how_a_tool_ended(run: ToolRun, outcome: MeasuredOutcome, says: str) -> None:
    said = job_output.said(load()["dcgm"], step("dcgm", "x", 5), run, 8, "the job ended")
    assert said.outcome is outcome and says in said.why, said


def of_session(session: int) -> list[int]:
    """The processes of a session (proc(5), stat), as slurmd finds those of a job."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(each.read_text().rpartition(")")[2].split()[3]) == session:
                found.append(int(each.parent.name))
    return found


def test_a_job_that_was_suspended_says_so_and_accuses_nobody(tmp_path: Path) -> None:
    """Slurm stops all processes of the job, and lets them go on later. Meanwhile the deadline of the tool passes."""
    row = "printf '%s\\n' '# nccl-tests version 2.17.9' '64 16 float sum -1 1.0 1.0 1.0 0 1.0 1.0 1.0 0'"
    steps = (step("a", f"{row}; touch begun; sleep 1; echo late", 2), step("b", "echo whole"))
    (tmp_path / "job.sh").write_text(script(MARK, "n1", steps, gpus=8))
    env = {"PATH": f"{install(tmp_path)}:{os.environ['PATH']}", "SLURMD_NODENAME": "n1"}
    with subprocess.Popen(
        ["/bin/sh", "job.sh"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        until((tmp_path / "begun").exists, "the tool runs")
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in of_session(process.pid):
                with suppress(ProcessLookupError):  # a tool that met its deadline ends when it goes on
                    os.kill(pid, number)
            time.sleep(3 if number == signal.SIGSTOP else 0)
        found = job_output.parse(MARK, process.communicate(timeout=60)[0])
    assert found.done and found.ran["a"].suspended and not found.ran["b"].suspended
    assert found.ran["b"].out == "whole" and MARK not in found.ran["a"].out and "64 16" in found.ran["a"].out
    said = job_output.said(load()["all_reduce"], steps[0], found.ran["a"], None, "the job ended")
    assert said.outcome is MeasuredOutcome.UNKNOWN and "suspended" in said.why, said
    for status, outcome in ((0, "unknown"), (139, "fail"), (137, "unknown")):
        run = replace(found.ran["a"], status=status, seconds=9)
        assert job_output.said(load()["all_reduce"], steps[0], run, None, "").outcome == outcome


EVIL = "\x1b[2J\x9b1m\u202e\x00\r[red]x[/red]"
HEAD = "# nccl-tests version 2.17.9\n"
HOSTILE = {
    "deep": "{" + '"a":{' * 100_000,
    "deep list": '{"nvbandwidth": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "escapes": f"{EVIL}\n" * 50,
    "digits": f"{HEAD}{'9' * 5000} {'9' * 5000} float sum -1 1.0 1.0 {'9' * 5000} 0 1.0 1.0 1.0 0\nTested {'9' * 5000} GPUs:\n",
    "not a number": f"{HEAD}64 16 float sum -1 nan nan nan 0 nan inf inf 0\n"
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth : inf\n",
    "wrong types": '{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": 3, "results": [{"status": {}}]}]}]},'
    ' "metadata": []}',
    "wide": '{"nvbandwidth": {"testcases": [' + '{"name": "x", "bandwidth_matrix": [["1"]]},' * 20_000 + "{}]}}",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("tool", load())
def test_no_output_of_a_tool_breaks_a_run_or_gets_to_a_terminal_as_it_came(tool: str, name: str, tmp_path: Path) -> None:
    store = ResultStore(str(tmp_path / "store"))
    store.submitted("r", "n1", "h100", 1)
    for status in (0, 1, 134, None):
        run = ToolRun(begun=True, status=status, out=HOSTILE[name], err=f"{EVIL}{EVIL}\n")
        said = job_output.said(load()[tool], step(tool, "x"), run, 8, "the job ended")
        texts = [said.why, *said.notes, *said.versions, *said.versions.values(), *(f.device for f in said.figures)]
        assert said.outcome is not MeasuredOutcome.PASS and all(t.isprintable() and len(t) <= 800 for t in texts)
        result = StoredResult(
            tool=tool, command="x", outcome=said.outcome, why=said.why, versions=said.versions, figures=said.figures
        )
        store.measured("r", "n1", said.outcome, "", kind="", driver="", gpus=(), results=[result])
    store.close()


def test_no_line_of_a_job_breaks_its_report(tmp_path: Path) -> None:
    many, digits = "".join(f"{n}, GPU-{n}, s, 0:1:2.0, x, 1\n" for n in range(5000)), "9" * 5000
    inventory = f'{digits}, GPU-1, s, 00000000:1B:00.0, x, 1\n\u0661, GPU-2, s, p, x, 1\n3, GPU-{", ".join([EVIL] * 5)}\n"\n'
    text = f"{MARK} node n1\n{MARK} begin inventory\n{inventory}{many}\n{MARK} end inventory 0 1\n{MARK} end x {digits} 1\n"
    gpus = job_output.parse(MARK, text + f"{MARK} begin a\n{MARK} end a {digits} {digits}\n").gpus
    assert len(gpus) <= job_output.LINES_MAX and {g.index for g in gpus} >= {0, 3}
    assert all(t.isprintable() and len(t) <= 110 for g in gpus for t in (g.uuid, g.serial, g.pci, g.name, g.driver))


@pytest.mark.parametrize("said", ["\n", f"\n{MARK} begin a\n", f"\n{MARK} end a 0 1\n", "\U0001f600\n"])
def test_as_much_as_is_read_of_a_job_costs_this_host_little(said: str) -> None:
    """A node decides what stands in the folder that it shares with this host: as many lines as it likes."""
    text = f"{MARK} node n1\n" + said * (FILE_MAX // len(said.encode()))
    tracemalloc.start()
    try:
        found = job_output.parse(MARK, text, text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.node == "n1" and peak < 5 * len(text.encode("utf-32")), f"{peak >> 20} MiB"
    assert FILE_MAX <= 8 << 20


def test_fewer_gpus_than_declared_is_a_failure() -> None:
    text = "64 16 float sum -1 1.0 1.0 470.0 0 1.0 1.0 480.0 0\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 475\n"
    ranks = "".join(f"#  Rank  {n} Group  0 Pid 1{n} on n1 device {n} [0000:1b:00] X\n" for n in range(7))
    run = ToolRun(begun=True, status=0, out=ranks + text)
    said = job_output.said(load()["all_reduce"], step("all_reduce", "x"), run, 8, "")
    assert said.outcome is MeasuredOutcome.FAIL and said.why == "7 GPUs took part, the node should have 8"
    assert job_output.said(load()["all_reduce"], step("all_reduce", "x"), run, None, "").outcome is MeasuredOutcome.PASS


def test_squeue() -> None:
    (job,) = parse_jobs("12|PENDING|0:00|n1|fairlead-accept-x|Nodes required|for job are DOWN\n")
    assert (job.id, job.node, job.reason, job.ended) == (12, "n1", "Nodes required|for job are DOWN", False)
    for text, used in (("0:00", 0), ("12:34", 754), ("2-03:04:05", 183845), ("INVALID", None), ("", None)):
        assert parse_jobs(f"12|TIMEOUT|{text}|n1|x|None\n")[0].used_seconds == used


# --- the store ---


def put(
    store: ResultStore, run: str, node: str, value: float, *, outcome: str = "pass", command: str = "x", driver: str = "580"
) -> None:
    if not store.read("SELECT 1 FROM run WHERE run = ?", (run,)):
        store.begin(run, user="root", host="h", folder="/f", plan=b"{}", fairlead="1")
    store.submitted(run, node, "h100", 1)
    figure = Figure(name="busbw", value=value, unit="GB/s", bytes=64)
    result = StoredResult(tool="all_reduce", command=command, outcome=outcome, figures=(figure,), out="text\0\udcff", err="")
    store.measured(run, node, "unknown", "not judged yet", kind="8 x H100", driver=driver, gpus=(), results=[result])


def test_who_is_a_sibling(tmp_path: Path) -> None:
    store = ResultStore(str(tmp_path / "a/b.sqlite"))
    put(store, "r1", "n1", 1.0)
    put(store, "r2", "n1", 2.0)  # newer
    put(store, "r2", "n2", 3.0)
    put(store, "r2", "n3", 4.0, outcome="fail")
    put(store, "r2", "n4", 5.0, command="y")
    put(store, "r2", "n5", 6.0, driver="570")

    def siblings(**changed: str) -> dict[str, list[float]]:
        given = {"class_name": "h100", "kind": "8 x H100", "driver": "580", "tool": "all_reduce", "command": "x", **changed}
        return store.siblings(without=["n9"], **given).get(("busbw", 64, "GB/s"), {})

    assert siblings() == {"n1": [2.0], "n2": [3.0]}
    assert siblings(class_name="a100") == {} == siblings(kind="8 x A100")
    assert store.raw("r1", "n1", "all_reduce") == ("text\0?", "")
    with pytest.raises(InputMissing):
        store.raw("r1", "n2", "all_reduce")
    assert os.stat(store.path).st_mode & 0o777 == 0o600
    store.close()


def test_what_is_no_store_of_ours(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="no results yet"):
        ResultStore(str(tmp_path / "none"), make=False)
    (tmp_path / "text").write_text("not a database, and long enough to be looked at by SQLite as one" * 20)
    with pytest.raises(HostError, match="not a database"):
        ResultStore(str(tmp_path / "text"))
    newer = sqlite3.connect(tmp_path / "newer")
    newer.execute("PRAGMA user_version = 9")
    newer.commit()
    newer.close()
    with pytest.raises(DataError, match="schema 9"):
        ResultStore(str(tmp_path / "newer"))


def test_results_of_runs_that_ended_years_ago_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResultStore(str(tmp_path / "store"))
    for run in ("old", "open"):
        store.begin(run, user="ada", host="h", folder="f", plan=b"", fairlead="0")
        store.submitted(run, "n1", "h100", 1)
    store.write(("UPDATE run SET ended = ? WHERE run = 'old'", [(time.time(),)]))
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + (KEEP_DAYS + 1) * 86400)
    new = [f"new{number:02}" for number in range(KEEP_RUNS + 1)]
    for number, run in enumerate(new):
        known = [known for (known,) in store.read("SELECT run FROM run ORDER BY run")]
        assert known == [*new[:number], "old", "open"], "a clock that was wrong for some runs makes it forget nothing"
        store.begin(run, user="ada", host="h", folder="f", plan=b"", fairlead="0")
    assert [run for (run,) in store.read("SELECT run FROM run ORDER BY run")] == [*new, "open"]
    assert store.read("SELECT run FROM node") == [("open",)]
    store.close()
