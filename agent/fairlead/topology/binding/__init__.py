"""Plans which CPUs, memory and NICs each task or rank on a node should have, and writes these plans for the hooks."""
