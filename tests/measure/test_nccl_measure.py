"""`fairlead nccl measure` in the present shell, with stand-ins whose truth is known (nccl_standin.py).

test_nccl_in_jobs.py does the same in jobs of real Slurm.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.cli import main
from fairlead.measure import nccl_launch
from fairlead.measure.nccl_plan import NcclPhase, block_steps
from fairlead.nccl.measured_result import MeasuredResult, ResultJudgement, decode
from tests.lab.pause import pause
from tests.lab.trees import MACHINES

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.heavy  # each test launches tens of processes
TEST = "all_reduce_perf -b 8K -e 512M -f 16"
QUICK = ("--a", "true; $TEST", "--test", TEST, "--blocks", "3")
SETTING = "NCCL_ALGO=Tree"
VARIABLE = ("--skip-versions", "--set", SETTING)
GAIN = {SETTING: {"131072": 0.15}}


class Bench:
    """A folder with the stand-ins in ``bin``, and their truth."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        shutil.copy(ROOT / "tests/measure/nccl_standin.py", folder)
        for name in ("all_reduce_perf", "gemm_loop"):
            (folder / "bin" / name).symlink_to("../nccl_standin.py")
        self.truth()

    def truth(self, **what: Any) -> None:
        (self.folder / "truth.json").write_text(json.dumps({"noise": 0.003, "seed": 1, **what}))

    def measure(self, *words: str) -> tuple[int, str, str]:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            code = main(["nccl", "measure", "--folder", str(self.folder / "run"), *words])
        return code, out.getvalue(), err.getvalue()

    @property
    def result(self) -> MeasuredResult:
        return decode((self.folder / "run/result.json").read_bytes(), "result.json")

    @property
    def launched(self) -> int:
        path = self.folder / "launches"
        return path.stat().st_size if path.exists() else 0


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    for name in [n for n in os.environ if n.startswith(("NCCL_", "SLURM_"))]:
        monkeypatch.delenv(name)
    return Bench(tmp_path)


