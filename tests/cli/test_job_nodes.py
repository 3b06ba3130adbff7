"""fairlead job ID --nodes and fairlead slow-nodes, over a store and over a folder."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli import main
from fairlead.cli.job_nodes import nodes_text
from fairlead.controller.job_store import JobStore
from fairlead.jobs.job_run import JobRun
from fairlead.jobs.usage_merge import merged
from fairlead.jobs.usage_record import GpuUsage, HostUsage, UsageRecord, encoded
from tests.jobs.few_columns import COLUMNS
from tests.jobs.job_reports import gpu_of, record_of, run_of

SECONDS = 3600.0
BEGIN = int(time.time()) - 40 * 86400


def gpu(number: int, clock: int = 132, slowed: float = 0.0) -> GpuUsage:
    return gpu_of(
        number,
        SECONDS,
        readings=200,
        gres_index=number,
        histogram_seconds=(0.0,) * 10 + (SECONDS,),
        clock_histogram_seconds={clock: SECONDS},
        sm_histogram_seconds={12: SECONDS},
        power_histogram_seconds={30: SECONDS},
        throttled_seconds={"hw_power_brake_slowdown": slowed} if slowed else {},
    )


def record(job: int, node: str, begin: float, *, slow: bool = False, pressure: int = 1, **changes: Any) -> UsageRecord:
    values: dict[str, Any] = {
        "job": job,
        "begin_unix": begin,
        "end_unix": begin + SECONDS,
        "written_unix": begin + SECONDS,
        "gpus": tuple(gpu(n, 90 if slow and n == 3 else 132, 3000.0 if slow and n == 3 else 0.0) for n in range(8)),
        "host": HostUsage(
            node_seconds=SECONDS, pressure_histogram_seconds={"cpu": {pressure: SECONDS}}, event_counts={"tcp_retransmits": 3}
        ),
    }
    return record_of(node, SECONDS, 8, **(values | changes))


def a_run(job: int, nodes: int, begin: int, user: str = "alice") -> JobRun:
    return run_of(nodes, int(SECONDS), job=job, label=str(job), begin_unix=begin, end_unix=begin + int(SECONDS), user=user)


def store_of(folder: Path, *, slow: bool = True, nodes: int = 6) -> Path:
    run = a_run(17, nodes, BEGIN)
    records = [record(17, node, float(BEGIN), slow=slow and node == "gpu003") for node in run.nodes]
    with JobStore(str(folder), write=True) as store:
        store.add_runs([run], BEGIN)
        store.put_records(run, records, [])
    return folder


def test_a_slow_gpu_of_a_job_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "17", "--nodes", "--store", str(store_of(tmp_path))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("job 17  COMPLETED  6 nodes")
    assert lines[1].split()[:2] == ["NODE", "READINGS"]
    assert next(line for line in lines if line.startswith("gpu003 *")).split()[3] == "1350-1980"
    named = "slow GPU: gpu003 (GPU 3): SM clock under load 1350 MHz, its peers 1980 MHz"
    assert f"{named} and time with slowed clocks 83 %, its peers 0 %" in lines
    assert any(line.startswith("would have been seen: SM clock under load 4 % lower") for line in lines)
    assert lines[-1] == "A report only: fairlead drains and excludes nobody because of it."


def test_equal_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "17", "--nodes", "--json", "--store", str(store_of(tmp_path, slow=False))]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["judgement"]["accused"] == [] and data["judgement"]["uneven"] == [] and len(data["nodes"]) == 6


def test_small_jobs_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "17", "--nodes", "--store", str(store_of(tmp_path, nodes=3))]) == 0
    out = capsys.readouterr().out
    assert (
        "the nodes were not compared" in out and "3 nodes of its kind, and 4 are needed" in out and "would have been" not in out
    )


def test_uneven_work_names_nobody() -> None:
    run = a_run(17, 6, BEGIN)
    records = [record(17, node, float(BEGIN), pressure=15 if node == "gpu002" else 1) for node in run.nodes]
    text = nodes_text(merged(run, records, BEGIN + 9000.0)[0])
    assert "uneven work in the job, no node is accused" in text and "gpu002: CPU pressure 75 %" in text


def test_an_old_record_and_a_missing_one_are_named() -> None:
    run = a_run(17, 7, BEGIN)
    old = record_of("gpu002", SECONDS, 8, begin_unix=float(BEGIN), end_unix=BEGIN + SECONDS, written_unix=BEGIN + SECONDS)
    records = [old, *(record(17, node, float(BEGIN)) for node in run.nodes[2:])]
    text = nodes_text(merged(run, records, BEGIN + 9000.0)[0])
    assert "not compared: gpu001: the node has given no record" in text
    assert "not compared: gpu002: its record has no histograms (fairlead 0.1.0 wrote it)" in text
    assert "no node differs from its peers" in text


@pytest.mark.parametrize("words", [["--nodes"], ["--user", "--nodes"], ["--array", "17", "--nodes"]])
def test_nodes_of_one_job_only(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", *words]) == 64
    assert "fairlead job ID" in capsys.readouterr().err


NODES = tuple(f"gpu{n:03d}" for n in range(1, 13))


def folder_of(path: Path, slow: str, jobs: int = 8) -> Path:
    """Jobs of as many users on 12 nodes, of which one has a high CPU pressure, and a few jobs of other nodes."""
    rows = []
    for n in range(jobs):
        job, begin = 100 + n, BEGIN + n * 7200
        rows.append(f"{job}|u{n}|a|gpu|normal|COMPLETED|{begin}|{begin + 3600}|120|gres/gpu=96|gpu[001-012]\n")
        for node in NODES:
            made = record(job, node, float(begin), pressure=15 if node == slow else 1)
            (path / f"{job}-{node}.json").write_bytes(encoded(made))
    (path / "jobs.psv").write_text("|".join(COLUMNS) + "\n" + "".join(rows))
    return path


def test_a_node_that_is_slow_for_many_users_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slow-nodes", "--from", str(folder_of(tmp_path, "gpu005"))]) == 0
    out = capsys.readouterr().out
    assert "8 jobs of the last 90 days compare nodes" in out
    assert next(line for line in out.splitlines() if line.startswith("gpu")).split()[:3] == ["gpu005", "CPU", "pressure"]
    assert "expected number of nodes that this list names by chance: at most 0.02" in out


def test_nobody_is_named_among_equal_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slow-nodes", "--json", "--from", str(folder_of(tmp_path, ""))]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["named"] == [] and data["jobs"] == 8 and data["tests"] > 0


def test_nothing_to_compare_is_not_good_news(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slow-nodes", "--store", str(store_of(tmp_path, nodes=3))]) == 0
    out = capsys.readouterr().out
    assert "left out: 1 job: fewer than 6 nodes" in out and "nothing was compared" in out and "no node is" not in out


def test_a_record_that_is_torn_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, "gpu005", 1)
    (folder / "torn.json").write_bytes((folder / "100-gpu001.json").read_bytes()[:-40])
    assert main(["slow-nodes", "--from", str(folder)]) == 0
    assert "torn.json: is torn" in capsys.readouterr().err


def test_templates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["template", "--list"]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[:2] for line in listed.splitlines()] == [["sbatch", "requeue"], ["sbatch", "requeue-periodic"]]
    assert main(["template", "sbatch", "requeue"]) == 0
    assert capsys.readouterr().out.startswith("#!/bin/bash\n# Goes on after preemption")
    assert main(["template", "sbatch", "../requeue"]) == 66
    assert main(["template", "sbatch"]) == 64
    assert main(["template", "srun", "requeue"]) == 64


def test_nodes_of_a_job_from_recorded_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On any machine, without a controller. What could not be read is named."""
    folder = folder_of(tmp_path, "gpu005")
    (folder / "torn.json").write_text('{"schema":')
    assert main(["job", "103", "--nodes", "--from", str(folder)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("job 103  COMPLETED  12 nodes") and "gpu005: CPU pressure 75 %" in captured.out
    assert "fairlead job: torn.json: " in captured.err
    assert main(["job", "103", "--nodes", "--json", "--from", str(folder)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["job"] == "103" and len(data["nodes"]) == 12
    assert main(["job", "103", "--from", str(folder)]) == 0
    assert "103" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["9", "--nodes"], 66, "there is no job 9 in "),
        (["--last", "--nodes"], 64, "--from reads one job: fairlead job ID --from DIR"),
        (["103", "--store", "/nowhere"], 64, "--from and --store"),
    ],
)
def test_what_recorded_inputs_do_not_have(
    words: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", *words, "--from", str(folder_of(tmp_path, "gpu005", jobs=1))]) == code
    assert said in capsys.readouterr().err
