"""fairlead lint: each harmful setting where it stands, nothing on scripts that are well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli import main
from fairlead.jobenv.lint import RULES, LintLevel, ScriptSite, lint
from fairlead.jobenv.script import read


def rules(text: str, *, conf: bool = False, **site: object) -> list[tuple[str, str]]:
    return [(f.rule, f.level.value) for f in lint(read(text, conf=conf), ScriptSite(**site))]  # type: ignore[arg-type]


BAD = [
    ("export NCCL_BUFFSIZE=4M", ("size-suffix", "error")),
    ("NCCL_P2P_NET_CHUNKSIZE=512KiB python x", ("size-suffix", "error")),
    ("export NCCL_BUFFSIZE=4194304", ("buffsize", "warn")),
    ("export NCCL_BUFFSIZE=5000000", ("buffsize", "error")),
    ("export NCCL_ALGO=Ring", ("algo", "warn")),
    ('export NCCL_ALGO="$ALGO"', ("algo", "warn")),
    ("export NCCL_PROTO=Simple", ("proto", "warn")),
    ("export NCCL_PROTO=LL128,Simple", ("proto", "error")),
    ("export NCCL_P2P_NET_CHUNKSIZE=2097152", ("chunk-size", "error")),
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
    ("export NCCL_IB_HCA=mlx5_1", ("hca-prefix", "warn")),
    ("export NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_10", ("hca-prefix", "warn")),
    ("export NCCL_IB_HCA=^mlx5_2:1", ("hca-prefix", "warn")),
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
    (finding,) = lint(read(text))
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
    assert rules(text) == []


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
    tried = {rule for _, (rule, _) in BAD} | {"conf-syntax", "per-node"}
    assert tried == set(RULES)


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


@given(
    st.text() | st.lists(st.sampled_from([t for t, _ in BAD] + CLEAN.splitlines() + ["\\", '"', "#"])).map("\n".join),
    st.booleans(),
)
def test_any_text(text: str, conf: bool) -> None:
    for finding in lint(read(text, conf=conf)):
        assert 1 <= finding.line <= len(text.splitlines()) and isinstance(finding.level, LintLevel)
