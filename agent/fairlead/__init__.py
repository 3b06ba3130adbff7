"""fairlead keeps every GPU node of a Slurm cluster tuned, and keeps jobs off the broken ones."""