def test_a_gain_is_found_beside_products_and_with_right_sums(
    bench: Bench, simulated_nccl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.truth(gains=GAIN, gemm={SETTING: 0.0})
    monkeypatch.setenv("LD_LIBRARY_PATH", str(simulated_nccl))
    monkeypatch.setenv("FAIRLEAD_SIM_NCCL", str(bench.folder))
    code, out, err = bench.measure(*QUICK, *VARIABLE, "--beside", "gemm_loop")
    assert code == 0, out + err
    (found,) = bench.result.candidates
    assert found.judgement == "gain" and found.why.startswith("faster: up to 1 MiB by 1"), found.why
    effects = {d.name: d.effect.value for d in found.alone}
    assert effects == {
        "up to 64 KiB": "no difference seen",
        "up to 1 MiB": "gain",
        "up to 32 MiB": "no difference seen",
        "above 32 MiB": "no difference seen",
    }
    assert [d.name for d in found.beside][-1] == "matrix products" and found.by_size[131072] == pytest.approx(0.15, abs=0.02)
    assert found.sums is not None and found.sums.right and found.sums.ranks == 1
    assert f"A gain under {bench.result.floor:.1%} cannot be seen here" in out and "[39/39] sums: NCCL_ALGO=Tree" in err
    assert bench.launched == 2 + 12 + 12 + 12 + 12  # the GEMM loop counts its starts too
    assert main(["nccl", "show", str(bench.folder / "run/result.json")]) == 0


def test_no_gain_is_a_complete_result(bench: Bench) -> None:
    code, out, _ = bench.measure(*QUICK, *VARIABLE)
    assert code == 0 and "no gain seen: a gain under" in out and bench.launched == 2 + 12 + 12
    (found,) = bench.result.candidates
    assert found.judgement == "no gain seen" and found.sums is None
    assert bench.result.key["nccl"] == "2.29.3" and bench.result.key["cluster"] == "" and "No job can apply it" in out


def test_two_versions(bench: Bench) -> None:
    bench.truth(gains={"OURS=new": {"536870912": -0.10}}, version_of={"OURS=new": "2.30.7+cuda13.1"})
    code, out, _ = bench.measure(*QUICK, "--b", "export OURS=new; $TEST")
    (found,) = bench.result.candidates
    assert code == 0 and found.judgement == "loss" and "slower: above 32 MiB by 10" in out
    assert bench.result.mode == "versions" and found.command == "export OURS=new; $TEST" and found.variables == {}


SRUN = """#!/bin/sh
# Stands in for srun on one node: drops the options, and runs the command.
while case $1 in -*) true ;; *) false ;; esac; do shift; done
exec "$@"
"""
JOB = {"SLURM_JOB_ID": "17", "SLURM_CLUSTER_NAME": "lab", "SLURM_JOB_NUM_NODES": "1", "SLURMD_NODENAME": "n1"}


def test_variables_are_measured_after_versions_of_the_same_key(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (bench.folder / "bin/srun").write_text(SRUN)
    (bench.folder / "bin/srun").chmod(0o755)
    for name, value in {**JOB, "PYTHONPATH": str(ROOT / "agent")}.items():
        monkeypatch.setenv(name, value)
    bench.truth(version_of={"OURS=new": "2.30.7+cuda13.1", "OURS=old": "2.28.3+cuda13.1"})
    root = ("--root", str(MACHINES / "hgx-h100"))
    code, out, err = bench.measure(*QUICK, "--b", "export OURS=new; $TEST", *root)
    assert code == 0 and "" not in bench.result.key.values(), f"{out} {err} {bench.result.key}"
    versions = bench.result
    (b,) = versions.candidates
    assert b.key == versions.key | {"nccl": "2.30.7"}
    undecided = msgspec.structs.replace(b, judgement=ResultJudgement.NO_DECISION)
    refused: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("old", {}, "does not hold here: the version of NCCL was 2.29.3 and is 2.28.3"),
        (
            "",
            {"key": versions.key | {"cluster": "x"}, "candidates": (msgspec.structs.replace(b, key={}),)},
            "cluster was x and is lab",
        ),
        ("", {"measured": time.time() - 91 * 86400}, "91 days old, and a result counts for 90 days"),
        ("", {"mode": "variables"}, "not a comparison of versions: it compares variables"),
        ("", {"candidates": (undecided,)}, "it has no decision"),
    )
    file = bench.folder / "versions.json"
    for ours, what, said in refused:
        file.write_bytes(msgspec.json.encode(msgspec.structs.replace(versions, **what)))
        shutil.rmtree(bench.folder / "run", ignore_errors=True)
        had = bench.launched
        arm = ("--a", f"export OURS={ours}; $TEST", *QUICK[2:], "--set", SETTING, "--versions", str(file))
        code, out, err = bench.measure(*arm, *root)
        assert code in (64, 65) and said in err and "  next: " in err and not out, err
        assert bench.launched - had <= 1, "at most the one launch in which NCCL says its version"
    file.write_bytes(msgspec.json.encode(versions))
    for ours in ("", "new"):  # A is the version that was A, or the one that was B
        shutil.rmtree(bench.folder / "run", ignore_errors=True)
        arm = ("--a", f"export OURS={ours}; $TEST", *QUICK[2:], "--set", SETTING, "--versions", str(file))
        code, out, err = bench.measure(*arm, *root)
        assert code == 0 and "no gain seen" in out and "were not compared" not in err, err


def test_skipped_versions_are_said_in_one_line(bench: Bench) -> None:
    said = "note: versions of NCCL were not compared before these variables (--skip-versions)"
    assert said in bench.measure(*QUICK, *VARIABLE, "--dry-run")[1].splitlines()
    assert said in bench.measure(*QUICK, *VARIABLE)[2].splitlines()


def test_a_gain_alone_and_a_loss_together_is_a_loss(bench: Bench) -> None:
    bench.truth(gains=GAIN, gemm={SETTING: -0.08})
    code, out, _ = bench.measure(*QUICK, *VARIABLE, "--beside", "gemm_loop")
    (found,) = bench.result.candidates
    assert code == 0 and found.judgement == "loss", out
    assert "faster alone" in found.why and "slower beside a GEMM loop: matrix products by" in found.why


def test_a_gain_without_products_and_sums_is_not_for_use(bench: Bench) -> None:
    bench.truth(gains=GAIN)
    _, out, _ = bench.measure("--a", TEST, "--blocks", "3", *VARIABLE)
    assert "not for use yet, because it was not run beside a GEMM loop (--beside) and its float32 sums were not checked" in out


FAULTS = {
    "wrong": ("NCCL_ALGO=Tree", "4 wrong values"),
    "crash": ("NCCL_ALGO=Ring", "Segmentation fault"),
    "hang": ("NCCL_NTHREADS=64", "ended after 6 s: 2 ranks listed, 0 sizes done"),
    "cut": ("NCCL_NTHREADS=128", "its footer is missing"),
    "unchecked": ("NCCL_NTHREADS=256", "the data was never checked"),
}


def test_candidates_that_fail(bench: Bench) -> None:
    """Each is launched once. The others are measured to the end."""
    bench.truth(**{fault: setting for fault, (setting, _) in FAULTS.items()})
    words = ["--skip-versions", *(word for setting, _ in FAULTS.values() for word in ("--set", setting))]
    code, out, err = bench.measure(*QUICK[:4], "--blocks", "4", *words, "--set", "NCCL_BUFFSIZE=8388608", "--timeout", "6")
    assert code == 2, out + err
    *failed, well = bench.result.candidates
    for (setting, said), found in zip(FAULTS.values(), failed, strict=True):
        assert (found.name, found.judgement) == (setting, "failed") and said in found.why, found.why
    assert well.judgement == "no gain seen" and len(well.alone) == 4, out
    assert bench.launched == 7 + 16 + 16, "a candidate that failed is not launched again"


def test_a_run_goes_on_after_a_has_failed(bench: Bench) -> None:
    bench.truth(cut="")
    code, _, err = bench.measure(*QUICK, *VARIABLE)
    assert code == 69 and "A cannot be measured: incomplete, its footer is missing" in err and "--resume" in err
    code, _, err = bench.measure(*QUICK, *VARIABLE)
    assert code == 64 and "has a run already" in err and "--resume goes on with it" in err
    bench.truth()
    assert bench.measure("--resume")[0] == 0


def test_a_killed_run_goes_on(bench: Bench) -> None:
    """SIGKILL in the midst of a block: the launches of finished blocks stay, and that block is launched again."""
    bench.truth(gains=GAIN)
    command = [sys.executable, "-m", "fairlead", "nccl", "measure", "--folder", "run", *QUICK, *VARIABLE]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "agent")}
    with subprocess.Popen(command, cwd=bench.folder, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        deadline = time.monotonic() + 120
        while not (bench.folder / "run/same-01-1.json").exists():
            assert time.monotonic() < deadline and run.poll() is None
            pause(time.monotonic())
        code, _, err = bench.measure("--resume")
        assert code == 75 and "another process works on this run" in err
        run.send_signal(signal.SIGKILL)
    kept = {p.name: p.read_bytes() for p in (bench.folder / "run").glob("same-00-*.json")}
    groups = [str(path).removesuffix(".group") for path in (bench.folder / "run").glob("*.group")]
    deadline = time.monotonic() + 60
    while any(nccl_launch.still_running(group) for group in groups):
        assert time.monotonic() < deadline
        pause(time.monotonic())
    before = bench.launched
    code, _, err = bench.measure("--resume")
    assert code == 0, err
    assert len(kept) == 4 and all((bench.folder / "run" / name).read_bytes() == data for name, data in kept.items())
    assert bench.launched - before == 4 + 4 + 12 and bench.result.candidates[0].judgement == "gain"


def test_what_a_killed_run_has_left_is_named(bench: Bench) -> None:
    bench.truth(cut="")
    bench.measure(*QUICK, *VARIABLE)
    base = bench.folder / "run/same-00-0"
    with subprocess.Popen(["sleep", "60"], start_new_session=True, env={nccl_launch.OWN: str(base)}) as left:
        base.with_suffix(".group").write_text(f"{left.pid}\n")
        code, _, err = bench.measure("--resume")
        assert code == 75 and f"still runs (process group {left.pid})" in err and f"kill -- -{left.pid}" in err
        left.kill()
    bench.truth()
    assert bench.measure("--resume")[0] == 0


def test_another_allocation_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.truth(cut="")
    bench.measure(*QUICK, *VARIABLE)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    code, _, err = bench.measure("--resume")
    assert code == 64 and "begun in no job, and this is job 17" in err and "another --folder" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "needs --a COMMAND"),
        (("--a", "x"), "either --b (two versions) or --set"),
        (("--a", "x", "--b", "y", "--set", SETTING), "either --b (two versions) or --set"),
        (("--a", "x", "--set", "NCCL_PROTO=LL128"), "a forced LL128 has corrupted data"),
        (("--a", "x", "--set", "NCCL_P2P_DISABLE=1"), "it hides hardware"),
        (("--a", "x", "--set", "NCCL_TUNER_PLUGIN=x.so"), "decision 50"),
        (("--a", "x", "--set", "LD_PRELOAD=x.so"), "does not measure this variable"),
        (("--a", "x", "--set", "NCCL_BUFFSIZE=4M"), "takes 4M for 4"),
        (("--a", "x", "--set", "NCCL_ALGO=a$(id)"), "not one plain word"),
        (("--a", "x", "--set", "NCCL_ALGO"), "not one or more NAME=VALUE"),
        (("--a", "x", "--set", SETTING, "--set", SETTING), "two candidates are the same"),
        (("--a", "x", "--set", SETTING, "--blocks", "2"), "too few launches"),
        (("--a", "x", "--set", SETTING, "--timeout", "-1"), "not a number of seconds"),
        (("--a", "x", "--set", SETTING), "variables are measured after versions"),
        (("--a", "x", "--set", SETTING, "--versions", "none.json"), "none.json: No such file or directory"),
        (("--a", "x", "--set", SETTING, "--versions", "none.json", "--skip-versions"), "are for --set, one of them"),
        (("--a", "x", "--b", "y", "--skip-versions"), "are for --set, one of them"),
        (("--resume", "--skip-versions"), "leave out --a"),
        (("--resume",), "needs the folder of a run"),
        (("--resume", "--a", "x"), "leave out --a"),
    ],
)
def test_command_lines_that_are_refused(bench: Bench, words: tuple[str, ...], said: str) -> None:
    code, out, err = bench.measure(*words)
    assert (code in (64, 65) and said in err and not out and "  next: " in err) or said in err, err
    assert not (bench.folder / "run").exists()


