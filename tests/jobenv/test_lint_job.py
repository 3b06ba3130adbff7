"""Rules on the shape of a job and its launch: beside each script that must be found stands one that must stay quiet."""

from __future__ import annotations

import pytest

from fairlead.jobenv.batch_script import read
from fairlead.jobenv.never import NEVER
from fairlead.jobenv.script_lint import LintLevel, lint

SHEBANG = "#!/bin/bash\n"
TWO = SHEBANG + "#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\n#SBATCH --ntasks-per-node=1 --cpus-per-task=32\n"
ONE = SHEBANG + "#SBATCH --nodes=1\n#SBATCH --gres=gpu:4\n#SBATCH --ntasks-per-node=1 --cpus-per-task=32\n"
SERVER = "vllm serve m --tensor-parallel-size 4"
EXPANDABLE = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"

#: LintRule, level, what is found, its twin.
TWINS = [
    (
        "master-local",
        "error",
        TWO + "export MASTER_ADDR=localhost\nsrun python t.py",
        ONE + "export MASTER_ADDR=localhost\nsrun python t.py",
    ),
    (
        "master-local",
        "error",
        TWO + "export MASTER_ADDR=127.0.0.1\nsrun python t.py",
        TWO + "export MASTER_ADDR=127.0.0.10\nsrun python t.py",
    ),
    (
        "master-local",
        "error",
        TWO + "srun torchrun --nnodes=2 --rdzv-endpoint=localhost:29500 t.py",
        TWO + "srun torchrun --standalone t.py",
    ),
    (
        "master-local",
        "error",
        TWO + "srun accelerate launch --main_process_ip localhost t.py",
        TWO + "srun accelerate launch --main_process_ip $H t.py",
    ),
    (
        "master-local",
        "error",
        TWO + "MASTER_ADDR=localhost srun python t.py",
        TWO + "export MASTER_ADDR=localhost\nsrun torchrun --nnodes=1 t.py",
    ),
    (
        "bare-launcher",
        "error",
        TWO + "torchrun --nnodes=2 --nproc_per_node=4 t.py",
        TWO + "srun torchrun --nnodes=2 --nproc_per_node=4 t.py",
    ),
    ("bare-launcher", "warn", TWO + "torchrun --nproc_per_node=4 t.py", ONE + "torchrun --nproc_per_node=4 t.py"),
    (
        "bare-launcher",
        "error",
        TWO + "python -m torch.distributed.run --nnodes=$N t.py",
        TWO + 'L="python -m torch.distributed.run --nnodes=$N"\nsrun $L t.py',
    ),
    (
        "bare-launcher",
        "error",
        TWO + "accelerate launch --num_machines 2 t.py",
        TWO + "pdsh -w $HOSTS accelerate launch --num_machines 2 t.py",
    ),
    (
        "bare-launcher",
        "error",
        TWO + 'ip=$(srun -N1 -n1 -w "$h" hostname -i)\ntorchrun --nnodes 2 --rdzv_endpoint $ip:29500 t.py',
        TWO + "cat >run.sh <<'END'\ntorchrun --nnodes=2 t.py\nEND\nsrun run.sh",
    ),
    (
        "launchers",
        "error",
        SHEBANG + "#SBATCH -N 2 --ntasks-per-node=4 --gres=gpu:4 -c 8\nsrun torchrun --nproc_per_node=4 t.py",
        SHEBANG + "#SBATCH -N 2 --ntasks-per-node=4 --gres=gpu:4 -c 8\nsrun --ntasks-per-node=1 torchrun --nproc_per_node=4 t.py",
    ),
    (
        "launchers",
        "error",
        SHEBANG + "#SBATCH -N 2 --tasks-per-node 4 --gres=gpu:4 -c 8\nsrun --mpi=none torchrun --nproc_per_node=gpu t.py",
        SHEBANG + "#SBATCH -N 2 --tasks-per-node 4 --gres=gpu:4 -c 8\nsrun torchrun --nproc_per_node=1 t.py",
    ),
    ("nnodes", "error", ONE + "srun torchrun --nnodes=4 t.py", ONE + "srun torchrun --nnodes=1:4 t.py"),
    ("nnodes", "error", TWO + "srun torchrun --nnodes 3 t.py", TWO + "srun torchrun --nproc_per_node=4 t.py --nnodes 3"),
    (
        "early-rank",
        "error",
        TWO + "srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID t.py",
        TWO + "srun bash -c 'torchrun --nnodes=2 --node_rank=$SLURM_NODEID t.py'",
    ),
    (
        "early-rank",
        "error",
        TWO + 'L="accelerate launch --machine_rank $SLURM_PROCID"\nsrun $L t.py',
        TWO + 'L="accelerate launch --machine_rank \\$SLURM_PROCID"\nsrun bash -c "$L t.py"',
    ),
    (
        "early-rank",
        "error",
        TWO + "srun torchrun --nnodes=2 --rdzv_backend=static --node_rank=${SLURM_PROCID} t.py",
        TWO + "srun torchrun --nnodes=2 --rdzv_backend=c10d --node_rank=${SLURM_PROCID} t.py",
    ),
    (
        "early-rank",
        "warn",
        TWO + "export RANK=$SLURM_PROCID\nsrun python t.py",
        "#!/bin/bash\nexport RANK=$SLURM_PROCID\nexec python t.py",
    ),
    (
        "cpus",
        "warn",
        SHEBANG + "#SBATCH --gres=gpu:4\n#SBATCH --cpus-per-task=1\npython train.py",
        SHEBANG + "#SBATCH --gres=gpu:4\n#SBATCH --cpus-per-task=16\npython train.py",
    ),
    ("cpus", "warn", SHEBANG + "#SBATCH --gpus=1 -c 1\npython train.py", SHEBANG + "#SBATCH --gpus=1 -c 1\n./lmp -in in.lj"),
    ("cpus", "info", SHEBANG + "#SBATCH --gpus=1 -c 1\npython infer.py", SHEBANG + "#SBATCH --gpus=1\npython infer.py"),
    (
        "cpus",
        "warn",
        SHEBANG + "#SBATCH --gpus-per-node=4 --ntasks-per-node=4 --cpus-per-task=1\nsrun python t.py",
        SHEBANG + "#SBATCH --gpus-per-node=4 --ntasks-per-node=40 --cpus-per-task=1\nsrun python t.py",
    ),
    (
        "cpus",
        "warn",
        SHEBANG + "#SBATCH --gres=gpu:a100:2 -c 1\npython t.py",
        SHEBANG + "#SBATCH --gres=gpu:a100:2 -c 1 --exclusive\npython t.py",
    ),
    (
        "cpus",
        "info",
        SHEBANG + "#SBATCH -n 1 --gres=gpu:4\npython t.py",
        SHEBANG + "#SBATCH -n 1 --gres=gpu:4 --cpus-per-gpu=8\npython t.py",
    ),
    ("cpus", "info", SHEBANG + "#SBATCH --gres=gpu:2,lscratch:10\npython t.py", SHEBANG + "#SBATCH --gres=gpu:0\npython t.py"),
    (
        "cpus",
        "warn",
        SHEBANG + "#SBATCH --gres=gpu:8 -c 1\nmake x",
        SHEBANG + "#SBATCH --gres=gpu:8 -c 1 -n 8\npmemd.cuda.MPI -O",
    ),
    ("shebang", "error", "#SBATCH -N 1\npython t.py", SHEBANG + "#SBATCH -N 1\npython t.py"),
    ("shebang", "error", "# a licence\n#SBATCH -N 1\npython t.py", "sbatch <<END\n#!/bin/sh\n#SBATCH -N 1\npython t.py\nEND"),
    ("shebang", "error", "\n#SBATCH -N 1\npython t.py", '{% extends "base.sh" %}\n#SBATCH -N 1\npython t.py'),
    (
        "late-option",
        "warn",
        SHEBANG + "#SBATCH -N 1\nset -e\n#SBATCH --gres=gpu:4\npython t.py",
        SHEBANG + "#SBATCH -N 1\n\n# a word\n#SBATCH --mem=4G\nset -e\n##SBATCH -n 4",
    ),
    (
        "late-option",
        "warn",
        SHEBANG + "module load cuda\n#SBATCH -N 1\npython t.py",
        SHEBANG + "#SBATCH --export=ALL\n#SBATCH -N 1\nsbatch <<END\n#SBATCH -n 1\nEND",
    ),
    ("async-errors", "warn", "export TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "export TORCH_NCCL_ASYNC_ERROR_HANDLING=3"),
    ("async-errors", "warn", "NCCL_ASYNC_ERROR_HANDLING=0 torchrun t.py", "NCCL_ASYNC_ERROR_HANDLING=$A torchrun t.py"),
    (
        "visible-devices",
        "warn",
        ONE + "export CUDA_VISIBLE_DEVICES=2,3",
        ONE + "CUDA_VISIBLE_DEVICES=0 python a.py &\nCUDA_VISIBLE_DEVICES=1 python b.py",
    ),
    ("visible-devices", "info", ONE + "export CUDA_VISIBLE_DEVICES=0,1,2,3", ONE + "export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID"),
    ("visible-devices", "warn", ONE + "CUDA_VISIBLE_DEVICES=7", SHEBANG + "export CUDA_VISIBLE_DEVICES=7"),
    ("visible-devices", "warn", ONE + "export A=b CUDA_VISIBLE_DEVICES=7", ONE + 'export CUDA_VISIBLE_DEVICES=""'),
    ("expandable", "warn", EXPANDABLE + SERVER, EXPANDABLE + SERVER + " --disable-custom-all-reduce"),
    (
        "expandable",
        "warn",
        "PYTORCH_ALLOC_CONF=expandable_segments:True trl vllm-serve --tensor_parallel_size $TP",
        EXPANDABLE + "torchrun t.py",
    ),
    ("expandable", "warn", EXPANDABLE + "vllm serve m -tp 2", EXPANDABLE + "vllm serve m --tensor-parallel-size 1"),
    ("never", "warn", "export HF_TOKEN=hf_AbCdEfGhIjKlMnOp123456", "export HF_TOKEN=$(cat ~/.hf)"),
    (
        "never",
        "warn",
        "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567",
        "export WANDB_API_KEY=your_own_wandb_api_key_1",
    ),
    ("never", "warn", "export NEPTUNE_API_TOKEN=eyJhcGlfYWRkcmVzcyI6Imh0==", "export NEPTUNE_API_TOKEN=ANONYMOUS"),
    ("never", "info", "export NVIDIA_TF32_OVERRIDE=0", "export NVIDIA_TF32_OVERRIDE="),
    ("never", "warn", "export OMP_PROC_BIND=true\ntorchrun t.py", "export OMP_PROC_BIND=true\nsrun ./lmp"),
    ("never", "info", "export LD_PRELOAD=$C/lib/libnccl.so", "export LD_PRELOAD=/usr/lib/libjemalloc.so"),
    (
        "workers",
        "warn",
        SHEBANG + "#SBATCH -n 1 -c 32 --gres=gpu:2\ndeepspeed --num_gpus=2 t.py data.num_workers=32",
        SHEBANG + "#SBATCH -n 1 -c 32 --gres=gpu:2\ndeepspeed --num_gpus=2 t.py data.num_workers=16",
    ),
    (
        "workers",
        "warn",
        SHEBANG + "#SBATCH --tasks-per-node=4 -c 10 --gres=gpu:4\nsrun -n 1 torchrun --nproc_per_node=4 t.py --workers 10",
        SHEBANG + "#SBATCH --tasks-per-node=4 -c 10 --gres=gpu:4\ntorchrun --nproc_per_node=4 t.py --workers 10",
    ),
]


@pytest.mark.parametrize(("rule", "level", "bad", "twin"), TWINS, ids=[f"{i}-{t[0]}" for i, t in enumerate(TWINS)])
def test_one_is_found_and_its_twin_is_not(rule: str, level: str, bad: str, twin: str) -> None:
    found = [f for f in lint(read(bad)) if f.rule == rule]
    assert [f.level.value for f in found] == [level], found
    assert all(f.message and f.suggestion and f.source and 1 <= f.line <= len(bad.splitlines()) for f in found)
    assert [f for f in lint(read(twin)) if f.rule == rule] == []


@pytest.mark.parametrize(("rule", "level", "bad", "twin"), TWINS, ids=[f"{i}-{t[0]}" for i, t in enumerate(TWINS)])
def test_each_can_be_allowed(rule: str, level: str, bad: str, twin: str) -> None:
    (found,) = [f for f in lint(read(bad)) if f.rule == rule]
    lines = bad.splitlines()
    lines[found.line - 1] = lines[found.line - 1].rstrip("\\") + f" # fairlead: allow {rule}"
    assert [f for f in lint(read("\n".join(lines))) if f.rule == rule] == []


#: Names of the list of what is never set that a user's own script may well set, and why lint is quiet about them.
MAY = {
    "LD_LIBRARY_PATH": "the user's program is the user's",
    "PYTHONPATH": "the user's program is the user's",
    "PATH": "the user's program is the user's",
    "SRUN_CPUS_PER_TASK": "Slurm 22.05 to 23.02 need it where srun starts what sbatch asked for",
    "SLURM_CPU_BIND": "a site's documentation asks for it",
    "WORLD_SIZE": "one value for all tasks is right; env:// needs it",
}
NAMED = {
    "CUDA_VISIBLE_DEVICES": ONE + "export CUDA_VISIBLE_DEVICES=7",
    "LD_PRELOAD": "export LD_PRELOAD=/opt/libnccl.so",
    "PYTORCH_CUDA_ALLOC_CONF": EXPANDABLE + SERVER,
    "OMP_PROC_BIND": "export OMP_PROC_BIND=true\ntorchrun t.py",
    "RANK": TWO + "export RANK=$SLURM_PROCID\nsrun python t.py",
    "LOCAL_RANK": TWO + "export LOCAL_RANK=$SLURM_LOCALID\nsrun python t.py",
    "HF_TOKEN": "export HF_TOKEN=hf_AbCdEfGhIjKlMnOp123456",
    "NCCL_IB_GID_INDEX": "export NCCL_IB_GID_INDEX=3",
}


@pytest.mark.parametrize("name", NEVER)
def test_what_fairlead_never_sets_is_found_or_allowed_for_a_reason(name: str) -> None:
    text = NAMED.get(name, f"export {name}=1")
    assert bool([f for f in lint(read(text)) if name in f.message or f.rule == "early-rank"]) is (name not in MAY), text


def test_a_here_document_is_no_command_of_this_script() -> None:
    text = TWO + "cat >x <<'A' # to x\n torchrun --nnodes=2 t.py\n export NCCL_ALGO=Ring\nA\ntorchrun --nnodes=2 t.py\n"
    assert [(f.rule, f.line) for f in lint(read(text)) if f.level is not LintLevel.INFO] == [("algo", 7), ("bare-launcher", 9)]
    assert [f.rule for f in lint(read(TWO + "x=$((1 << n))\ny <<<END\ntorchrun --nnodes=2 t.py"))] == ["bare-launcher"]


def test_what_is_asked_of_slurm() -> None:
    shape = read(
        "#!/bin/sh\n#SBATCH -N 2-4 # -N 9\n##SBATCH --gres=gpu:9\n#SBATCH --ntasks=16\n"
        "#SBATCH --gpus=h100:16\n#SBATCH -c 4 --exclusive\n"
    ).shape
    assert (shape.nodes, shape.tasks_on_node, shape.gpus, shape.cpus_per_task, shape.exclusive) == (2, 8, 8, 4, True)
    assert read("#SBATCH --gpus-per-task=2 --ntasks-per-node=4").shape.gpus == 8
    assert read("#SBATCH -N 1\nsrun -n 4 -c 6 ./a").shape.cpus_per_task == 6
    assert read("#SBATCH --nodes=${n}").shape.nodes is None
