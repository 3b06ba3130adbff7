"""fairlead lint: each harmful setting where it stands, nothing on scripts that are well."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli import main
from fairlead.jobenv.batch_script import read
from fairlead.jobenv.lint_data import DEAD, DEBUG_ONLY, PLATFORM, SIZES, SWITCHES
from fairlead.jobenv.lint_finding import number
from fairlead.jobenv.lint_names import INVENTED, NUMBERS, TEXTS, TORCH
from fairlead.jobenv.never import NEVER
from fairlead.jobenv.script_lint import RULES, LintLevel, LintSite, lint
from fairlead.nccl.nccl_conf import RANK_CONSISTENT
from tests.jobenv.test_lint_job import TWINS


def rules(text: str, *, conf: bool = False, **site: object) -> list[tuple[str, str]]:
    return [(f.rule, f.level.value) for f in lint(read(text, conf=conf), LintSite(**site))]  # type: ignore[arg-type]


BAD = [
    ("export NCCL_BUFFSIZE=4M", ("size-suffix", "error")),
    ("NCCL_P2P_NET_CHUNKSIZE=512KiB python x", ("size-suffix", "error")),
    ("export NCCL_IB_DISABLE=yes", ("number", "warn")),
    ("export NCCL_IB_GID_INDEX=mlx5_0", ("number", "warn")),
    ("export NCCL_IB_TIMEOUT=22s", ("number", "warn")),
    ("export NCCL_SOCKET_IFACE=ib0", ("name", "warn")),
    ("export NCCL_MIN_CHANNELS=8", ("name", "warn")),
    ("export NCCL_DEBUG_SUBSYSTEM=ALL", ("name", "warn")),
    ("export NCCL_TIMEOUT=1800", ("name", "warn")),
    ("export NCCL_IB_FROBNICATE=1", ("name", "info")),
    ("export NCCL_BUFFSIZE=4194304", ("buffsize", "warn")),
    ("export NCCL_BUFFSIZE=5000000", ("buffsize", "error")),
    ("export NCCL_ALGO=Ring", ("algo", "warn")),
    ('export NCCL_ALGO="$ALGO"', ("algo", "warn")),
    ("export NCCL_PROTO=Simple", ("proto", "warn")),
    ("export NCCL_PROTO=LL128,Simple", ("proto", "error")),
    ("export NCCL_CHUNK_SIZE=2097152", ("chunk-size", "error")),
    ("export NCCL_IB_CUDA_SUPPORT=1", ("dead", "warn")),
    ("export NCCL_IB_GDR_LEVEL=2", ("dead", "warn")),
    ("export NCCL_MIN_NCHANNELS=8", ("dead", "warn")),
    ("export NCCL_P2P_DISABLE=1", ("debug-only", "warn")),
    ("export NCCL_IB_DISABLE=1", ("debug-only", "warn")),
    ("export NCCL_NVLS_ENABLE=0", ("debug-only", "info")),
    ("export NCCL_IB_GID_INDEX=3", ("gid-index", "warn")),
    ("export NCCL_SOCKET_NTHREADS=8", ("tcp-only", "info")),
    ("export NCCL_NET=IB NCCL_NSOCKS_PERTHREAD=2", ("tcp-only", "warn")),
    ("export NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8", ("tcp-only", "error")),
    ("export NCCL_SOCKET_IFNAME=^docker0", ("socket-exclude", "warn")),
    ("export NCCL_SOCKET_IFNAME=lo", ("loopback", "warn")),
    ("#SBATCH --nodes=2\nexport NCCL_SOCKET_IFNAME==lo", ("loopback", "error")),
    ("#SBATCH -N 2 --gres=gpu:8\nexport NCCL_IB_HCA=mlx5_0", ("one-hca", "warn")),
    ("#SBATCH -N 2 --gpus-per-node=a100:4\nexport NCCL_IB_HCA==mlx5_0:1", ("one-hca", "info")),
    ("export NCCL_IB_HCA=mlx5_1", ("hca-prefix", "warn")),
    ("export NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_10", ("hca-prefix", "warn")),
    ("export NCCL_IB_HCA=^mlx5_2:1", ("hca-prefix", "warn")),
    ("export NCCL_IB_TIMEOUT=50", ("ib-bits", "warn")),
    ("export NCCL_IB_RETRY_CNT=10", ("ib-bits", "warn")),
    ("export NCCL_DEBUG=INFO", ("debug-level", "info")),
    ("export CUDA_LAUNCH_BLOCKING=1", ("debug-level", "warn")),
    ("srun numactl --cpunodebind=0 --membind=0 ./a.out", ("numactl", "error")),
    ("srun -n8 numactl -N 0 -m 0 python train.py", ("numactl", "error")),
    ("numactl --cpubind 0 --membind 0 torchrun --nproc_per_node=8 t.py", ("numactl", "error")),
    ("#SBATCH --cpus-per-task=12\nsrun python t.py --num_workers=16", ("workers", "warn")),
    ("#SBATCH -c 4\nsrun python t.py --num-workers 8", ("workers", "warn")),
    ("loader = DataLoader(d, num_workers=8 * num_gpus)", ("workers", "warn")),
    ("loader = DataLoader(d, num_workers=torch.cuda.device_count() * 8)", ("workers", "warn")),
    ("dist.init_process_group('nccl',\n    timeout=timedelta(minutes=5),\n    bucket_cap_mb=50)", ("bucket-cap", "error")),
]


@pytest.mark.parametrize(("text", "found"), BAD, ids=[t.replace("\n", " ")[:60] for t, _ in BAD])
def test_harmful_settings(text: str, found: tuple[str, str]) -> None:
    assert found in rules(text)
    (finding,) = [f for f in lint(read("true\n" + text)) if f.rule == found[0]][:1]
    assert finding.line >= 2 and finding.message and finding.suggestion and finding.source


@pytest.mark.parametrize(
    "text",
    [
        'export FOO=1 NCCL_ALGO="Ring"',
        "NCCL_ALGO=Ring srun ./a",
        "env NCCL_ALGO=Ring ./a",
        "setenv NCCL_ALGO Ring",
        "ENV NCCL_ALGO=Ring",
        "ENV NCCL_ALGO Ring",
        "mpirun -x NCCL_ALGO=Ring ./a",
        "srun --export=ALL,NCCL_ALGO=Ring,NCCL_DEBUG=WARN ./a",
        "#SBATCH --export=ALL,NCCL_ALGO=Ring",
        'os.environ["NCCL_ALGO"] = "Ring"',
        "os.environ.setdefault('NCCL_ALGO', 'Ring')",
        "NCCL_ALGO: Ring",
        "    - NCCL_ALGO=Ring",
        'mpirun -x "NCCL_ALGO=Ring" ./a',
    ],
)
def test_every_way_to_set(text: str) -> None:
    (finding,) = [f for f in lint(read(text)) if f.rule != "shebang"]
    assert finding.rule == "algo" and "NCCL_ALGO=Ring" in finding.message


@pytest.mark.parametrize(
    "text",
    [
        "# export NCCL_ALGO=Ring",
        "export A=b  # NCCL_ALGO=Ring is bad",
        "echo NCCL_ALGO=Ring",
        "unset NCCL_ALGO",
        'if [ "$NCCL_ALGO" = Ring ]; then exit 1; fi',
        "export NCCL_DEBUG=WARN NCCL_SOCKET_IFNAME=ib0",
        "export NCCL_SOCKET_IFNAME=^docker,lo",
        "export NCCL_IB_HCA==mlx5_1",
        "export NCCL_IB_HCA=mlx5",
        "export NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2,mlx5_3",
        "export NCCL_PROTO=^LL128",
        "export NCCL_P2P_DISABLE=0",
        "export NCCL_IB_TIMEOUT=0x16 NCCL_IB_SL=",
        "export NCCL_IB_TIMEOUT=$T NCCL_IB_RETRY_CNT=7",
        "export NCCL_SOCKET_IFNAME=lo0,eth0 NCCL_DEBUG_SUBSYS=INIT NCCL_DEBUG_FILE=/tmp/%h",
        "export NCCL_HOME=/opt/nccl NCCL_TEST=all NCCL_DIR=/opt NCCL_TESTS_PATH=/opt/nccl-tests",
        "export NCCL_ASYNC_ERROR_HANDLING=1 NCCL_BLOCKING_WAIT=1 NCCL_IBEXT_DISABLE=1",
        "#SBATCH --nodes=1\nexport NCCL_SOCKET_IFNAME=lo",
        "#SBATCH -N 2 --gres=gpu:8 -c 96\nexport NCCL_IB_HCA=mlx5",
        "#SBATCH -N 1 --gres=gpu:8 -c 96\nexport NCCL_IB_HCA=mlx5_0",
        "#SBATCH -N 2 --gres=gpu:1 -c 8\nexport NCCL_IB_HCA=mlx5_0",
        "export CUDA_LAUNCH_BLOCKING=0",
        "srun numactl --membind=$NODE --cpunodebind=$NODE ./a",
        "srun numactl --interleave=all ./a",
        "#SBATCH --ntasks-per-node=1\nsrun numactl -N 0 -m 0 ./serial",
        "numactl -N 0 -m 0 ./preprocess",
        "#SBATCH --cpus-per-task=12\nsrun python t.py --num_workers=11",
        "model = DDP(model, bucket_cap_mb=50)\ndist.init_process_group('nccl')",
        "srun -c $CPUS python t.py --num_workers 64",
    ],
)
def test_nothing_to_say(text: str) -> None:
    assert rules("#!/bin/bash\n" + text) == []


CLEAN = """\
#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --time=24:00:00
set -eu
module load cuda nccl
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=29500
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1
srun --cpu-bind=verbose,cores python -u train.py \\
    --batch-size 32 \\
    --num_workers 8   # of each rank
