"""Pure rules: which HCA and interface NCCL should use."""

NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "lustre", "beegfs", "ceph", "gpfs", "wekafs"})
