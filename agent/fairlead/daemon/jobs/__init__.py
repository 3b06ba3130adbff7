"""Finds the jobs on this node in the records of prolog and epilog."""
