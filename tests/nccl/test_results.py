"""Outputs of nccl-tests: every layout, and every way in which a run is not a good one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli import main
from fairlead.errors import DataError
from fairlead.nccl.results import ERRORS_MAX, NcclTestRun, parse

DATA = Path(__file__).resolve().parents[2].parent / "shared/data/nccltests"

HEAD = """\
# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 8(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid    490 on     gpu001 device  0 [0000:0f:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid    491 on     gpu001 device  1 [0000:15:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
ROWS = """\
           8             2     float     sum      -1    12.90    0.00    0.00      0    12.87    0.00    0.00      0
          64            16     float     sum      -1    22.25   10.00   18.75      0    13.34   11.00   20.62      0
"""
PER_ITERATION = "time algbw busbw #wrong i_min i_max i_p99 i_cv%"
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 9.84\n#\n# Collective test concluded: all_reduce_perf\n"


def one(text: str) -> NcclTestRun:
    (run,) = parse(text)
    return run


def test_a_good_run() -> None:
    run = one(HEAD + ROWS + FOOT)
    assert (run.collective, run.version, run.ranks) == ("all_reduce", "2.17.6", 2)
    assert run.passed and run.complete and run.checked and run.wrong_total == 0 and run.peak_busbw_gbps == 20.62
    last = run.rows[-1]
    assert (last.bytes, last.time_us, last.algbw_gbps, last.busbw_gbps, last.wrong, last.inplace) == (
        64,
        13.34,
        11.0,
        20.62,
        0,
        True,
    )


@pytest.mark.parametrize(
    "prefix", ["[1,0]<stdout>:", "[1,12]<stdout>: ", "0: ", "    "], ids=["mpirun", "mpirun with a blank", "srun -l", "indented"]
)
def test_prefixes_and_noise(prefix: str) -> None:
    lines = (HEAD + ROWS + FOOT).splitlines()
    lines.insert(12, "gpu001:490:512 [0] NCCL INFO Launch mode Parallel")
    lines.insert(3, "Authorization required, but no authorization protocol specified")
    run = one("\n".join(prefix + line for line in lines))
    assert run.passed and len(run.rows) == 4 and run.ranks == 2


@pytest.mark.parametrize(
    ("header", "row", "sides", "wrong"),
    [
        ("size count type redop time algbw busbw error time algbw busbw error",
         "8 2 float sum 38.63 0.00 0.00 2e-07 38.85 0.00 0.00 1e-07", 2, None),
        ("size count type root time algbw busbw error time algbw busbw error",
         "8 2 float 0 38.63 0.00 0.00 N/A 38.85 0.00 0.00 N/A", 2, None),
        ("size count type redop root time algbw busbw #wrong time algbw busbw #wrong",
         "8 2 float none -1 38.63 0.00 0.00 N/A 38.85 0.00 0.00 0", 2, None),
        ("size count type redop root time algbw busbw #wrong time algbw busbw #wrong",
         "8 2 fp8e4m3 -1 38.63 0.00 0.00 0 38.85 0.00 0.00 0", 2, 0),
        ("size count type redop root time algbw busbw #wrong time algbw busbw #wrong timestamp",
         "8 2 bfloat16 sum -1 38.63 0.00 0.00 0 38.85 0.00 0.00 0 2026-10-01 10:22:33", 2, 0),
        (f"size count type redop root {PER_ITERATION} {PER_ITERATION}",
         "8 2 float sum -1 38.6 1.00 2.00 0 30 40 41 5.1 38.8 1.0 2.0 0 30 40 41 5.2", 2, 0),
        ("size count type redop root time algbw busbw #wrong time algbw busbw #wrong",
         "8 2 float sum -1 38.85 0.00 0.00 0", 1, 0),  # only in place: the replay of a trace
        ("size count type redop root cputime algbw busbw #wrong cputime algbw busbw #wrong",
         "8 2 float sum -1 1.5e+07 0.00 0.00 0 38.85 0.00 0.00 0", 2, 0),
    ],
    ids=["error column", "error column, no redop", "no redop to speak of", "empty redop", "-S", "-I", "in place only", "-C"],
)  # fmt: skip
def test_layouts(header: str, row: str, sides: int, wrong: int | None) -> None:
    run = one(f"# {header}\n{row}\n{FOOT}")
    assert len(run.rows) == sides and run.rows[0].wrong == wrong and run.rows[-1].inplace
    assert run.rows[-1].bytes == 8 and run.passed


