"""Speaks to slurmctld, and reads Slurm's configuration and logs on this machine."""
