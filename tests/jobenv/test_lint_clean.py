"""Scripts as well-known projects publish them, in our own words: fairlead lint has nothing to say of any."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.cli import main

HEAD = """#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --output=%x_%j.out
"""
#: Whose form it is, and what stands below the head.
CLEAN = {
    "PyTorch: torchrun, one launcher a node": """#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=96
nodes=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
head_ip=$(srun --nodes=1 --ntasks=1 -w "${nodes[0]}" hostname --ip-address)
export LOGLEVEL=INFO FI_PROVIDER=efa
srun torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc_per_node 8 --rdzv_id $RANDOM --rdzv_backend c10d \\
    --rdzv_endpoint "$head_ip:29500" train.py --batch-size 64 --num_workers 8
""",
    "Lightning: a task for each GPU": """#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --signal=SIGUSR1@90
#SBATCH --mem=0
export NCCL_DEBUG=WARN
export PYTHONFAULTHANDLER=1
srun python3 train.py --trainer.devices=8 --trainer.num_nodes=4 --data.num_workers=10
""",
    "Accelerate and DeepSpeed": """#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=96
GPUS=8
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=6000
LAUNCHER="accelerate launch --config_file ds_z3.yaml --num_processes $((GPUS * SLURM_NNODES)) --num_machines $SLURM_NNODES \\
  --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT --machine_rank \\$SLURM_PROCID --rdzv_backend static"
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1
srun --wait=60 --kill-on-bad-exit=1 --jobid "$SLURM_JOB_ID" bash -c "$LAUNCHER train.py" 2>&1 | tee main_log.txt
""",
    "Megatron-LM in a container of pyxis": """#SBATCH --ntasks-per-node=8
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_FUSED_ATTN=1
export NCCL_SOCKET_IFNAME=eth0
args="--tensor-model-parallel-size 8 --num-layers 96 --micro-batch-size 1 --global-batch-size 1536 --bf16"
srun --mpi=pmix --container-image=nvcr.io/nvidia/pytorch:25.01-py3 --container-mounts="$PWD:$PWD" \\
    --container-workdir="$PWD" --cpu-bind=cores bash -c "python -u pretrain_gpt.py $args"
""",
    "nccl-tests with Open MPI": """#SBATCH --ntasks-per-node=8
module load openmpi nccl
export OMPI_MCA_btl_tcp_if_include=eth0 UCX_NET_DEVICES=mlx5_0:1
mpirun -np $((SLURM_NNODES * 8)) --map-by ppr:8:node --bind-to numa -x NCCL_DEBUG=WARN -x LD_LIBRARY_PATH \\
    ./build/all_reduce_perf -b 8 -e 16G -f 2 -g 1
""",
    "a binding by hand, of each rank to its own": """#SBATCH --ntasks-per-node=8
#SBATCH --hint=nomultithread
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1} OMP_PLACES=cores
cat >bind.sh <<'END'
#!/bin/bash
node=$((SLURM_LOCALID / 4))
exec numactl --cpunodebind=$node --membind=$node "$@"
END
chmod +x bind.sh
srun ./bind.sh ./lmp -k on g 8 -sf kk -in in.lj
""",
    "an array of small jobs": """#SBATCH --array=0-99%10
params=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" grid.txt)
export CUDA_DEVICE_ORDER=PCI_BUS_ID TMPDIR=/local/$SLURM_JOB_ID HF_HOME=$SCRATCH/hf
mkdir -p "$TMPDIR"
trap 'rm -rf "$TMPDIR"' EXIT
python sweep.py $params --num-workers "$SLURM_CPUS_PER_TASK"
""",
}


@pytest.mark.parametrize("whose", CLEAN)
def test_nothing_is_flagged(whose: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.sbatch"
    file.write_text(HEAD + CLEAN[whose])
    assert main(["lint", str(file)]) == 0 and capsys.readouterr().out == "clean\n"
