"""The jobs on this node by the records of prolog and epilog."""