"""


def test_a_clean_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.sh"
    file.write_text(CLEAN)
    assert main(["lint", str(file)]) == 0 and capsys.readouterr().out == "clean\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("NCCL_DEBUG=WARN\n# a comment\n", []),
        ("NCCL_DEBUG=WARN # talk\n", [("conf-syntax", "error")]),
        ("export NCCL_DEBUG=WARN\n", [("conf-syntax", "error")]),
        (" NCCL_DEBUG=WARN\n", [("conf-syntax", "error")]),
        ("NCCL_DEBUG = WARN\n", [("conf-syntax", "error")]),
        ('NCCL_SOCKET_IFNAME="eth0"\n', [("conf-syntax", "error")]),
        ("NCCL_SOCKET_IFNAME=eth0 \n", [("conf-syntax", "error")]),
        ("NCCL_PROTO=Simple\n", [("proto", "warn"), ("per-node", "error")]),
        ("# NCCL_ALGO=Ring\n", []),
    ],
)
def test_nccl_conf(text: str, found: list[tuple[str, str]]) -> None:
    assert rules(text, conf=True) == found


def test_what_is_known_of_the_site() -> None:
    assert rules("export NCCL_IB_GID_INDEX=3", nccl=(2, 18)) == []
    assert rules("export NCCL_MIN_NCHANNELS=4", nccl=(2, 16)) == []
    assert rules("export NCCL_SOCKET_NTHREADS=4", fabric="ib") == [("tcp-only", "warn")]


def test_a_rule_can_be_allowed() -> None:
    assert rules("# fairlead: allow algo\nexport NCCL_ALGO=Ring\nexport NCCL_PROTO=LL") == [("proto", "warn")]
    assert rules("export NCCL_ALGO=Ring # fairlead: allow algo, proto") == []
    assert rules("# fairlead: allow algo\nexport A=b\nexport NCCL_ALGO=Ring") == [("algo", "warn")]


def test_every_rule_is_tried_above() -> None:
    tried = {rule for _, (rule, _) in BAD} | {rule for rule, *_ in TWINS} | {"conf-syntax", "per-node"}
    assert tried == set(RULES)


def test_the_page_lists_every_rule_with_its_levels() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/lint.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| ([a-z, ]+) \|", page, re.MULTILINE))
    assert set(rows) == set(RULES)
    said = {(rule, level) for rule, level in [f for _, f in BAD] + [(rule, level) for rule, level, *_ in TWINS]}
    assert {(rule, level) for rule, level in said if level not in rows[rule].split(", ")} == set()


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, conf = tmp_path / "job.sh", tmp_path / "nccl.conf"
    script.write_text("#!/bin/sh\nexport NCCL_ALGO=Ring\n")
    conf.write_text("NCCL_DEBUG=WARN # x\n")
    assert main(["lint", str(script), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)
    assert set(finding) == {"file", "line", "rule", "level", "message", "suggestion", "source"}
    assert (finding["file"], finding["line"], finding["level"]) == (str(script), 2, "warn")
    assert main(["lint", str(script), str(conf)]) == 2
    assert f"{conf}:1: error: " in capsys.readouterr().out
    script.write_text("export NCCL_DEBUG=INFO\n")
    assert main(["lint", str(script)]) == 0
    assert main(["lint", str(tmp_path / "absent")]) == 66
    assert main(["lint", "--nccl", "new", str(script)]) == 64


@pytest.mark.parametrize(
    ("value", "is_read_as"),
    [
        ("yes", 0),
        ("4M", 4),
        (" 7", 7),
        ("0x16", 22),
        ("010", 8),
        ("08", 0),
        ("-1", -1),
        ("+3x", 3),
        ("0x", 0),
        ("", None),
        (None, None),
    ],
)
def test_a_value_is_read_as_strtoll_reads_it(value: str | None, is_read_as: int | None) -> None:
    assert number(value) == is_read_as


def test_a_word_switches_nothing_on() -> None:
    assert rules("export NCCL_IB_DISABLE=yes NCCL_P2P_DISABLE=true") == [("number", "warn"), ("number", "warn")]
    (found,) = lint(read("export NCCL_IB_DISABLE=yes"))
    assert "read as 0" in found.message and "NCCL_IB_DISABLE=1" in found.suggestion


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("NCCL_SOCKET_IFACE", "NCCL_SOCKET_IFNAME"),
        ("NCCL_NSOCKS_PER_THREAD", "NCCL_NSOCKS_PERTHREAD"),
        ("NCCL_IB_DISABLED", "NCCL_IB_DISABLE"),
        ("NCCL_BUFFERSIZE", "NCCL_BUFFSIZE"),
        ("NCCL_IB_GID_IDX", "NCCL_IB_GID_INDEX"),
        ("NCCL_DEBUG_SUBSYSTEM", "NCCL_DEBUG_SUBSYS"),
        ("NCCL_CHECK_DISABLE", "NCCL_CHECKS_DISABLE"),
    ],
)
def test_a_misspelt_name_is_told_the_nearest(wrong: str, right: str) -> None:
    (found,) = [f for f in lint(read(f"export {wrong}=x")) if f.rule == "name"]
    assert right in found.suggestion and found.level is LintLevel.WARN


def test_every_name_of_the_tables_is_one_that_nccl_reads() -> None:
    used = {*DEAD, *DEBUG_ONLY, *PLATFORM, *SIZES, *SWITCHES, *RANK_CONSISTENT, *(n for n in NEVER if n.startswith("NCCL_"))}
    assert used - NUMBERS - TEXTS == set()
    assert not NUMBERS & TEXTS and not (NUMBERS | TEXTS) & (TORCH | INVENTED.keys())
    assert set(SWITCHES) <= NUMBERS and all("NCCL_" + n not in NUMBERS | TEXTS for n in ("HOME", "TEST", "DIR"))


NO_SCRIPT = [b"", b" \n\t\n", b"\x7fELF\x02\x01\0\0", b"\xff\xfe#\0!\0", b"\x89PNG\r\n\x1a\n\0\0"]


@pytest.mark.parametrize("data", NO_SCRIPT, ids=["empty", "blank", "program", "UTF-16", "image"])
@pytest.mark.parametrize("options", [[], ["--json"], ["--conf"]], ids=["text", "json", "conf"])
def test_what_is_no_script_is_not_clean(
    data: bytes, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "job.sh").write_bytes(data)
    assert main(["lint", *options, str(file)]) == 65
    out, err = capsys.readouterr()
    assert "clean" not in out and err.count("\n") == 2 and str(file) in err and "\n  next: " in err


def test_what_cannot_be_read_is_told_with_the_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (locked := tmp_path / "locked.sh").write_text("true\n")
    locked.chmod(0)
    gone = [tmp_path, tmp_path / "absent.sh", "a\0b", "/proc/self/mem"]
    for path in [*gone, locked] if os.geteuid() else gone:
        assert main(["lint", str(path)]) == 66
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 2 and "  next: " in err, err
    assert main(["lint", str(tmp_path)]) == 66 and f"{tmp_path}/*.sh" in capsys.readouterr().err


def test_one_file_that_is_no_script_hides_no_finding_of_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (empty := tmp_path / "a.sh").write_text("")
    (bad := tmp_path / "b.sh").write_text("export NCCL_ALGO=Ring\n")
    assert main(["lint", str(empty), str(tmp_path / "absent"), str(bad)]) == 66
    out, err = capsys.readouterr()
    assert f"{bad}:1: warn" in out and "clean" not in out and str(empty) in err and "absent" in err


def test_a_comment_that_is_not_utf8_makes_no_script_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file := tmp_path / "job.sh").write_bytes("#!/bin/sh\n# Grüße\nexport NCCL_ALGO=Ring\n".encode("latin-1"))
    assert main(["lint", str(file)]) == 1 and ":3: warn" in capsys.readouterr().out


@given(
    st.text() | st.lists(st.sampled_from([t for t, _ in BAD] + CLEAN.splitlines() + ["\\", '"', "#"])).map("\n".join),
    st.booleans(),
)
def test_any_text(text: str, conf: bool) -> None:
    for finding in lint(read(text, conf=conf)):
        assert 1 <= finding.line <= len(text.splitlines()) and isinstance(finding.level, LintLevel)
