"""Maintains nodes through Slurm: drain, wait, apply, reboot, verify, resume. From its journal a killed run can go on."""
