"""Drains and resumes a node in Slurm by one protocol and keeps its ledger: for the agent, the command line and maintenance."""
