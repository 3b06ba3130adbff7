"""Plans which CPUs, memory and NICs each task or rank on a node should have, and writes those plans down for the hooks."""
