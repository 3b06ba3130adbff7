"""Whatever stands in a job script or in the output of a test, reading it takes time in proportion to its size.

The same text is read at two sizes: a pattern that goes back over a line again and again takes the square of the size.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fairlead.cli.status import read_status
from fairlead.errors import DataError
from fairlead.host.host_facts_reader import read_recorded
from fairlead.jobenv.batch_script import read
from fairlead.jobenv.script_lint import lint
from fairlead.model.facts import Missing
from fairlead.nccl.results import parse
from fairlead.topology.fabric import lldp

SIZE = 250_000
SMALL_SIZE = 100_000  # a pattern that takes the square of the size takes seconds here, too
STARTS = ("", "1 1 a 1 ", "1 (x) ", 'NCCL_A="', "srun ")
UNITS = (
    " ", "0", "\t", "#", "\\", '"', "'", '\\"', "(", ") ", "a_", "1 ", "1 ( ", "NCCL_", "NCCL_A=,", "NCCL_A ", "env[ ", "setenv ",
    "NCCL WARN ", "ibv_", "a_perf ", "Test ", "numactl ", "numactl -N 0 ", "num_workers", "num_workers = ", "a.gpu",
    "init_process_group(", "init_process_group( () ", "fairlead: allow ", "-c ", "-c=1x", "1: ", "[1,1]<stdout>: ", "x,a", "\\\n",
)  # fmt: skip


def seconds_to_read(unit: str, size: int) -> float:
    began = time.process_time()
    for start in STARTS:
        line = start + unit * (size // len(unit) // len(STARTS)) + "\0"
        lines = f"{start}{unit * (size // len(unit) // 80)}\0\n" * 40
        for text in (line, lines):
            lint(read(text))
            try:
                parse(text)
            except DataError:
                pass
    return time.process_time() - began


@pytest.mark.heavy
@pytest.mark.parametrize("size", [SMALL_SIZE, pytest.param(SIZE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("unit", UNITS)
def test_anything_is_read_in_proportion_to_its_size(unit: str, size: int) -> None:
    """The least of several CPU times counts, and both sizes are read in turn, because other programs run here too."""
    small = large = 60.0
    for _ in range(5):
        small = min(small, seconds_to_read(unit, size // 4))
        large = min(large, seconds_to_read(unit, size))
        if large < 10 * small + 0.5:
            return
    pytest.fail(f"{large:.2f} s after {small:.2f} s: 16 times the time for 4 times the size is not in proportion")


def test_a_number_of_any_length_is_no_crash() -> None:
    digits = "9" * 5000
    for line in (f"# Rank {digits} Group 0 Pid 1 on x", f"{digits} 1 float sum 1 1 1 1", f"# Out of bounds values : {digits} OK"):
        parse(f"# nThread 1\n{line}\n")
    script = f"#SBATCH -c 8\n#SBATCH --cpus-per-task={digits}\nexport NCCL_BUFFSIZE={digits}M\npython x --num_workers {digits}\n"
    assert read(script).shape.cpus_per_task == 8 and lint(read(script)) is not None


def test_what_a_cut_row_and_a_failure_look_like_is_as_before() -> None:
    (run,) = parse(
        "# nccl-tests version 2.17\n1048576 262144 float sum -1 10.0 1.0 1.0\n8 2 float su\n1 (x) 2.5\n"
        "n1:1:1 [0] nccl warn socket progress: Connection Timeout\nibv_poll_cq failed\nn1: NCCL WARN hello\n"
    )
    assert len(run.errors) == 4 and not any("hello" in e for e in run.errors), run.errors


def test_quotes_and_comments_are_as_before() -> None:
    found = read('export NCCL_A="a # \\" b" # NCCL_B=1\n  - NCCL_C: "x"\n-NCCL_D: y\necho it\'s # NCCL_E=1\n').assignments
    assert [(a.name, a.value) for a in found] == [("NCCL_A", 'a # \\" b'), ("NCCL_C", "x"), ("NCCL_D", "y")]


NO_JSON = (b'{"config":' + b'{"a":' * 50_000, b'{"args":["\xff"]}', b'{"config":' + b"[" * 100_000)


@pytest.mark.parametrize("data", NO_JSON, ids=range(3))
def test_json_that_is_none_is_an_error_of_the_file_wherever_it_is_read(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        parse(data.decode("utf-8", "surrogateescape"))
    if b"\xff" not in data:
        with pytest.raises(DataError):
            lldp.parse({"switch": data.decode()})
    (path := tmp_path / "host.json").write_bytes(data)
    assert isinstance(read_recorded(str(path)), Missing)
    (tmp_path / "status.json").write_bytes(data)
    assert read_status(str(tmp_path)) == {}
