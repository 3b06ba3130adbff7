"""Lists the variables for ``fairlead lint``: removed names, names for debugging only, and names whose value is a number.

The facts are from NVIDIA's NCCL user guide, environment variables (docs/userguide/source/env.rst of 2.30.7), and NCCL's
source.
"""

from __future__ import annotations

GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
PARAM = "NCCL src/misc/param.cc: strtoll(value, NULL, 0)"
TORCH_DDP = "https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"

#: NCCL has removed or renamed these variables. Each value is the NCCL version that did so, and the new name ("" for none).
DEAD: dict[str, tuple[str, str]] = {
    "NCCL_IB_GDR_LEVEL": ("2.4", "NCCL_NET_GDR_LEVEL"),
    "NCCL_IB_CUDA_SUPPORT": ("2.4", ""),
    "NCCL_SINGLE_RING_THRESHOLD": ("2.3", ""),
    "NCCL_LL_THRESHOLD": ("2.5", ""),
    "NCCL_TREE_THRESHOLD": ("2.5", ""),
    "NCCL_MIN_NRINGS": ("2.5", "NCCL_MIN_CTAS"),
    "NCCL_MAX_NRINGS": ("2.5", "NCCL_MAX_CTAS"),
    "NCCL_MIN_NCHANNELS": ("2.17", "NCCL_MIN_CTAS"),
    "NCCL_MAX_NCHANNELS": ("2.17", "NCCL_MAX_CTAS"),
    "NCCL_CHECKS_DISABLE": ("2.2.12", ""),
    "NCCL_CHECK_POINTERS": ("2.29.7", "NCCL_CHECK_MODE"),
}

#: The NCCL user guide says about these variables: "These variables should not be used in production". The names in DEAD, and
#: names that have a lint rule of their own, are left out.
DEBUG_ONLY = frozenset(
    {
        "NCCL_CGA_CLUSTER_SIZE",
        "NCCL_CUMEM_HOST_ENABLE",
        "NCCL_DMABUF_ENABLE",
        "NCCL_GRAPH_REGISTER",
        "NCCL_IB_AR_THRESHOLD",
        "NCCL_IB_DISABLE",
        "NCCL_IB_ECE_ENABLE",
        "NCCL_IB_MERGE_NICS",
        "NCCL_IB_OOO_RQ",
        "NCCL_LAUNCH_MODE",
        "NCCL_MAX_CTAS",
        "NCCL_MEM_SYNC_DOMAIN",
        "NCCL_MIN_CTAS",
        "NCCL_NET_GDR_READ",
        "NCCL_NTHREADS",
        "NCCL_NVB_DISABLE",
        "NCCL_P2P_DISABLE",
        "NCCL_P2P_LEVEL",
        "NCCL_RAS_ENABLE",
        "NCCL_RUNTIME_CONNECT",
        "NCCL_SHM_DISABLE",
    }
)

#: The guide says the same about these variables, but a cloud or a vendor recommends them for its own machines. They are right on
#: these machines and useless on others.
PLATFORM = frozenset(
    {
        "NCCL_CUMEM_ENABLE",
        "NCCL_GRAPH_FILE",
        "NCCL_IB_ADAPTIVE_ROUTING",
        "NCCL_IB_PCI_RELAXED_ORDERING",
        "NCCL_IB_QPS_PER_CONNECTION",
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        "NCCL_MNNVL_ENABLE",
        "NCCL_NET_GDR_C2C",
        "NCCL_NET_GDR_LEVEL",
        "NCCL_NVLS_ENABLE",
        "NCCL_P2P_NET_CHUNKSIZE",
        "NCCL_P2P_PXN_LEVEL",
        "NCCL_PXN_DISABLE",
    }
)

#: For these variables, the value 1 disables something, and 0 changes nothing in NCCL.
SWITCHES = frozenset({"NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NVB_DISABLE", "NCCL_PXN_DISABLE"})

#: NCCL reads each of these values as a whole number, and ignores a suffix such as M without a warning.
SIZES = frozenset(
    {
        "NCCL_BUFFSIZE",
        "NCCL_LL_BUFFSIZE",
        "NCCL_LL128_BUFFSIZE",
        "NCCL_P2P_NET_CHUNKSIZE",
        "NCCL_P2P_PCI_CHUNKSIZE",
        "NCCL_P2P_NVL_CHUNKSIZE",
        "NCCL_CHUNK_SIZE",
        "NCCL_NVLS_CHUNKSIZE",
    }
)
