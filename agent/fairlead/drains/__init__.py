"""The one protocol that drains and resumes a node in Slurm, and its ledger: for the agent, the command line and maintenance."""
