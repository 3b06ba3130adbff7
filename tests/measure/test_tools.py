"""What each tool's output says: whole, cut, damaged, of another program, and whatever bytes there may be."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.measure import collective, tools
from fairlead.measure.tool import MeasuredOutcome, ToolReading
from fairlead.measure.tools import copy, dcgm, gemm, ib_write_bw
from tests.measure.conftest import install

DATA = Path(__file__).resolve().parents[2].parent / "shared/data/nccltests"
P, W, F, U = MeasuredOutcome.PASS, MeasuredOutcome.WARN, MeasuredOutcome.FAIL, MeasuredOutcome.UNKNOWN


class Standin:
    """The stand-ins on this machine, by their default commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = install(folder)
        (self.bin / "sleep").symlink_to("/bin/true")

    def run(self, tool: str, mode: str = "ok", command: str = "") -> tuple[int, str, str]:
        place = self.folder / "modes/n1"
        place.mkdir(parents=True, exist_ok=True)
        for name in ("all_reduce_perf", "nvbandwidth", "gpu_burn", "dcgmi", "ib_write_bw"):
            (place / name).write_text(mode)
        env = {"PATH": f"{self.bin}:{os.environ['PATH']}", "SLURMD_NODENAME": "n1", "GPUS": "8"}
        done = subprocess.run(
            ["/bin/sh", "-c", command or tools.load()[tool].command],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def said(self, tool: str, mode: str = "ok") -> ToolReading:
        _, out, err = self.run(tool, mode)
        return tools.load()[tool].read(out, err)


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    return Standin(tmp_path_factory.mktemp("standin"))


def test_the_folder_is_the_list() -> None:
    assert set(tools.load()) == {"all_reduce", "all_gather", "reduce_scatter", "gemm", "copy", "dcgm", "ib_write_bw"}
    assert not tools.load()["dcgm"].needed and not tools.load()["ib_write_bw"].needed and tools.load()["copy"].needed


@pytest.mark.parametrize(
    ("tool", "mode", "outcome", "says"),
    [
        ("all_reduce", "ok", P, ""),
        ("all_reduce", "noise", P, ""),
        ("all_reduce", "slow 30", P, ""),  # speed is judged elsewhere
        ("all_reduce", "wrong", F, "wrong values"),
        ("all_reduce", "nofooter", U, "footer is missing"),
        ("all_reduce", "corrupt", U, "damaged: no row of 2 GiB"),
        ("all_reduce", "lost 1", F, "Invalid number of GPUs"),
        ("all_reduce", "crash", F, "Segmentation fault"),
        ("gemm", "ok", P, ""),
        ("gemm", "wrong", F, "GPU 5: 4 wrong results"),
        ("gemm", "crash", U, "at 50.0 %"),
        ("copy", "ok", P, ""),
        ("copy", "error", F, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("copy", "crash", U, "no output of nvbandwidth"),
        ("dcgm", "ok", P, ""),
        ("dcgm", "fail", F, "memory on GPU 2: GPU 2 has 4 uncorrectable memory errors"),
        ("dcgm", "refused", U, "Unable to connect to host engine"),
    ],
)
def test_standins(standin: Standin, tool: str, mode: str, outcome: MeasuredOutcome, says: str) -> None:
    said = standin.said(tool, mode)
    assert said.outcome is outcome, said
    assert says in said.why


def test_figures_and_versions(standin: Standin) -> None:
    said = standin.said("all_reduce")
    (busbw,) = said.figures
    assert (busbw.name, busbw.unit, busbw.bytes, busbw.device) == ("busbw", "GB/s", 16 << 30, "") and 470 < busbw.value < 480
    assert said.ranks == 8 and said.versions == {"nccl-tests": "2.17.9", "nccl": "2.29.3", "cuda": "13.1"}
    said = standin.said("copy")
    assert len(said.figures) == 8 + 8 + 56 and said.ranks == 8
    assert said.versions == {"nvbandwidth": "0.8", "driver": "580.95.05", "cuda": "12.8"}
    assert {f.device for f in said.figures if f.name == "device_to_device"} >= {"gpu0-gpu7", "gpu7-gpu0"}
    said = standin.said("gemm")
    assert [f.device for f in said.figures] == [f"gpu{n}" for n in range(8)] and said.figures[0].value == 431.0
    assert standin.said("dcgm").versions == {"dcgm": "4.4.1", "driver": "580.95.05"}


def test_slow_shows_in_the_figure(standin: Standin) -> None:
    fast, slow = (standin.said("all_reduce", mode).figures[0].value for mode in ("ok", "slow 30"))
    assert slow == pytest.approx(0.7 * fast, rel=1e-3)


def test_both_sides_of_the_largest_size_count_alike() -> None:
    rows = "8 2 float sum -1 1.0 1.0 100.0 0 1.0 1.0 100.0 0\n64 16 float sum -1 1.0 1.0 470.0 0 1.0 1.0 480.0 0\n"
    foot = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 287.5\n"
    said = collective.read("all_reduce", rows + foot, "")
    assert said.figures[0].value == 475.0  # and never the average over all sizes


def test_another_rank_that_fails_is_seen_on_standard_error() -> None:
    rows = "64 16 float sum -1 1.0 1.0 470.0 0 1.0 1.0 480.0 0\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 475\n"
    assert collective.read("all_reduce", rows, "").outcome is P
    said = collective.read("all_reduce", rows, "n1: Test NCCL failure common.cu:1108 'unhandled cuda error'\n")
    assert said.outcome is F and "unhandled cuda error" in said.why


def test_data_that_was_not_checked_is_no_pass() -> None:
    rows = "64 16 float sum -1 1.0 1.0 470.0 N/A 1.0 1.0 480.0 N/A\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 475\n"
    said = collective.read("all_reduce", rows, "")
    assert said.outcome is W and "never checked" in said.why


def test_another_collective_is_not_this_one() -> None:
    text = "# Collective test starting: all_gather_perf\n64 16 float sum -1 1.0 1.0 470.0 0 1.0 1.0 480.0 0\n"
    said = collective.read("all_reduce", text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 475\n", "")
    assert said.outcome is U and "not of all_reduce" in said.why


@pytest.mark.skipif(not DATA.is_dir(), reason=f"sample data not found at {DATA}")
def test_no_sample_is_a_pass_that_is_not_complete_and_right() -> None:
    """Real outputs: what `fairlead nccl parse` calls bad or incomplete is never a pass here."""
    from fairlead.errors import DataError
    from fairlead.nccl.results import parse

    seen = set()
    for path in sorted(DATA.glob("*.txt")):
        text = path.read_text(errors="replace")
        try:
            runs = parse(text)
        except DataError:
            runs = ()
        said = collective.read(runs[-1].collective or "all_reduce" if runs else "all_reduce", text, "")
        assert said.outcome is not P or all(run.passed and run.checked for run in runs), path.name
        assert said.outcome is F or not any(run.wrong_total for run in runs), path.name
        seen.add(said.outcome)
    assert seen >= {P, U, F}


# --- formats that the stand-ins do not write ---


def test_nvbandwidth_json() -> None:
    def case(name: str, **more: object) -> dict[str, object]:
        return {"name": name, "status": "Passed", "bandwidth_matrix": [["55.1", "54.9"]], "sum": 110.0, **more}

    cases = [case(name) for name in copy.NAMES]
    cases[2] = {"name": "device_to_device_memcpy_read_ce", "status": "Waived"}
    data = {"nvbandwidth": {"CUDA Runtime Version": 12040, "Driver Version": "550.54.15", "version": "v0.6", "testcases": cases}}
    said = copy.read(json.dumps(data), "")
    assert said.outcome is P and len(said.figures) == 4 and said.versions["cuda"] == "12.4"
    assert said.notes == ("device_to_device_memcpy_read_ce: waived by nvbandwidth",)
    cases[0] = case("host_to_device_memcpy_ce", status="Error", error="CUDA_ERROR_LAUNCH_FAILED")
    assert copy.read(json.dumps(data), "").outcome is F
    cases[0] = case("host_to_device_memcpy_ce", bandwidth_matrix=[["fast"]])
    assert copy.read(json.dumps(data), "").outcome is U
    assert copy.read(json.dumps(data)[:-30], "").outcome is U
    del cases[0]
    assert copy.read(json.dumps(data), "").outcome is U


def test_dcgm_3_and_what_is_skipped() -> None:
    def report(*tests: Mapping[str, object], key: str = "DCGM GPU Diagnostic") -> str:
        return json.dumps({key: {"test_categories": [{"category": "Deployment", "tests": tests}], "version": "3.3.5"}})

    ok = {"name": "NVML Library", "results": [{"gpu_ids": "0,1", "status": "PASS"}]}
    skip = {"name": "Page Retirement", "results": [{"gpu_ids": "0,1", "status": "SKIP"}]}
    bad = {"name": "PCIe", "results": [{"gpu_ids": "1", "status": "FAIL", "warnings": "PCIe replays: 12"}]}
    odd = {"name": "PCIe", "results": [{"gpu_ids": "1", "status": ""}]}
    warn = {"name": "PCIe", "results": [{"gpu_ids": "1", "status": "WARN", "warnings": "slow"}]}
    said = dcgm.read("Successfully ran diagnostic.\n" + report(ok, skip), "")
    assert said.outcome is P and said.notes == ("skipped: Page Retirement",) and said.versions == {"dcgm": "3.3.5"}
    assert dcgm.read(report(ok, bad), "").why == "PCIe on GPU 1: PCIe replays: 12"
    assert dcgm.read(report(ok, odd), "").outcome is U
    assert dcgm.read(report(ok, warn), "").outcome is W
    assert dcgm.read(report(skip), "").outcome is U and dcgm.read(report(), "").outcome is U
    refused = json.dumps({"DCGM Diagnostic": {"runtime_error": "Unable to complete diagnostic: no GPU"}})
    assert dcgm.read(refused, "").outcome is U and "no GPU" in dcgm.read(refused, "").why


def test_ib_write_bw(standin: Standin, tmp_path: Path) -> None:
    """Its own shell command, on a tree of adapters: one down, two of different rates."""
    for name, state, rate in (("mlx5_0", "4: ACTIVE", 400), ("mlx5_1", "1: DOWN", 400), ("mlx5_2", "4: ACTIVE", 100)):
        port = tmp_path / name / "ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text(f"{rate} Gb/sec (4X NDR)\n")
    command = ib_write_bw.COMMAND.replace("/sys/class/infiniband", str(tmp_path))
    _, out, err = standin.run("ib_write_bw", command=command)
    said = ib_write_bw.read(out, err)
    assert said.outcome is P
    assert [(f.name, f.device, f.value) for f in said.figures] == [
        ("rate_400", "mlx5_0/1", 393.7),
        ("rate_100", "mlx5_2/1", 393.7),
    ]
    _, out, err = standin.run("ib_write_bw", "exit 1", command=command)
    said = ib_write_bw.read(out, err)
    assert said.outcome is U and said.why.startswith("mlx5_0/1, mlx5_2/1: ")
    _, out, err = standin.run("ib_write_bw", command=ib_write_bw.COMMAND.replace("/sys/class/infiniband", str(tmp_path / "none")))
    assert (ib_write_bw.read(out, err).outcome, ib_write_bw.read(out, err).why) == (MeasuredOutcome.ABSENT, "no RDMA adapter")
    (tmp_path / "mlx5_0/ports/1/state").write_text("1: DOWN\n")
    (tmp_path / "mlx5_2/ports/1/state").write_text("2: INIT\n")
    _, out, err = standin.run("ib_write_bw", command=command)
    assert ib_write_bw.read(out, err).outcome is U and "active port" in ib_write_bw.read(out, err).why


def test_ib_write_bw_in_other_units_is_no_figure() -> None:
    text = "# device mlx5_0 port 1 rate 400 Gb/sec (4X NDR)\n"
    text += " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
    said = ib_write_bw.read(
        text + " 8388608    20000            24056.74            24056.72\t\t   0.003007\n# devices 1 of 1\n", ""
    )
    assert said.outcome is U and "report_gbits" in said.why


READERS: dict[str, Callable[[str, str], ToolReading]] = {name: tool.read for name, tool in tools.load().items()}


@pytest.mark.parametrize("name", READERS)
@given(out=st.text(max_size=400), err=st.text(max_size=100))
@example(out="SUM ", err="")
def test_no_text_is_a_pass(name: str, out: str, err: str) -> None:
    said = READERS[name](out, err)
    assert said.outcome in (U, F) and said.why and "\n" not in said.why
    assert tools.load()[name].so_far(out)


@pytest.mark.parametrize("name", READERS)
def test_a_flood_is_read_in_time(standin: Standin, name: str) -> None:
    """A tool that went mad: megabytes that look right but for their ends."""
    _, out, _ = standin.run(name if name != "ib_write_bw" else "copy")
    began = time.process_time()
    for text in (out[:-20] * 200, out.replace("\n", " ") * 50, "0 1 " * 200_000, "\r50.0%  proc'd: 1 " * 20_000, "{[" * 100_000):
        assert READERS[name](text, text[:100_000]).outcome in (P, U, F)
    assert time.process_time() - began < 20


@pytest.mark.parametrize("name", ["all_reduce", "gemm", "copy", "dcgm"])
def test_cut_anywhere_is_never_a_pass(standin: Standin, name: str) -> None:
    _, out, _ = standin.run(name)
    read = READERS[name]
    assert read(out, "").outcome is P
    last = len(out.rstrip())
    if name == "all_reduce":  # behind the average nothing counts any more
        last = out.index("# Avg bus bandwidth") + len("# Avg bus")
    elif name == "copy":
        last = out.rindex("SUM ") + 4
    for end in range(0, last, max(1, last // 150)):
        said = read(out[:end], "")
        assert said.outcome is not P, out[:end][-200:]


@given(st.integers(0, 10**6), st.text(max_size=3))
def test_a_changed_byte_makes_no_better_figure_of_a_gemm(at: int, new: str) -> None:
    text = "\r100.0%  proc'd: 90 (400 Gflop/s)  - 90 (400 Gflop/s)   errors: 0  - 0   temps: 61 C - 61 C \n"
    text += "Tested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: OK\n"
    assert gemm.read(text, "").outcome is P
    at %= len(text)
    said = gemm.read(text[:at] + new + text[at + 1 :], "")
    assert said.outcome is not P or len(said.figures) == len({f.device for f in said.figures}) >= 1
