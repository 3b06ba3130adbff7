"""fairlead keeps every GPU node of a Slurm cluster tuned, and keeps jobs off the broken ones."""

__version__ = "0.1.0"
