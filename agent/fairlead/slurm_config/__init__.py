"""Writes Slurm's own files from facts: gres.conf, NodeName lines, topology.conf and topology.yaml."""