def test_one_wrong_value_in_any_row_fails() -> None:
    """A public log of corrupted data has a clean last row."""
    for at, line in enumerate(ROWS.splitlines()):
        for column in (-1, -5):
            rows = ROWS.splitlines()
            words = line.split()
            words[column] = "3"
            rows[at] = " ".join(words)
            run = one(HEAD + "\n".join(rows) + "\n" + FOOT)
            assert run.wrong_total == 3 and not run.passed, rows


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + ROWS, ""),
        (HEAD + ROWS + FOOT.splitlines()[0], ""),
        (HEAD + ROWS + FOOT.replace("0 OK", "2 FAILED"), "2 FAILED"),
        (HEAD + ROWS + FOOT.replace("9.84", "1.2 FAILED"), "1.2 FAILED"),
        (HEAD + ROWS + "gpu001: Test NCCL failure common.cu:303 'remote process exited'\n" + FOOT, "remote process exited"),
        (HEAD + FOOT, "no row"),
        (HEAD + ROWS.replace("20.62", "XX.XX") + FOOT, "cannot be read"),
        (HEAD + ROWS.replace("18.75", "nan") + FOOT, "cannot be read"),
        (HEAD + ROWS[:-20] + "\n" + FOOT, "cannot be read"),
        (HEAD.replace("Rank  1 Group", "Rank  0 Group") + ROWS + FOOT, "without MPI"),
        ("There are not enough slots available in the system\n", "not enough slots"),
        ("node: Test NCCL failure common.cu:303 'x'\n.. node pid: Test failure common.cu:401\n", "common.cu:303"),
    ],
)
def test_not_a_good_run(text: str, says: str) -> None:
    run = one(text)
    assert not run.passed
    assert says in " ".join(run.errors) and (says or not run.complete)


def test_errors_of_every_rank_are_bounded() -> None:
    run = one("".join(f".. n{i} pid {i}: Test failure common.cu:{i}\n" for i in range(10_000)))
    assert len(run.errors) == ERRORS_MAX


def test_two_runs_in_one_file() -> None:
    second = (HEAD + ROWS + FOOT).replace("all_reduce", "all_gather")
    assert [run.collective for run in parse(HEAD + ROWS + FOOT + second)] == ["all_reduce", "all_gather"]
    cut, whole = parse(HEAD + ROWS + second)  # the first was killed
    assert not cut.complete and whole.complete


def report(**changes: object) -> str:
    side = {"time": 12.9, "alg_bw": 10.0, "bus_bw": 18.75, "nwrong": 0.0}
    data: dict[str, object] = {
        "version": 3,
        "args": ["/opt/nccl-tests/build/all_reduce_perf_mpi", "-J", "out.json"],
        "env": ["SECRET=1"],
        "nccl_version": 22903,
        "config": {"nthreads": 1, "devices": [{"rank": 0, "hostname": "a"}, {"rank": 1, "hostname": "b"}]},
        "results": [{"size": 64, "count": 16, "out_of_place": side, "in_place": {**side, "nwrong": None}}],
        "out_of_bounds": {"count": 0, "okay": True},
        "average_bus_bandwidth": {"bandwidth": 9.84, "okay": "unchecked"},
        "errors": [],
        **changes,
    }
    return json.dumps({k: v for k, v in data.items() if v is not ...})


def test_json() -> None:
    run = one(report())
    assert run.passed and run.collective == "all_reduce" and run.ranks == 2 and run.checked
    assert [row.wrong for row in run.rows] == [0, None] and run.peak_busbw_gbps == 18.75


@pytest.mark.parametrize(
    "changes",
    [
        {"out_of_bounds": ...},
        {"out_of_bounds": {"count": 2, "okay": False}},
        {"average_bus_bandwidth": {"bandwidth": 1.0, "okay": False}},
        {"errors": ["internal error"]},
        {"results": []},
        {"results": [{"size": 8, "out_of_place": None, "in_place": {"time": 1.0, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 5.0}}]},
    ],
)
def test_json_not_good(changes: dict[str, object]) -> None:
    assert not one(report(**changes)).passed


@pytest.mark.parametrize("text", ["", "hello\nworld\n", "{}", '{"results": 3}', report()[:-30], '{"a": "\ud800"}'])
def test_nothing_of_nccl_tests(text: str) -> None:
    with pytest.raises(DataError):
        parse(text)


