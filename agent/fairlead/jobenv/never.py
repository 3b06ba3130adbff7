"""Lists the variables that fairlead never sets for users, and the variables on which only a site can decide.
``variable_table.py`` lists the variables that fairlead sets."""

from __future__ import annotations

# Each value is the reason why fairlead never sets the variable. A test checks the table against this list, and ``render`` checks
# a site's own variables against it.
NEVER: dict[str, str] = {
    "NCCL_ALGO": "NCCL chooses by size; forcing ring costs a quarter of NVSwitch bandwidth",
    "NCCL_PROTO": "forced LL128 has corrupted data (nccl#2001)",
    "NCCL_BUFFSIZE": "must be equal on all ranks; suffixes such as 4M are read as 4",
    "NCCL_NTHREADS": "must be equal on all ranks",
    "NCCL_MIN_NCHANNELS": "must be equal on all ranks",
    "NCCL_MAX_NCHANNELS": "must be equal on all ranks",
    "NCCL_MIN_CTAS": "must be equal on all ranks",
    "NCCL_MAX_CTAS": "must be equal on all ranks",
    "NCCL_P2P_DISABLE": "hides a broken node instead of repairing it",
    "NCCL_SHM_DISABLE": "hides a broken node instead of repairing it",
    "NCCL_IB_DISABLE": "falls back to TCP silently",
    "NCCL_IB_GID_INDEX": "NCCL chooses it by itself since 2.21",
    "NCCL_CUMEM_ENABLE": "NVIDIA classifies it as a debugging variable",
    "NCCL_CHECKS_DISABLE": "removed from NCCL in 2.2.12",
    "CUDA_VISIBLE_DEVICES": "Slurm owns it",
    "CUDA_LAUNCH_BLOCKING": "serialises every kernel launch",
    "LD_PRELOAD": "the user's program is the user's",
    "LD_LIBRARY_PATH": "the user's program is the user's",
    "PYTHONPATH": "the user's program is the user's",
    "PATH": "the user's program is the user's",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable segments clash with some memory registrations",
    "NVIDIA_TF32_OVERRIDE": "changes results",
    "OMP_PROC_BIND": "with torchrun it binds all workers to the same cores",
    "RANK": "belongs to the launcher",
    "WORLD_SIZE": "belongs to the launcher",
    "LOCAL_RANK": "belongs to the launcher",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "changes results",
    "HF_TOKEN": "a secret",
    "SRUN_CPUS_PER_TASK": "newer Slurm does not need it, and it shrinks the steps of launchers (orted, torchrun)",
    "SLURM_CPU_BIND": "the task prolog binds each task; in the environment it would reach every later step",
}

# Only a site or a user can decide whether these variables are right. jobenv.extra, a preset or a fabric profile sets them.
SITE: dict[str, str] = {
    "NCCL_NET": "set by fabric profiles for several nodes: a wrong name ends the job, which is what it is for",
    "NCCL_IB_TIMEOUT": "set by fabric profiles from 128 nodes on",
    "NCCL_CROSS_NIC": "0 on rails that are joined nowhere: jobenv.rail_only = true",
    "NCCL_IB_QPS_PER_CONNECTION": "helps only where the switches spread flows by it; measure first",
    "NCCL_SOCKET_MAGIC": "from the job id it keeps strangers out, and also the second job of a program that runs in two",
    "NCCL_RAS_ADDR": "a port for each job on shared nodes; ncclras must then be told of it",
    "NCCL_PROFILER_PLUGIN": "the NCCL Inspector; writes files while the job runs",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "PyTorch's default (3) is right",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "where traces of a hang go: a folder on a shared file system that the site knows",
    "UCX_TLS": "only for MPI programs that carry nothing but the launch of NCCL ranks; it cripples others",
    "UCX_NET_DEVICES": "as UCX_TLS",
    "OMPI_MCA_coll_hcoll_enable": "as UCX_TLS",
    "FI_*": "Slingshot and EFA: the vendor's plugin or module sets them",
    "HF_HOME": "needs to know quotas",
    "MIOPEN_*": "AMD's caches: every profile here is NVIDIA's; a site with AMD GPUs sets them in a preset",
}