def test_the_users_variable_wins(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    code, _, err = bench.measure(*QUICK, *VARIABLE)
    assert code == 64 and "NCCL_ALGO is set in your environment" in err and "unset NCCL_ALGO" in err


def test_the_plan_is_shown_and_nothing_is_launched(bench: Bench) -> None:
    code, out, _ = bench.measure(*QUICK, *VARIABLE, "--set", "NCCL_BUFFSIZE=8388608", "--blocks", "4", "--dry-run")
    assert code == 0 and "A B C C B A, then C B A A B C" in out and "43 launches" in out and "at most 430 min" in out
    assert not (bench.folder / "run").exists() and bench.launched == 0
    code, out, _ = bench.measure(*QUICK, *VARIABLE, "--dry-run", "--json")
    assert json.loads(out)["launches"] == 26


def test_every_second_block_is_turned_around() -> None:
    orders = ["".join("AB"[s.side] for s in block_steps(NcclPhase.SAME, block, [0, 0])) for block in range(4)]
    assert orders == ["ABBA", "BAAB"] * 2
    names = [s.name for block in range(3) for s in block_steps(NcclPhase.ALONE, block, [0, 1, 2])]
    assert len(set(names)) == 18


def test_rates_of_gemm_programs() -> None:
    line = "10.0%  proc'd: 30 (431000 Gflop/s) - 30 (431100 Gflop/s)  errors: 0  temps: 61 C"
    assert nccl_launch.rates(line) == [431000e9, 431100e9]
    assert nccl_launch.rates("rate 1.5 TFLOPS, 2 GFLOP/s, 0 Gflop/s, x Gflop/s") == [1.5e12, 2e9]


@pytest.mark.parametrize(("fault", "right"), [("", True), ("wrong", False), ("nan", False)])
def test_known_sums_over_three_ranks(bench: Bench, simulated_nccl: Path, fault: str, right: bool) -> None:
    from fairlead.measure.nccl_run import read_sums

    env = {**os.environ, "LD_LIBRARY_PATH": str(simulated_nccl), "FAIRLEAD_SIM_NCCL": str(bench.folder), "WORLD_SIZE": "3"}
    env |= {"FAIRLEAD_SIM_NCCL_FAULT": fault} if fault else {}
    program = ROOT / "agent/fairlead/measure/float_sums.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-I", program, bench.folder / "meet"],
            env={**env, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    out = "".join(rank.communicate(timeout=120)[0] for rank in ranks)
    read = read_sums(out, "", 0, 1.0)
    assert read.sums is not None and read.sums.ranks == 3 and read.sums.right is right, out
    lost = "".join(out.splitlines(keepends=True)[:2])
    assert read_sums(lost, "", 0, 1.0).sums is None and read_sums(lost, "", 0, 1.0).why
