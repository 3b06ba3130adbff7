"""Maintenance through Slurm: drain, wait, apply, reboot, verify, resume, with a journal that a killed run goes on from."""