@given(st.text() | st.lists(st.sampled_from([*HEAD.splitlines(), *ROWS.splitlines(), *FOOT.splitlines(), "..."])).map("\n".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        runs = parse(text)
    except DataError:
        return
    for run in runs:
        assert run.wrong_total >= 0 and (not run.passed or run.rows)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (HEAD + ROWS + FOOT, 0),
        (HEAD + ROWS.replace("      0", "    N/A") + FOOT, 1),
        (HEAD + ROWS, 2),
        ("nothing", 65),
    ],
    ids=["good", "never checked", "cut short", "nothing in it"],
)
def test_command(text: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.txt"
    file.write_text(text)
    assert main(["nccl", "parse", str(file), "--json"]) == code
    if code != 65:
        data = json.loads(capsys.readouterr().out)
        assert set(data) == {"collective", "version", "ranks", "rows", "complete", "wrong_total", "errors", "peak_busbw_gbps"}
        assert set(data["rows"][0]) == {"bytes", "time_us", "algbw_gbps", "busbw_gbps", "wrong", "inplace"}
    assert main(["nccl", "parse", str(file)]) == code
    assert main(["nccl", "parse", str(tmp_path / "absent")]) == 66


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            HEAD + ROWS,
            "INCOMPLETE: the footer is missing, so the run ended early or its output was cut; the 4 results that are here",
        ),
        (HEAD, "FAILED: the footer is missing, so the run ended early or its output was cut, no row of results"),
        (HEAD + ROWS + "x: Test NCCL failure common.cu:1\n", "FAILED: the footer is missing"),
        ("| payload | busbw |\n| 32KiB | 1.44GBps |\n", "it has bandwidths, but not in the form of nccl-tests: it was"),
        ("busbw 450\n", "it has bandwidths"),
        ("hello\n", "nothing in it is output of nccl-tests"),
    ],
)
def test_what_is_no_whole_run_is_told_as_what_it_is(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.txt"
    file.write_text(text)
    assert main(["nccl", "parse", str(file)]) in (2, 65)
    assert says in "".join(capsys.readouterr())


#: What each sample is: passes, complete, peak bus bandwidth. The table of another benchmark is none of nccl-tests.
SAMPLES: dict[str, tuple[bool, bool, float | None]] = {
    "aicr_gke_2.17.6": (True, True, 333.51),
    "aws_batch_mpi-prefix": (True, True, 483.35),
    "aws_topology-aware": (True, True, 369.86),
    "coreweave_1": (True, True, 386.56),
    "coreweave_3": (True, True, 820.36),
    "cscs_gh200": (True, True, 123.11),
    "deepops_network-operator": (True, True, 188.7),
    "deepops_slurm-perf-cluster": (True, True, 191.56),
    "fail_cloudai_remote-exit": (False, False, None),
    "fail_nccl831_out-of-bounds": (False, True, None),
    "fail_xfusion_invalid-argument": (False, False, None),
    "gcm_pairwise_ok": (True, True, 182.8),
    "gcp_a3-highgpu": (True, True, 71.35),
    "gcp_a3-ultra_placeholder": (False, True, None),
    "gcp_dws-flex-start": (True, True, 335.67),
    "oci_b4.8_2node_2.17.9": (True, True, 188.5),
    "slow_rtx5090_socket_2.18.0": (False, False, 2.55),
    "superbench_allreduce": (True, True, 235.26),
    "superbench_broadcast": (True, True, 234.7),
    "superbench_reducescatter": (True, True, 231.52),
}


@pytest.mark.skipif(not DATA.is_dir(), reason=f"sample data not found at {DATA}")
def test_public_samples() -> None:
    assert {p.stem for p in DATA.glob("*.txt")} == {*SAMPLES, "mleng_h200_table"}
    for name, (passed, complete, peak) in SAMPLES.items():
        (run,) = parse((DATA / f"{name}.txt").read_text())
        assert (run.passed, run.complete, run.peak_busbw_gbps) == (passed, complete, peak), name
        if passed:  # and with one wrong value in any row it fails
            text = (DATA / f"{name}.txt").read_text()
            lines = text.splitlines()
            for at, line in enumerate(lines):
                words = line.split()
                if " float " in line and words[-1] in ("0", "N/A", "5e-07", "1e-06"):
                    for wrong in ("1", "nan"):
                        changed = "\n".join((*lines[:at], line.removesuffix(words[-1]) + wrong, *lines[at + 1 :]))
                        assert not parse(changed)[0].passed, (name, line, wrong)
    with pytest.raises(DataError):
        parse((DATA / "mleng_h200_table.txt").read_text())
