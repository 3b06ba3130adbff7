"""Pure rules: which HCA and interface NCCL should use."""
