"""Maintains nodes through Slurm: it drains, applies, reboots, verifies and resumes them. A killed run can go on from its
journal."""
