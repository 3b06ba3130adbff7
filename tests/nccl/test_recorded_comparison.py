"""`fairlead nccl compare`: recorded outputs beside themselves, beside a slow twin, and outputs that cannot be compared."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.cli import main
from fairlead.errors import DataError
from fairlead.nccl.recorded_comparison import compare
from fairlead.nccl.results import NcclTestRun, ResultRow, parse

DATA = Path(__file__).resolve().parents[2].parent / "shared/data/nccltests"
SIZES = tuple((8 << 10) * 4**i for i in range(8))
HEAD = "# nccl-tests version 2.17.9 nccl-headers=22903 nccl-library=22903\n# Collective test starting: all_reduce_perf\n"
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 9.84\n"


def text(slower: float = 1.0, at: tuple[int, ...] = SIZES, *, noise: float = 0.0, seed: int = 0, wrong: int = 0) -> str:
    """One launch of two ranks, slower by a factor at some sizes."""
    chance, rows = random.Random(seed), ""
    for size in SIZES:
        time = (10 + size / 4e5) * (slower if size in at else 1.0) * (1 + chance.gauss(0, noise))
        side = f"  {time:9.2f}  {size / time / 1000:6.2f}  {size / time / 1000:6.2f}  {wrong:6d}"
        rows += f"{size:12d}  {size // 4:12d}     float     sum      -1{side}{side}\n"
    ranks = "".join(
        f"#  Rank {i:2d} Group  0 Pid {490 + i:6d} on gpu1 device {i:2d} [0000:0f:00] NVIDIA H100\n" for i in range(2)
    )
    return HEAD + ranks + rows + FOOT.replace("0 OK", f"{wrong} FAILED" if wrong else "0 OK")


def recorded() -> list[Path]:
    return sorted(DATA.glob("*.txt")) if DATA.is_dir() else []


def slower(run: NcclTestRun, factor: float) -> NcclTestRun:
    return replace(run, rows=tuple(replace(row, time_us=row.time_us * factor) for row in run.rows))


@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data/nccltests is not here")
def test_recorded_outputs_beside_themselves_and_a_slow_twin() -> None:
    compared = 0
    for path in recorded():
        try:
            runs = parse(path.read_text())
        except DataError:
            continue  # another program printed it
        if not all(run.rows for run in runs):
            continue
        same = compare(runs, runs, 0.05)
        assert not same.differing and same.slower == "" and same.gain == 0, path.name
        for factor in (1.5, 1.12):  # of the twin, which takes longer
            twin = tuple(slower(run, factor) for run in runs)
            found = compare(runs, twin, 0.05)
            assert len(found.differing) == len(found.sizes) and found.slower == "B", path.name
            assert found.gain == pytest.approx(1 / factor - 1), path.name
            assert compare(twin, runs, 0.05).slower == "A", path.name
        compared += 1
    assert compared >= 12


def test_a_slow_run_beside_its_healthy_twin_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "well.txt").write_text(text())
    (tmp_path / "slow.txt").write_text(text(1.5, SIZES[4:]))
    assert main(["nccl", "compare", str(tmp_path / "well.txt"), str(tmp_path / "slow.txt")]) == 1
    out = capsys.readouterr().out
    assert f"B ({tmp_path}/slow.txt) is the slow one: 4 of 8 sizes differ, there by 33% (33% to 33%)." in out
    assert out.count("differs") == 4 and "noise between launches is not known" in out
    assert main(["nccl", "compare", str(tmp_path / "well.txt"), str(tmp_path / "slow.txt"), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["slower"] == "B" and [s["bytes"] for s in data["sizes"] if s["differs"]] == list(SIZES[4:]) and not data["tested"]
    assert main(["nccl", "compare", str(tmp_path / "well.txt"), str(tmp_path / "well.txt")]) == 0
    assert "No size differs." in capsys.readouterr().out
    assert main(["nccl", "compare", str(tmp_path / "well.txt"), str(tmp_path / "slow.txt"), "--floor", "50"]) == 0


def test_several_launches_are_tested() -> None:
    """With six launches on each side the interval is over launches, and a disturbed launch is no difference."""
    a = parse("".join(text(noise=0.004, seed=i) for i in range(6)))
    b = parse("".join(text(1.10, SIZES[:1], noise=0.004, seed=10 + i) for i in range(6)))
    found = compare(a, b, 0.02)
    assert found.tested and [each.bytes for each in found.differing] == [SIZES[0]] and found.slower == "B"
    (only,) = found.differing
    assert only.low is not None and only.high is not None and only.low <= 1 / 1.10 - 1 <= only.high
    disturbed = (*a[:5], slower(a[5], 1.4))
    assert compare(a, disturbed, 0.02).differing == ()


BAD = {
    "cut": text().replace(FOOT, ""),
    "wrong": text(wrong=3),
    "failed": HEAD + "gpu1: Test NCCL failure common.cu:1108 'unhandled cuda error'\n" + FOOT,
}


@pytest.mark.parametrize(
    ("kind", "said"), [("cut", "its footer is missing"), ("wrong", "48 wrong values"), ("failed", "Test NCCL failure")]
)
def test_outputs_that_show_nothing(kind: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "well").write_text(text())
    (tmp_path / kind).write_text(BAD[kind])
    assert main(["nccl", "compare", str(tmp_path / "well"), str(tmp_path / kind)]) == 2
    out = capsys.readouterr().out
    assert out.startswith(f"B ({tmp_path / kind}) cannot be compared: ") and said in out and out.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.replace("all_reduce", "all_gather"), "different collectives: all_gather, all_reduce"),
        (lambda t: t.replace("#  Rank  1 ", "#  Rank  7 "), "of 2 and 8 ranks"),
        (lambda t: t.replace(f"{SIZES[0]:12d}  ", f"{SIZES[0] + 4:12d}  "), ""),
    ],
)
def test_outputs_of_different_tests(change: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text(text())
    (tmp_path / "b").write_text(change(text()))  # type: ignore[operator]
    code = main(["nccl", "compare", str(tmp_path / "a"), str(tmp_path / "b")])
    said_all = capsys.readouterr()
    if said:
        assert code == 65 and said in said_all.err and "  next: record the same" in said_all.err
    else:
        assert code == 0 and "only A has: 8 KiB" in said_all.out and "only B has: 8196 bytes" in said_all.out


def test_no_size_in_common_and_no_time() -> None:
    row = ResultRow(bytes=8, time_us=1.0, algbw_gbps=0, busbw_gbps=0, wrong=0, inplace=False)
    with pytest.raises(DataError, match="no size in common"):
        compare([NcclTestRun(rows=(row,))], [NcclTestRun(rows=(replace(row, bytes=16),))], 0.05)
    with pytest.raises(DataError, match="cannot be compared"):
        compare([NcclTestRun(rows=(replace(row, time_us=0.0),))], [NcclTestRun(rows=(row,))], 0.05)
