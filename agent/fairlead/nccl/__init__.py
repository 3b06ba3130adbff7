"""Decides which HCA and interface NCCL should use. The rules are pure."""

NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "lustre", "beegfs", "ceph", "gpfs", "wekafs"})
